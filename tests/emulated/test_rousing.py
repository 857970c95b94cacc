"""A tenant whose channels somebody disabled: it waits for a GPU that stands idle, and the daemon has it run again."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from runlist.workloads.process import WorkloadProcess
from tests.fixtures.daemon import Commands, Daemon, Slices, task_of, wait_for


@pytest.fixture
def tenant(commands: Commands, daemon: Daemon) -> Iterator[WorkloadProcess]:
    """A batch program by `runlist run`, at work."""
    run = [sys.executable, "-m", "runlist.cli", "run", "--class", "batch", "--"]
    program = [sys.executable, "-m", "runlist.workloads.batch", "--kernel-ms", "2"]
    process = WorkloadProcess("batch", environment=commands.environment, words=[*run, *program])
    try:
        wait_for(lambda: any(task.pid == process.ready["pid"] for task in daemon.client.ps()), "the task")
        process.run()
        yield process
    finally:
        process.kill()


def test_one_that_waits_for_nothing_is_enabled_once_more(daemon: Daemon, tenant: WorkloadProcess) -> None:
    pid = tenant.ready["pid"]

    def used() -> float:
        return task_of(daemon, pid).gpu_seconds_held

    wait_for(lambda: used() > 0)
    slices = Slices()
    for context in slices.contexts(pid):
        context.suspend()  # behind the daemon's back
    wait_for(lambda: task_of(daemon, pid).roused == 1, "the daemon to see it")
    before = used()
    wait_for(lambda: used() > before, "work")
    task = task_of(daemon, pid)
    assert task.enabled
    assert slices.compute(pid) == (task.timeslice_us or slices.compute(pid))
    slices.close()
