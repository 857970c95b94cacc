"""Discovery on real processes: several GPUs, other handle ranges, and nothing changed by looking."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from runlist.emulated import EmulatedGpu
from runlist.errors import NoTargetError
from runlist.model import Engine
from runlist.planes.nvidia.rescue import rescue
from runlist.planes.nvidia.rm.transport import choose_driver
from tests.conftest import ON_NVIDIA
from tests.fixtures.daemon import DEFAULT_SLICES, Commands, Daemon, Slices, Worker, wait_for

Start = Callable[..., Worker]


@pytest.fixture
def two_gpus(fresh_gpu: Callable[..., EmulatedGpu], commands: Commands, monkeypatch: pytest.MonkeyPatch) -> EmulatedGpu:
    """The commands of this test see a machine of two GPUs."""
    gpu = fresh_gpu(gpus=2)
    for name, value in gpu.environment().items():
        monkeypatch.setenv(name, value)
        commands.environment[name] = value
    return gpu


def test_a_process_is_seen_as_it_is_and_not_changed(worker: Start, slices: Slices) -> None:
    tenant = worker()
    before = sorted(os.listdir(f"/proc/{tenant.pid}/fd"))
    (context,) = slices.contexts(tenant.pid)
    assert [group.engine for group in context.groups.values()] == [Engine.COMPUTE, *[Engine.COPY] * 3]
    assert [len(group.channels) for group in context.groups.values()] == [8, 4, 4, 4]
    assert slices.of(tenant.pid) == DEFAULT_SLICES
    assert sorted(os.listdir(f"/proc/{tenant.pid}/fd")) == before
    tenant.wait_for_progress()
    assert tenant.quit()


@pytest.mark.skipif(ON_NVIDIA, reason="moves the handles of the emulated driver library")
@pytest.mark.parametrize("base", ["0x5C000000", "0xABCD9000", "0x7000FF80", "0xFFFFF000"])
def test_handles_are_found_wherever_a_driver_puts_them(
    worker: Start, commands: Commands, slices: Slices, base: str
) -> None:
    tenant = worker(environment={**commands.environment, "RUNLIST_EMULATED_HANDLE_BASE": base})
    assert slices.of(tenant.pid) == DEFAULT_SLICES


def test_two_gpus_are_two_tasks(
    two_gpus: EmulatedGpu, start_daemon: Callable[..., Daemon], worker: Start, commands: Commands
) -> None:
    daemon = start_daemon()
    both, first = worker(), worker()
    both.do("open 1")
    tasks = daemon.client.attach(both.pid, "batch")
    assert len({task.gpu for task in tasks}) == 2
    assert {task.groups for task in tasks} == {4}
    daemon.client.attach(first.pid, "latency")
    on_first = next(task.gpu for task in daemon.client.ps() if task.pid == first.pid)
    slices = Slices()
    daemon.client.suspend(both.pid)
    both.assert_stopped()
    daemon.client.resume(both.pid)
    daemon.client.set(both.pid, {"timeslice": "4000"})
    assert slices.of(both.pid) == [4000] * 8
    daemon.client.release()
    assert slices.of(both.pid) == DEFAULT_SLICES * 2
    assert on_first in {task.gpu for task in tasks}
    both.wait_for_progress()
    assert both.quit()
    slices.close()


def test_a_policy_rules_each_gpu_by_itself(
    two_gpus: EmulatedGpu, start_daemon: Callable[..., Daemon], worker: Start
) -> None:
    """gpreempt takes one background task a GPU: two on different GPUs are no trouble."""
    daemon = start_daemon("--policy", "gpreempt")
    first, second = worker(), worker(idle=True)
    second.do("open 1")
    daemon.client.attach(first.pid, "batch")
    daemon.client.attach(second.pid, "batch")
    assert len({task.gpu for task in daemon.client.ps()}) == 2
    for tenant in (first, second):
        tenant.wait_for_progress()


def test_a_context_on_a_second_gpu_is_found_later(
    two_gpus: EmulatedGpu, start_daemon: Callable[..., Daemon], worker: Start
) -> None:
    daemon = start_daemon()
    tenant = worker()
    daemon.client.attach(tenant.pid, "batch")
    tenant.do("open 1")
    wait_for(lambda: len(daemon.client.ps()) == 2, "the second GPU's context")


def test_a_context_that_was_closed_is_not_missed(daemon: Daemon, worker: Start, slices: Slices) -> None:
    tenant = worker()
    daemon.client.attach(tenant.pid, "batch")
    assert tenant.do("close")["correct"]
    daemon.client.set(tenant.pid, {"class": "normal"})
    tenant.do("open")
    tenant.wait_for_progress()


def test_rescue_of_a_process_that_needs_none(worker: Start, commands: Commands) -> None:
    tenant = worker()
    assert rescue(choose_driver(), tenant.pid) == []
    tenant.wait_for_progress()
    idle = worker(idle=True)
    with pytest.raises(NoTargetError, match="has no GPU work"):
        rescue(choose_driver(), idle.pid)
