"""Room for a latency-critical program that comes, by what the kernel tells of its first channel group."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from runlist.emulated import EmulatedGpu
from runlist.planes.nvidia import nvml
from runlist.planes.nvidia.rm.transport import choose_driver
from tests.conftest import ON_NVIDIA
from tests.emulated.test_kernel_plane import WAITS, managed, seeing, twin
from tests.fixtures.daemon import Commands, Daemon, Worker, wait_for
from tests.fixtures.kernel import needs_kernel

__all__ = ["seeing", "twin"]
pytestmark = needs_kernel
Start = Callable[..., Worker]


@pytest.fixture
def two_gpus(commands: Commands, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with several."""
    if ON_NVIDIA:
        with nvml.session(choose_driver()):
            if (count := len(nvml.gpus())) < 2:
                pytest.skip(f"this machine has {count} GPU")
        return
    fresh_gpu: Callable[..., EmulatedGpu] = request.getfixturevalue("fresh_gpu")
    for name, value in fresh_gpu(gpus=2).environment().items():
        monkeypatch.setenv(name, value)
        commands.environment[name] = value


def test_batch_jobs_make_room_for_a_latency_critical_program_before_it_is_managed(
    seeing: Daemon, worker: Start
) -> None:
    jobs = [worker(), worker()]
    for job in jobs:
        seeing.client.attach(job.pid, "batch")
    critical = worker(idle=True)
    seeing.client.attach(critical.pid, "latency", wait=True)
    other = worker(idle=True)
    seeing.client.attach(other.pid, "normal", wait=True)
    other.do("open")
    wait_for(partial(managed, seeing, other.pid))
    assert [task.room_ms for task in managed(seeing, other.pid)] == [None]
    critical.do("open")
    wait_for(partial(managed, seeing, critical.pid))
    (task,) = managed(seeing, critical.pid)
    assert task.room_ms is not None
    assert 0 < task.room_ms < task.attach_ms
    critical.wait_for_progress()
    critical.do("pause")
    for job in jobs:
        job.wait_for_progress()


def test_of_several_gpus_room_is_made_on_that_to_which_it_comes(
    twin: Path, two_gpus: None, start_daemon: Callable[..., Daemon], worker: Start
) -> None:
    daemon = start_daemon()
    wait_for(lambda: WAITS in daemon.log.read_text())
    jobs = [worker(), worker(idle=True)]
    jobs[1].do("open 1")
    for job in jobs:
        daemon.client.attach(job.pid, "batch")
    critical = worker(idle=True)
    daemon.client.attach(critical.pid, "latency", wait=True)
    critical.do("open 1")
    wait_for(partial(managed, daemon, critical.pid))
    (task,) = managed(daemon, critical.pid)
    assert task.gpu == managed(daemon, jobs[1].pid)[0].gpu != managed(daemon, jobs[0].pid)[0].gpu
    assert task.room_ms is not None
    assert 0 < task.room_ms < task.attach_ms
    assert managed(daemon, jobs[0].pid)[0].suspensions == 0
    critical.do("pause")
    for job in jobs:
        job.wait_for_progress()


def test_they_run_on_where_it_is_gone_before_it_is_managed(seeing: Daemon, worker: Start, tmp_path: Path) -> None:
    job, critical = worker(), worker(idle=True)
    seeing.client.attach(job.pid, "batch")
    seeing.client.attach(critical.pid, "latency", wait=True)
    critical.send("open")
    wait_for(lambda: [task.suspensions for task in managed(seeing, job.pid)] != [0])
    critical.kill()
    job.wait_for_progress()
    wait_for(lambda: [task.enabled for task in seeing.client.ps()] == [True])
