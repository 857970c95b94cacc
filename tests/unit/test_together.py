"""Tasks that the GPU knows as one."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runlist.daemon.requests.together import pids_together, sms_of, together_notes
from runlist.daemon.tasks.managed import ManagedTask, Sms
from runlist.errors import NoPermissionError
from runlist.model import Task, TaskClass, TaskKey
from tests.fixtures.adoption import PID, child, own_usage
from tests.fixtures.daemon import NOBODY, needs_root, wait_for
from tests.fixtures.fake_rm import UUIDS
from tests.fixtures.manager import NO_PROCESS, Managed, a_daemon
from tests.unit.test_manager import enabled

__all__ = ["own_usage"]


def test_tasks_that_the_gpu_knows_as_one() -> None:
    key = TaskKey(5, "GPU-0")
    task = ManagedTask(Task(key, TaskClass.NORMAL, "x", 0, time.monotonic()))
    scheduler: Any = SimpleNamespace(fellows=lambda task: [9, 7], tasks={})
    census: Any = SimpleNamespace(mps_clients=lambda gpu: {5, 8, 7} if gpu == "GPU-0" else set())
    assert pids_together(task, scheduler, census) == [7, 8, 9]
    task.task = replace(task.task, key=TaskKey(5, "GPU-1"))
    assert pids_together(task, scheduler, census) == [7, 9]  # it is a client on another GPU
    scheduler.fellows = lambda task: []
    assert pids_together(task, scheduler, census) is None
    task.task = replace(task.task, key=TaskKey(5, "GPU-0"))
    scheduler.tasks = {
        TaskKey(7, "GPU-0"): SimpleNamespace(group_ids={3}),
        TaskKey(8, "GPU-0"): SimpleNamespace(group_ids=set()),
    }
    assert pids_together(task, scheduler, census) == [8]  # the group of 7 is known: it is another server's
    task.task = replace(task.task, key=TaskKey(5, "GPU-1"))
    line = "process 5 is a client of an MPS server: it runs, stops and has a slice together with the server's other "
    assert together_notes([task], [[7, 8]]) == [f"{line}clients (7, 8)"]
    assert together_notes([task], [[]]) == [f"{line}clients (none now)"]
    assert together_notes([task, task], [None, [7]]) == [f"{line}clients (7)"]
    with pytest.raises(ValueError, match="zip"):
        together_notes([task], [])


@pytest.mark.parametrize(
    ("environment", "given"),
    [
        ({"RUNLIST_SMS": "54", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40"}, Sms(54, 40)),
        ({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "12.5"}, Sms(None, 12.5)),
        ({"RUNLIST_SMS": "1", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100"}, Sms(1, 100)),
        ({"RUNLIST_SMS": "many", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "101"}, Sms()),
        ({"RUNLIST_SMS": "-3", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "nan"}, Sms()),
        ({"RUNLIST_SMS": "9" * 400, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "0"}, Sms()),
    ],
)
def test_the_sms_that_a_client_was_started_with(environment: Mapping[str, str], given: Sms) -> None:
    with subprocess.Popen(["sleep", "60"], env={"PATH": "/usr/bin:/bin", **environment}) as process:
        key = TaskKey(process.pid, "GPU-0")
        task = ManagedTask(Task(key, TaskClass.NORMAL, "x", 0, time.monotonic()))
        # Popen returns when the kernel has closed its pipe, which is before it has put the variables in place.
        wait_for(lambda: Path(f"/proc/{process.pid}/environ").read_bytes())
        assert sms_of(task) == given
        process.kill()
        process.wait()
        assert sms_of(task) == given  # it is asked once


@needs_root
@pytest.mark.usefixtures("own_usage")
def test_only_root_suspends_those_who_stop_together_with_a_process_of_somebody_else() -> None:
    """Clients of one MPS server: a user may stop all of them where all are that user's."""

    async def test(world: Managed) -> None:
        with child(NOBODY) as mine, child(NOBODY) as too:
            clients = world.tree([mine])
            root = await world.launched(mine, NOBODY)
            await world.adopt(root, mine)
            world.census.mps_clients = lambda gpu: {mine, too}
            world.manager.suspend(mine, True, NOBODY)
            assert not enabled(clients[mine])
            world.manager.suspend(mine, False, NOBODY)
            world.census.mps_clients = lambda gpu: {mine, too, PID}
            for uid, others in ((NOBODY, f"{PID}"), (1, f"({PID}|{too})")):  # whoever it is that the tree belongs to
                world.give(root, uid)
                said = f"process {others} of another user .* only root may suspend"
                with pytest.raises(NoPermissionError, match=said):
                    world.manager.suspend(mine, True, uid)
                assert enabled(clients[mine])
                assert world.task(mine).suspended_by == {}
            world.manager.suspend(mine, True, 0)
            assert not enabled(clients[mine])
            world.manager.suspend(mine, False, 1)  # to resume them stops nobody
            assert enabled(clients[mine])
            world.census.mps_clients = lambda gpu: {mine, too, NO_PROCESS}  # one that ended is nobody's
            world.give(root, NOBODY)
            world.manager.suspend(mine, True, NOBODY)

    a_daemon(test)


@needs_root
@pytest.mark.usefixtures("own_usage")
def test_who_was_suspended_alone_goes_on_when_somebody_else_comes() -> None:
    async def test(world: Managed) -> None:
        with child(NOBODY) as mine:
            clients = world.tree([mine])
            root = await world.launched(mine, NOBODY)
            await world.adopt(root, mine)
            fellows: list[int] = []
            world.gpus.scheduler(UUIDS[0]).fellows = lambda task: fellows  # type: ignore[method-assign]
            for uid, stays in ((NOBODY, False), (0, True)):
                fellows[:] = [mine]
                world.manager.suspend(mine, True, uid)
                world.manager.suspend(mine, True, NOBODY)  # what root asked for stays root's
                world.census.mps_clients = lambda gpu: {mine, PID}
                world.manager.look_who_joined()  # of whose server that one is nobody knows
                assert not enabled(clients[mine])
                fellows[:] = [PID]
                world.manager.look_who_joined()
                assert enabled(clients[mine]) != stays
                assert bool(world.task(mine).suspended_by) == stays
                world.census.mps_clients = lambda gpu: set()

    a_daemon(test)


@needs_root
@pytest.mark.usefixtures("own_usage")
def test_users_with_a_server_each_are_not_in_each_others_way() -> None:
    async def test(world: Managed) -> None:
        with child(NOBODY) as mine, child(1) as theirs:
            clients = world.tree([mine, theirs])
            for pid, uid in ((mine, NOBODY), (theirs, 1)):
                await world.adopt(await world.launched(pid, uid), pid)
            world.census.mps_clients = lambda gpu: {mine, theirs}
            world.manager.suspend(mine, True, NOBODY)
            world.manager.look_who_joined()
            assert [enabled(clients[pid]) for pid in (mine, theirs)] == [False, True]

    a_daemon(test)
