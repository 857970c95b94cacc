"""Tenants and devices that go wrong while they are managed: the daemon forgets them and nothing else is hurt."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from runlist.emulated import EmulatedGpu
from runlist.errors import RunlistError
from tests.fixtures.daemon import DEFAULT_SLICES, Commands, Daemon, Slices, Worker, refusal, running, wait_for
from tests.fixtures.kept import commands, daemon, kept

__all__ = ["commands", "daemon", "kept"]

Start = Callable[..., Worker]

SAFE_US = 2048


def pids(daemon: Daemon) -> set[int]:
    return {task.pid for task in daemon.client.ps()}


@pytest.mark.parametrize(
    ("how", "suspended"), [("kill", False), ("kill", True), ("exec", False), ("exec", True), ("close", False)]
)
def test_a_tenant_that_leaves_is_forgotten(daemon: Daemon, worker: Start, how: str, suspended: bool) -> None:
    tenant, neighbour = worker(), worker()
    for one in (tenant, neighbour):
        daemon.client.attach(one.pid, "batch")
    if suspended:
        daemon.client.suspend(tenant.pid)
    if how == "kill":
        tenant.process.kill()
        tenant.process.wait()
    elif how == "exec":
        tenant.send("exec")
    else:
        assert tenant.do("close")["correct"]
    wait_for(lambda: pids(daemon) == {neighbour.pid}, "the tenant to be forgotten")
    neighbour.wait_for_progress()
    assert neighbour.quit()


def test_a_zombie_is_forgotten_and_its_memory_is_free(daemon: Daemon, worker: Start) -> None:
    """Killed, but not reaped by its parent: it still has a pid, and is gone all the same."""
    tenant = worker()
    daemon.client.attach(tenant.pid, "batch")
    tenant.process.kill()
    wait_for(lambda: not daemon.client.ps(), "the zombie to be forgotten")
    # Its files are gone a moment before it has ended as a process, and until then it could have others.
    wait_for(
        lambda: "does not exist" in refusal(lambda: daemon.client.detach(tenant.pid)), "the zombie to be no target"
    )


def test_the_turn_of_a_killed_tenant_passes_on(daemon: Daemon, worker: Start) -> None:
    foreground, *tenants = [worker() for _ in range(4)]
    foreground.do("pause")
    daemon.client.attach(foreground.pid, "latency")
    for tenant in tenants:
        daemon.client.attach(tenant.pid, "batch")
    wait_for(lambda: not all(task.enabled for task in daemon.client.ps()), "turns")
    while tenants:
        victim = tenants.pop()
        victim.process.kill()
        victim.process.wait()
        wait_for(lambda: pids(daemon) == {one.pid for one in (foreground, *tenants)})
        for tenant in tenants:
            tenant.wait_for_progress()


def test_a_tenant_that_execs_into_another_tenant_is_managed_anew(
    daemon: Daemon, worker: Start, commands: Commands
) -> None:
    tenant = worker()
    daemon.client.attach(tenant.pid, "batch")
    child = tenant.do("spawn")["pid"]
    wait_for(lambda: pids(daemon) == {tenant.pid, child})
    tenant.send("exec")
    wait_for(lambda: pids(daemon) == {child}, "the one that exec'ed to be forgotten")
    os.kill(child, signal.SIGKILL)
    wait_for(lambda: not pids(daemon))


def test_a_forked_worker_does_not_own_its_parents_contexts(daemon: Daemon, worker: Start, slices: Slices) -> None:
    tenant = worker()
    child = tenant.do("fork")["pid"]
    daemon.client.attach(tenant.pid, "batch")
    assert pids(daemon) == {tenant.pid}
    os.kill(child, signal.SIGKILL)
    tenant.wait_for_progress()
    assert pids(daemon) == {tenant.pid}
    assert slices.compute(tenant.pid) == 1


def test_attaching_a_forked_worker_does_not_touch_its_parent(daemon: Daemon, worker: Start, slices: Slices) -> None:
    """It holds its parent's descriptors. Were it managed for them, its death would leave the parent as it is then."""
    tenant = worker()
    child = tenant.do("fork")["pid"]
    with pytest.raises(RunlistError, match="no GPU context"):
        daemon.client.attach(child, "batch")
    os.kill(child, signal.SIGKILL)
    assert slices.of(tenant.pid) == DEFAULT_SLICES
    (task,) = daemon.client.attach(tenant.pid, "batch")
    assert task.pid == tenant.pid


