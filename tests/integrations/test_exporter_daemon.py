"""The exporter of a real daemon, whose tasks come and go: what they used is told, to those who may know it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bench.harness.gpu_log import GpuLog
from runlist.client import Client
from runlist.daemon.gpu.ledger import SETTLED_S
from runlist.integrations.exporter import serve
from runlist.workloads.process import WorkloadProcess
from tests.conftest import Tenant
from tests.fixtures.daemon import (
    NOBODY,
    As,
    Commands,
    Daemon,
    Worker,
    commands,
    daemon,
    group_of_nobody,
    needs_root,
    short_path,
    start_daemon,
    wait_for,
    worker,
)

__all__ = ["commands", "daemon", "short_path", "start_daemon", "worker"]

EVERYBODY = '[[rule]]\nset.class = "normal"\n'
HELD = "runlist_workload_gpu_held_seconds_total"
StartDaemon = Callable[..., Daemon]


def told(name: str, *dialects: str, **labels: str) -> float:
    """The sum of a metric's series with these labels; 0 without any."""
    exporter = serve.Exporter(serve.Options(dialects=dialects, per_process=True))
    return counted(exporter.text(exporter.look(), openmetrics=False)[1].decode(), name, **labels)


def counted(text: str, name: str, **labels: str) -> float:
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "rules.toml"
    path.write_text(EVERYBODY)
    return path


def short_task(tenant: Tenant, commands: Commands, daemon: Daemon) -> WorkloadProcess:
    """It works from its first context on, and is killed in the midst of it, as soon as it was found: of one that ends
    before, only the GPU's own total tells.
    """
    process = tenant("batch", "--kernel-ms", "1", environment=commands.environment)
    process.run()
    time.sleep(0.2)
    wait_for(lambda: process.pid in {task.pid for task in daemon.client.ps()})
    process.kill()
    return process


def test_tasks_that_come_and_go_between_two_looks_are_told_as_the_switch_log_has_them(
    start_daemon: StartDaemon, rules: Path, commands: Commands, tenant: Tenant, worker: Callable[..., Worker]
) -> None:
    running = start_daemon("--rules", str(rules))
    stays = worker()
    wait_for(running.client.ps)
    with GpuLog() as log:
        running.client.suspend(stays.pid)  # else it has the GPU, idle, between the two looks that begin this
        time.sleep(SETTLED_S + 0.5)
        wait_for(lambda: told(HELD) > 0, "what it used to be settled")
        before, began = told(HELD), log.forget()
        pids = []
        for _ in range(4):
            pids.append(short_task(tenant, commands, running).pid)
            log.read()  # before some of it is lost
        pids.append(stays.pid)
        ended = told("runlist_workload_tasks_ended_total")
        assert {task.pid for task in running.client.ps()} <= {stays.pid, pids[3]}
        wait_for(lambda: told("runlist_workload_tasks_ended_total") == 4, "the last one to be settled")
        time.sleep(0.5)
        span, after = log.span(began), told(HELD)
        known = sum(span.held(pid) for pid in pids) * span.seconds
    assert log.dropped == 0
    assert known > 0.5
    assert after - before == pytest.approx(known, rel=1e-3)
    assert told("runlist_workload_tasks_ended_total") == 4 >= ended
    assert told(HELD) >= after


def test_a_daemon_that_restarts_counts_from_zero(
    start_daemon: StartDaemon, rules: Path, commands: Commands, tenant: Tenant
) -> None:
    """A reset: then a counter is what was used since, and no more."""
    process = tenant("batch", "--kernel-ms", "1", environment=commands.environment)
    process.run()
    first = start_daemon("--rules", str(rules))
    wait_for(lambda: told(HELD) > 0.5)
    counted, started = told(HELD), told("runlist_daemon_start_time_seconds")
    first.process.terminate()
    first.process.wait()
    assert told("runlist_up") == 0
    began = time.monotonic()
    start_daemon("--rules", str(rules))
    assert told("runlist_up") == 1
    assert told("runlist_daemon_start_time_seconds") > started
    wait_for(lambda: told(HELD) > 0)
    assert told(HELD) <= min(time.monotonic() - began, counted + time.monotonic() - began)
    process.quit()


def test_what_a_task_is_and_has(daemon: Daemon, commands: Commands, worker: Callable[..., Worker]) -> None:
    one = worker()
    daemon.client.attach(one.pid, "batch", settings={"weight": 300, "cap": 40})
    user = {"user": "root"} if os.geteuid() == 0 else {}
    assert told("runlist_workload_tasks", **user, **{"class": "batch"}) == 1
    assert told("runlist_workload_weight", **user) == 300
    assert told("runlist_workload_cap_ratio", **user) == pytest.approx(0.4)
    assert told("runlist_workload_memory_used_bytes") > 0
    assert told("runlist_gpu_tasks") == 1
    text = commands.ok("exporter", "--once")
    assert counted(text, "runlist_gpu_tasks") == 1
    assert "runlist_task_" not in text
    assert told("runlist_task_weight", pid=str(one.pid)) == 300
    assert told("runlist_gpu_memory_size_bytes") == told("DCGM_FI_DEV_FB_TOTAL", "dcgm") * (1 << 20)
    assert told("DCGM_FI_DEV_FB_TOTAL", "dcgm", gpu="0") > 0
    daemon.client.suspend(one.pid)
    assert told("runlist_workload_tasks_suspended") == 1
    daemon.client.detach(one.pid)
    assert told("runlist_workload_tasks") == 0
    wait_for(lambda: told("runlist_workload_suspensions_total") >= 1, timeout=SETTLED_S + 10)


@needs_root
def test_users_are_told_of_their_own_workloads_alone(
    start_daemon: StartDaemon, commands: Commands, worker: Callable[..., Worker]
) -> None:
    daemon = start_daemon("--group", group_of_nobody())
    daemon.client.attach(worker().pid)
    wait_for(lambda: any(workload.user == 0 for workload in daemon.client.workloads()))

    def look() -> tuple[int, int]:
        with Client.open() as client:
            return len(client.workloads()), len(client.ps())

    assert As(NOBODY)(look) == (0, 0)
