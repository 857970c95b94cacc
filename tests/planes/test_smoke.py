"""The daemon, the commands and the policies on a plane of another vendor: nothing of them needs NVIDIA's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from runlist.errors import RunlistError
from runlist.policies import LAYERS, builtin_policies
from tests.fixtures.daemon import Commands, Daemon, running, wait_for
from tests.fixtures.memory_plane import FOUND_US, GPU, Tenant

AS_FOUND = (FOUND_US, True, "low")


def test_classes_become_slices_and_detaching_puts_back(
    commands: Commands, daemon: Daemon, tenants: list[Tenant]
) -> None:
    batch, service = tenants
    (shown,) = commands.json("attach", str(batch.pid), "--class", "batch")
    assert (shown["pid"], shown["gpu"], shown["task_class"], shown["groups"]) == (batch.pid, GPU, "batch", 1)
    commands.ok("attach", str(service.pid), "--class", "latency")
    wait_for(lambda: (batch.state[0], service.state[0]) == (1, 1_000_000))
    assert {task["pid"] for task in commands.json("ps")} == {batch.pid, service.pid}
    commands.ok("detach", str(batch.pid))
    assert batch.state == AS_FOUND
    commands.ok("release", "--all")
    assert service.state == AS_FOUND
    assert commands.json("ps") == []


def test_a_task_is_suspended_and_resumed(commands: Commands, daemon: Daemon, tenants: list[Tenant]) -> None:
    pid = str(tenants[0].pid)
    commands.ok("attach", pid)
    commands.ok("suspend", pid)
    assert not tenants[0].state[1]
    commands.ok("resume", pid)
    assert tenants[0].state[1]


def test_the_plane_has_controls_of_its_own(commands: Commands, daemon: Daemon, tenants: list[Tenant]) -> None:
    pid = str(tenants[0].pid)
    commands.ok("attach", pid, "--level", "high")
    assert tenants[0].state[2] == "high"
    assert "level=middle: take low, high" in commands.fails(2, "set", pid, "level=middle")
    commands.ok("set", pid, "level=low", "timeslice=500us")
    wait_for(lambda: tenants[0].state == (500, True, "low"))
    commands.ok("set", pid, "level=high")
    commands.ok("detach", pid)
    assert tenants[0].state == AS_FOUND


def test_the_daemon_has_no_control_of_another_plane(
    commands: Commands, daemon: Daemon, tenants: list[Tenant], tmp_path: Path
) -> None:
    pid = tenants[0].pid
    with pytest.raises(RunlistError, match=r"no setting 'interleave': take class, .*, level$"):
        daemon.client.attach(pid, settings={"interleave": "high"})
    daemon.client.attach(pid)
    with pytest.raises(RunlistError, match=r"no setting 'interleave'"):
        daemon.client.set(pid, {"interleave": "high"})
    commands.ok("daemon", "--stop")
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\ncommand = "x"\nset.interleave = "high"\n')
    refused = commands.run("daemon", "--rules", str(rules))
    assert refused.returncode == 2
    assert f"{rules}:3: " in refused.stderr
    assert "no setting 'interleave'" in refused.stderr
    assert tenants[0].state == AS_FOUND


def test_no_two_slices_are_tiny_by_the_planes_own_measure(
    commands: Commands, daemon: Daemon, tenants: list[Tenant]
) -> None:
    for tenant in tenants:
        commands.ok("attach", str(tenant.pid), "--timeslice", "5")
    wait_for(lambda: sorted(tenant.state[0] for tenant in tenants) == [5, FOUND_US])


def test_a_command_is_managed_from_its_start(commands: Commands, daemon: Daemon, tenants: list[Tenant]) -> None:
    run = (sys.executable, "-m", "runlist.cli", "run", "--no-preload", "--class", "batch", "--")
    started = Tenant("third", run)
    commands.ok("attach", str(tenants[0].pid), "--class", "latency")
    wait_for(lambda: started.state[0] == 1)
    started.end()
    wait_for(lambda: [task["pid"] for task in commands.json("ps")] == [tenants[0].pid])


def test_the_keeper_replays_what_it_does_not_understand(
    commands: Commands, daemon: Daemon, tenants: list[Tenant]
) -> None:
    for tenant in tenants:
        commands.ok("attach", str(tenant.pid), "--class", "batch", "--level", "high")
        commands.ok("suspend", str(tenant.pid))
    keeper = daemon.keeper
    daemon.kill()
    wait_for(lambda: [tenant.state for tenant in tenants] == [AS_FOUND, AS_FOUND])
    wait_for(lambda: not running(keeper))


@pytest.mark.parametrize("policy", [name for name in builtin_policies() if name not in LAYERS])
def test_every_policy_runs(commands: Commands, daemon: Daemon, tenants: list[Tenant], policy: str) -> None:
    commands.ok("policy", "use", policy)
    for tenant, task_class in zip(tenants, ("latency", "batch"), strict=True):
        commands.ok("attach", str(tenant.pid), "--class", task_class, "--cap", "50")
    shown = commands.json("policy", "show")
    assert (shown["policy"], len(shown["tasks"]), shown["troubles"]) == (policy, 2, [])
    assert {task["usage_source"] for task in shown["tasks"]} == {"book"}


def test_doctor_and_the_daemons_status_name_the_plane(commands: Commands, daemon: Daemon) -> None:
    found = {finding["what"]: finding for finding in commands.json("doctor")["findings"]}
    assert found["memory"]["state"] == "ok"
    assert "not in use" in found["device nvidia"]["detail"]
    assert commands.json("daemon", "--status")["driver"] == "tests.fixtures.memory_plane"


def test_what_the_plane_has_not_is_one_line(commands: Commands, daemon: Daemon) -> None:
    assert "memory tells nobody" in commands.fails(5, "trace", "--out", str(commands.folder / "x"), "--seconds", "0.1")


def test_a_plane_that_is_none_is_one_line(commands: Commands) -> None:
    commands.environment["RUNLIST_DEVICE"] = "tests.fixtures.nothing"
    assert "no device 'tests.fixtures.nothing'" in commands.fails(2, "ps")


def test_a_daemon_that_fails_fails_its_test(commands: Commands, tenants: list[Tenant]) -> None:
    """The fixture asks for the exit code and for what was logged."""

    def logs_a_fault(daemon: Daemon) -> None:
        with daemon.log.open("a") as log:
            log.write("[error    ] the daemon failed\n")

    with pytest.raises(AssertionError), Daemon(commands) as daemon:
        daemon.process.kill()
    with pytest.raises(AssertionError, match="the daemon failed"), Daemon(commands) as daemon:
        logs_a_fault(daemon)
    with Daemon(commands) as daemon:
        daemon.faults = ("the daemon failed",)
        logs_a_fault(daemon)
    with Daemon(commands) as daemon:
        daemon.kill()