def test_a_parent_that_dies_leaves_its_children_managed(daemon: Daemon, worker: Start, slices: Slices) -> None:
    tenant = worker()
    daemon.client.attach(tenant.pid, "batch")
    child = tenant.do("spawn")["pid"]
    wait_for(lambda: pids(daemon) == {tenant.pid, child})
    tenant.process.kill()
    tenant.process.wait()
    wait_for(lambda: pids(daemon) == {child})
    wait_for(lambda: slices.of(child) == [1] * 4, "the slices of one that is alone")
    daemon.client.detach(child)
    assert slices.of(child) == DEFAULT_SLICES
    os.kill(child, signal.SIGKILL)


def test_a_stopped_tenant_can_be_managed(daemon: Daemon, worker: Start) -> None:
    tenant = worker()
    os.kill(tenant.pid, signal.SIGSTOP)
    daemon.client.attach(tenant.pid, "batch")
    daemon.client.suspend(tenant.pid)
    os.kill(tenant.pid, signal.SIGCONT)
    tenant.assert_stopped()
    daemon.client.resume(tenant.pid)
    tenant.wait_for_progress()
    assert tenant.quit()


def test_a_change_that_is_refused_half_way_changes_nothing(
    daemon: Daemon, worker: Start, slices: Slices, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = worker()
    daemon.client.attach(tenant.pid, "batch")
    before = daemon.client.ps()
    for settings in ({"class": "latency", "timeslice": "0"}, {"timeslice": "9000", "interleave": "x"}):
        with pytest.raises(RunlistError):
            daemon.client.set(tenant.pid, settings)
    assert daemon.client.ps() == before
    assert slices.of(tenant.pid) == [1] * 4


def test_a_device_that_dies_takes_nobody_with_it(
    commands: Commands,
    worker: Start,
    fresh_gpu: Callable[..., EmulatedGpu],
    start_daemon: Callable[..., Daemon],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    gpu = fresh_gpu()
    for name, value in gpu.environment().items():
        monkeypatch.setenv(name, value)
        commands.environment[name] = value
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\ncommand = "*worker*"\n')  # with rules it asks the device who is there
    daemon = start_daemon("--rules", str(rules))
    tenant = worker()
    wait_for(daemon.client.ps, "the rule to be applied")
    os.kill(gpu.pid, signal.SIGKILL)
    for words in (["suspend"], ["set", "timeslice=5000"], ["detach"]):
        done = commands.run(words[0], str(tenant.pid), *words[1:])
        assert done.returncode in (0, 1, 4)
        assert len(done.stderr.splitlines()) <= 12
    assert running(daemon.pid)
    assert commands.json("ps") == []
    daemon.process.terminate()
    assert daemon.process.wait(60) == 0


def test_tasks_of_two_daemons_do_not_stop_each_other(
    daemon: Daemon, device_env: dict[str, str], worker: Start, slices: Slices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of two users without root's daemon: alone each task would have a slice shorter than a switch."""
    one, other = worker(), worker()
    daemon.client.attach(one.pid, "batch")
    assert slices.compute(one.pid) == 1
    with tempfile.TemporaryDirectory(prefix="rl-") as folder:
        commands = Commands(device_env, Path(folder))
        monkeypatch.setenv("RUNLIST_SOCKET", str(commands.socket))
        with Daemon(commands) as others:
            others.client.attach(other.pid, "batch")
            wait_for(lambda: slices.compute(one.pid) == SAFE_US, "the other daemon to be noticed")
            assert slices.compute(other.pid) == SAFE_US
            one.wait_for_progress()
            other.wait_for_progress()
            assert any("another daemon" in trouble for trouble in daemon.client.status().troubles)
            others.client.detach(other.pid)
            wait_for(lambda: slices.compute(one.pid) == 1, "the slice of one that is alone")
        commands.close()
    assert daemon.client.status().troubles == []
