"""Tasks whose processes have nothing on the GPU for a while: what is kept of them, and who gets it. No GPU needed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from runlist.daemon.tasks.managed import Away, ManagedTask
from runlist.model import Task, TaskClass, TaskKey
from runlist.proc.process import Program
from runlist.protocol.rm_autogen import Status
from runlist.rate import Rate
from tests.fixtures.adoption import PID, child, own_usage
from tests.fixtures.fake_rm import DEVICE, UUIDS
from tests.fixtures.manager import NO_PROCESS, Managed, a_daemon

# As they are to be: taken from the code they would hold whatever it says.
MOST_LOSSES = 3

pytestmark = pytest.mark.usefixtures("own_usage")
__all__ = ["own_usage"]


def closes_its_contexts(world: Managed) -> ManagedTask:
    """The tenant's contexts are gone, and the daemon has seen that."""
    task = world.task()
    for file in world.rm.processes[PID].values():
        for client in file.clients.values():
            for device in client.of_class(DEVICE):
                client.free(device)
    world.checks.check(files=True, slices=True)
    assert world.processes.managed == {}
    return task


def test_a_task_that_closed_its_contexts_keeps_its_settings_until_it_has_others() -> None:
    async def test(world: Managed) -> None:
        world.tenant()
        root = world.root(weight="300")
        await world.adopt(root)
        world.manager.change(PID, {"weight": "200"}, 0)
        world.task().counts["suspensions"] += 3
        task = closes_its_contexts(world)
        assert world.processes.expected == {PID}
        assert world.processes.away(PID) == [task]
        assert world.processes.away(NO_PROCESS) == []
        assert not task.counts  # its GPU has them
        world.checks.check(files=True, slices=True)
        assert world.processes.expected == {PID}
        world.tenant()
        await world.adopt(root)
        assert world.task() is task
        assert (task.task.weight, task.task.contexts) == (200, 1)
        assert world.processes.expected == set()

    a_daemon(test)


@pytest.mark.parametrize("code", [Status.INVALID_CLIENT, Status.INVALID_OBJECT_HANDLE])
def test_a_task_whose_client_is_freed_before_its_file_is_closed_keeps_its_settings_too(code: Status) -> None:
    """A check may come between the two, and while the client is just being freed."""

    async def test(world: Managed) -> None:
        world.tenant()
        root = world.root()
        await world.adopt(root)
        world.manager.change(PID, {"weight": "200"}, 0)
        task = world.task()
        for copy in world.borrower.copies:
            copy.on_control = lambda call: code
        world.checks.correct(PID)
        assert world.processes.managed == {}
        assert world.processes.expected == {PID}
        assert world.processes.away(PID) == [task]
        world.tenant()
        await world.adopt(root)
        assert world.task().task.weight == 200

    a_daemon(test)


def test_one_of_which_a_control_failed_is_found_again_and_not_for_ever() -> None:
    """What failed was free for a moment, most likely. It was left for good, with what a user had set."""

    async def test(world: Managed) -> None:
        world.tenant()
        root = world.root()
        await world.adopt(root)
        world.manager.change(PID, {"weight": "200"}, 0)
        world.manager.suspend(PID, True, 0)
        task = world.task()
        for loss in range(1, MOST_LOSSES + 2):
            world.processes.lose(PID, OSError("gone"))
            assert world.processes.managed == {}
            assert world.borrower.copies[-1].clients  # its own client is untouched
            assert world.processes.expected == ({PID} if loss <= MOST_LOSSES else set())
            await world.adopt(root)
            assert (world.task() is task) == (loss <= MOST_LOSSES)
            assert world.task().task.suspended == (loss <= MOST_LOSSES)
        world.processes.lose(NO_PROCESS, OSError("gone"))

    a_daemon(test)


def test_what_failed_long_ago_is_forgiven(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that has its contexts anew every day was left for good on the fourth day."""
    clock = SimpleNamespace(now=0.0)

    async def test(world: Managed) -> None:
        monkeypatch.setattr("runlist.rate.time", SimpleNamespace(monotonic=lambda: clock.now))
        world.tenant()
        root = world.root()
        await world.adopt(root)
        task = world.task()
        for _ in range(3 * MOST_LOSSES):
            world.processes.lose(PID, OSError("gone"))
            await world.adopt(root)
            assert world.task() is task
            clock.now += 24 * 3600.0
        world.processes._losses[PID + 1, 7] = Rate(1.0, 1.0)  # of one that has ended
        world.processes.lose(PID, OSError("gone"))
        assert [pid for pid, _ in world.processes._losses] == [PID]

    a_daemon(test)


def test_one_that_comes_back_on_another_gpu_is_the_same_task_there() -> None:
    async def test(world: Managed) -> None:
        world.tenant()
        root = world.root(weight="300")
        await world.adopt(root)
        task = closes_its_contexts(world)
        world.tenant(gpu=UUIDS[1])
        await world.adopt(root)
        assert world.task(gpu=UUIDS[1]) is task
        assert task.task.key == TaskKey(PID, UUIDS[1])
        assert [each.task.key.gpu for each in world.tasks()] == [UUIDS[1]]

    a_daemon(test)


def test_another_program_in_its_place_is_another_task() -> None:
    async def test(world: Managed) -> None:
        with child() as pid:
            root = world.root()
            key = TaskKey(pid, UUIDS[0])
            task = ManagedTask(Task(key, TaskClass.NORMAL, "x", 0, 0.0), root=root)
            ended = Program(pid, 1, 0)
            root.away[key] = Away(ended, task)
            assert root.come_back(TaskKey(PID, UUIDS[0])) is None
            assert key in root.away  # of another process
            world.checks.check(files=False, slices=False)
            assert root.away == {}
            root.away[key] = Away(ended, task)
            assert root.come_back(key) is None
            assert root.away == {}

    a_daemon(test)


def test_what_is_detached_while_it_is_away_is_not_taken_again() -> None:
    async def test(world: Managed) -> None:
        world.tenant()
        with child() as pid:
            root = world.root()
            root.away[TaskKey(pid, UUIDS[0])] = Away(
                Program.of(pid), ManagedTask(Task(TaskKey(pid, UUIDS[0]), TaskClass.NORMAL, "x", 0, 0.0), root=root)
            )
            await world.adopt(root)
            assert world.manager.detach(pid, 0) == []
            assert root.away == {}
            assert pid in root.excluded
            assert list(world.processes.roots) == [PID]

    a_daemon(test)
