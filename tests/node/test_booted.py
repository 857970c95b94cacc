"""The service under systemd itself, which has booted a machine of namespaces."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ON_NVIDIA
from tests.fixtures.booted import Service, served
from tests.fixtures.daemon import needs_root, short_path, wait_for
from tests.fixtures.node import needs_programs

__all__ = ["short_path"]

pytestmark = [
    needs_root,
    needs_programs("systemd", "unshare"),
    pytest.mark.skipif(ON_NVIDIA, reason="a machine in namespaces has no device of the driver's"),
]

RULES = """
[[rule]]
unit = "job-*.service"
set = { class = "batch" }

[[rule]]
unit = "gold.slice"
set = { class = "latency" }
"""


BY_CGROUP = """
[[rule]]
unit = "jupyter-*.service"
set = { weight = "cgroup", group = "cgroup" }

[[rule]]
unit = "*.slice"
set = { weight = "cgroup", group = "cgroup" }
"""


@pytest.fixture
def service(short_path: Path) -> Iterator[Service]:
    with served(short_path, RULES) as service:
        yield service


def test_a_unit_has_its_rule_by_itself(service: Service) -> None:
    """Type=notify, the socket, and all restrictions of the unit are as systemd has them."""
    machine = service.machine
    assert machine.show("runlist.service", "ActiveState") == "active"
    assert machine.show("runlist.service", "StatusText") == "policy priority on emulated"
    job, gold = service.worker("job-1"), service.worker("other", "--slice=gold.slice")
    wait_for(lambda: len(service.tasks()) == 2, "both units to be managed")
    assert {task["cgroup"]: task["task_class"] for task in service.tasks()} == {
        "/system.slice/job-1.service": "batch", "/gold.slice/other.service": "latency",
    }  # fmt: skip
    service.runlist("suspend", str(job.do("who")["pid"]))
    job.assert_stopped()
    gold.wait_for_progress()
    machine.run("systemctl", "stop", "runlist.service")
    job.wait_for_progress()
    wait_for(lambda: service.processes == [], "keeper and actuator to end")
    assert job.quit()
    assert gold.quit()


@pytest.mark.parametrize(
    "command",
    [
        "systemctl kill --signal=KILL --kill-who=main runlist.service",
        "systemctl kill --signal=KILL runlist.service",
        "systemctl kill --signal=STOP --kill-who=main runlist.service",
        "systemctl kill --signal=STOP runlist.service",
        "systemctl restart runlist.service",
    ],
)
def test_it_is_there_again_and_nobody_stays_suspended(service: Service, command: str) -> None:
    """Ended by force, by its watchdog, and in order; with its keeper, too."""
    job = service.worker("job-1")
    wait_for(service.tasks, "the job to be managed")
    service.runlist("suspend", str(job.do("who")["pid"]))
    job.assert_stopped()
    before = service.processes
    service.machine.run(*command.split())
    wait_for(lambda: service.main not in (0, before[0]), "another daemon", timeout=60)
    job.wait_for_progress()
    wait_for(lambda: [task["task_class"] for task in service.tasks()] == ["batch"], "the job to be managed again")
    wait_for(lambda: not set(service.processes) & set(before), "what is left of the first to end")
    assert job.quit()


def test_who_asks_starts_it(service: Service) -> None:
    service.machine.run("systemctl", "stop", "runlist.service")
    assert service.machine.show("runlist.socket", "ActiveState") == "active"
    assert service.tasks() == []
    assert service.machine.show("runlist.service", "ActiveState") == "active"


def test_reload_reads_the_rules_and_tells_of_mistakes(service: Service) -> None:
    first = service.main
    service.worker("job-1")
    service.rules(RULES.replace('class = "batch"', "weight = 7"))
    service.machine.run("systemctl", "reload", "runlist.service")
    wait_for(lambda: [task["weight"] for task in service.tasks()] == [7], "the new rule")
    service.rules("nonsense")
    service.machine.run("systemctl", "reload", "runlist.service")
    wait_for(lambda: "rules.toml" in service.machine.show("runlist.service", "StatusText"), "the mistake to be told")
    assert [task["weight"] for task in service.tasks()] == [7]
    assert service.main == first


def test_uninstalled_it_is_gone(service: Service) -> None:
    service.machine.run("systemctl", "disable", "--now", "runlist.socket", "runlist.service")
    service.runlist("daemon", "--uninstall")
    service.machine.run("systemctl", "daemon-reload")
    assert service.machine.run("systemctl", "cat", "runlist.socket", check=False).returncode != 0
    assert service.processes == []


def test_the_gpu_is_divided_as_systemd_divides_the_cpu(service: Service) -> None:
    """CPUWeight of units and of slices, as it is and as it becomes; without one, the next above counts."""
    service.rules(BY_CGROUP)
    service.machine.run("systemctl", "reload", "runlist.service")
    alice = service.worker("jupyter-alice", "--property=CPUWeight=300")
    bob = service.worker("jupyter-bob", "--property=CPUWeight=100")
    service.machine.write("/etc/systemd/system/gold.slice", "[Slice]\nCPUWeight=700\n")
    gold = service.worker("other", "--slice=gold.slice", "--property=CPUAccounting=no")

    def weights() -> dict[str, int]:
        return {Path(task["cgroup"]).name: task["weight"] for task in service.tasks()}

    units = ("jupyter-alice.service", "jupyter-bob.service", "other.service")
    wait_for(lambda: weights() == dict(zip(units, (300, 100, 700), strict=True)), "their cgroups' weights", 60)
    gold.do("pause")
    parts = {}
    for weight in (50, 900):  # of 0.33 and 0.9 of the GPU, on cores that others have, too
        service.machine.run("systemctl", "set-property", "--runtime", "jupyter-alice.service", f"CPUWeight={weight}")
        wait_for(lambda: weights()["jupyter-alice.service"] == weight, f"weight {weight}", timeout=60)  # noqa: B023
        parts[weight] = _part_of(service, "jupyter-alice.service")
    print("of the GPU, by weight beside 100:", parts)
    assert parts[900] > parts[50]
    assert weights()["jupyter-bob.service"] == 100
    for worker in (alice, bob, gold):
        assert worker.quit()


def _part_of(service: Service, unit: str, seconds: float = 4.0) -> float:
    """What a unit had of the GPU's time."""

    def held() -> dict[str, float]:
        return {Path(task["cgroup"]).name: task["gpu_seconds_held"] for task in service.tasks()}

    before = held()
    time.sleep(seconds)
    used = {name: after - before[name] for name, after in held().items()}
    return used[unit] / sum(used.values())
