"""What users ask for, as the manager does it: for whom, to what, and all of it or nothing. The driver is in memory."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from runlist.daemon.tasks.managed import Asked, Away, Root, SuspendedBy
from runlist.errors import NoPermissionError, NoTargetError, RunlistError, UsageError
from runlist.model import Appear, Event, TaskClass
from runlist.planes.process.region import create
from runlist.proc.borrow import OwnRight
from runlist.proc.process import Program
from tests.fixtures.adoption import FOUND, OF_CHILD, PID, child, levels, own_usage, slices
from tests.fixtures.daemon import NOBODY, needs_root
from tests.fixtures.fake_rm import INVALID_ARGUMENT, UUIDS
from tests.fixtures.manager import ME, NO_PROCESS, Managed, a_daemon, enabled

pytestmark = pytest.mark.usefixtures("own_usage")
__all__ = ["own_usage"]

GiB = 1 << 30


# -- set -------------------------------------------------------------------------------------------


def test_a_change_of_a_root_is_in_force_and_holds_for_what_comes_later() -> None:
    async def test(world: Managed) -> None:
        with child() as one, child() as later:
            clients = world.tree([one])
            root = await world.launched()
            for pid in (PID, one):
                await world.adopt(root, pid)
            outcome = world.manager.change(PID, {"class": "batch", "weight": "70"}, ME)
            assert {task.task.key.pid for task in outcome.tasks} == {PID, one}
            assert outcome.notes == []
            world.tenant(later, OF_CHILD)
            await world.adopt(root, later)
            for pid in (PID, one, later):
                assert (world.task(pid).task.task_class, world.task(pid).task.weight) == (TaskClass.BATCH, 70)
            assert any(slices(client) != FOUND for client in clients.values())
            assert root.settings == {"class": "batch", "weight": "70"}

    a_daemon(test)


def test_a_change_of_a_child_is_of_that_child_alone() -> None:
    async def test(world: Managed) -> None:
        with child() as one, child() as later:
            world.tree([one])
            root = await world.launched(weight="30")
            for pid in (PID, one):
                await world.adopt(root, pid)
            (task,) = world.manager.change(one, {"class": "batch", "weight": "70", "timeslice": "5000"}, ME).tasks
            assert task is world.task(one)
            assert root.settings == {"weight": "30"}
            world.tenant(later, OF_CHILD)
            await world.adopt(root, later)
            for pid in (PID, later):
                other = world.task(pid).task
                assert (other.task_class, other.weight, other.timeslice_us) == (TaskClass.NORMAL, 30, None)

    a_daemon(test)


def test_a_memory_limit_set_on_a_child_is_of_the_whole_tree(tmp_path: Path) -> None:
    async def test(world: Managed) -> None:
        with child() as one:
            world.tree([one])
            root = await world.launched()
            root.quota.take(create(tmp_path, strict=False)[1])
            for pid in (PID, one):
                await world.adopt(root, pid)
            world.manager.change(one, {"memory": "3G", "weight": "7"}, ME)
            assert root.quota.limit_on(UUIDS[0]) == root.quota.limit_on(UUIDS[1]) == 3 * GiB
            assert root.settings == {"memory": "3G"}
            with pytest.raises(UsageError, match="let no program use a GPU"):
                world.manager.change(one, {"memory": "1"}, ME)
            assert root.quota.limit_on(UUIDS[0]) == root.quota.limit_on(UUIDS[1]) == 3 * GiB
            (note,) = world.manager.change(one, {"memory": "90G"}, ME).notes
            assert note == "a limit of 90.0 GiB has no effect: the GPU has 80.0 GiB"
            world.manager.change(PID, {"memory": "max"}, ME)
            assert root.quota.limit_on(UUIDS[0]) is None

    a_daemon(test)


@pytest.mark.parametrize("settings", [{"weight": "0"}, {"wieght": "1"}, {"burst": "5ms"}, {"class": "deadline"}])
def test_a_change_that_cannot_be_changes_nothing(settings: dict[str, str]) -> None:
    async def test(world: Managed) -> None:
        client = world.tenant()
        root = await world.launched()
        await world.adopt(root)
        before, in_force = world.task().task, slices(client)
        with pytest.raises(RunlistError):
            world.manager.change(PID, {"cap": "max", **settings}, ME)
        assert (world.task().task, slices(client), root.settings) == (before, in_force, {})

    a_daemon(test)


def test_a_change_that_one_of_a_tree_refuses_is_of_none(tmp_path: Path) -> None:
    """Neither settings, nor controls of the driver, nor the limit."""

    async def test(world: Managed) -> None:
        with child() as one:
            clients = world.tree([one])
            root = await world.launched(weight="30")
            root.quota.take(create(tmp_path, strict=False)[1])
            for pid in (PID, one):
                await world.adopt(root, pid)
            world.manager.change(PID, {"memory": "2G", "interleave": "medium"}, ME)
            before = [world.task(pid).task for pid in (PID, one)]
            in_force = [(slices(client), levels(client)) for client in clients.values()]
            refused = world.gpus.scheduler(UUIDS[0]).loop

            def refusal(task: object, *_: object) -> str | None:
                return "no room" if task.key.pid == one else None  # type: ignore[attr-defined]

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(refused, "refusal", refusal)
                with pytest.raises(RunlistError, match="no room"):
                    world.manager.change(PID, {"weight": "99", "memory": "1G", "interleave": "high"}, ME)
            assert [world.task(pid).task for pid in (PID, one)] == before
            assert [(slices(client), levels(client)) for client in clients.values()] == in_force
            assert [world.task(pid).controls for pid in (PID, one)] == [{"interleave": "medium"}] * 2
            assert root.quota.limit_on(UUIDS[0]) == 2 * GiB
            assert root.settings == {"weight": "30", "memory": "2G", "interleave": "medium"}
            world.manager.change(PID, {"weight": "99"}, ME)  # and all of it goes on
            assert world.task(one).task.weight == 99

    a_daemon(test)


def test_the_policy_is_told_of_each_change_and_of_one_that_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: Managed) -> None:
        world.tenant()
        await world.adopt(await world.launched(weight="30"))
        scheduler, told = world.gpus.scheduler(UUIDS[0]), []
        tell = scheduler.tell

        def hear(event: Event) -> None:
            if isinstance(event, Appear):
                told.append(event.task.weight)
            tell(event)

        monkeypatch.setattr(scheduler, "tell", hear)
        world.manager.change(PID, {"weight": "40"}, ME)
        assert told == [40]
        world.task().contexts[1].handle.on_control = (  # type: ignore[attr-defined]
            lambda call: INVALID_ARGUMENT if call.params[:8] == (7_000).to_bytes(8, "little") else None
        )
        with pytest.raises(RunlistError):
            world.manager.change(PID, {"weight": "50", "timeslice": "7000"}, ME)
        assert told == [40, 50, 40]

    a_daemon(test)


def test_a_change_that_the_driver_refuses_is_undone() -> None:
    async def test(world: Managed) -> None:
        client = world.tenant()
        await world.adopt(await world.launched())
        file = world.task().contexts[1].handle
        world.task().contexts[1].handle.on_control = (  # type: ignore[attr-defined]
            lambda call: INVALID_ARGUMENT if call.params[:8] == (7_000).to_bytes(8, "little") else None
        )
        before, in_force = world.task().task, slices(client)
        with pytest.raises(RunlistError):
            world.manager.change(PID, {"timeslice": "7000"}, ME)
        assert (world.task().task, slices(client)) == (before, in_force)
        assert not file.closed  # type: ignore[attr-defined]
        world.manager.change(PID, {"timeslice": "6000"}, ME)
        assert slices(client) == [6000] * 4

    a_daemon(test)


# -- for whom --------------------------------------------------------------------------------------


def requests(world: Managed, pid: int, uid: int) -> list[Callable[[], object]]:
    return [
        lambda: world.manager.change(pid, {"weight": "7"}, uid),
        lambda: world.manager.suspend(pid, True, uid),
        lambda: world.manager.suspend(pid, False, uid),
        lambda: world.manager.detach(pid, uid),
    ]


@needs_root
def test_another_user_may_nothing_and_its_owner_and_root_may_all() -> None:
    async def test(world: Managed) -> None:
        with child(NOBODY) as pid:
            world.tenant(pid, OF_CHILD)
            root = await world.launched(pid, NOBODY)
            await world.adopt(root, pid)
            before = world.task(pid).task
            for request in requests(world, pid, 1000):
                with pytest.raises(NoPermissionError, match=f"process {pid} belongs to user {NOBODY}"):
                    request()
            for refused in (world.manager.attach(pid, {}, True, 1000), world.launched(pid, 1000)):
                with pytest.raises(NoPermissionError):
                    await refused
            world.manager.release(1000)
            assert world.task(pid).task == before
            assert (world.manager.tasks(1000), world.manager.visible(1000)) == ([], [])
            for uid in (0, NOBODY):
                assert world.manager.tasks(uid) == world.manager.visible(uid) == [world.task(pid)]
                world.manager.change(pid, {"weight": "9"}, uid)
            with pytest.raises(NoPermissionError, match="only root and the daemon's own user may set interleave"):
                world.manager.change(pid, {"interleave": "high"}, NOBODY)
            world.manager.change(pid, {"interleave": "high"}, 0)

    a_daemon(test)


def test_what_is_gone_or_not_managed_is_no_target() -> None:
    async def test(world: Managed) -> None:
        with child() as pid:
            for request in requests(world, pid, ME):
                with pytest.raises(NoTargetError, match="is not managed: attach it first"):
                    request()
        for request in requests(world, NO_PROCESS, ME):
            with pytest.raises(NoTargetError, match="does not exist"):
                request()

    a_daemon(test)


@needs_root
def test_release_is_of_ones_own_and_root_s_of_all() -> None:
    async def test(world: Managed) -> None:
        with child(NOBODY) as pid:
            clients = world.tree([pid])
            await world.adopt(await world.launched())
            await world.adopt(await world.launched(pid, NOBODY), pid)
            assert world.manager.release(NOBODY) == []
            assert list(world.processes.roots) == list(world.processes.managed) == [PID]
            assert slices(clients[pid]) == FOUND
            await world.adopt(await world.launched(pid, NOBODY), pid)
            world.manager.release(0)
            assert (world.processes.roots, world.processes.managed) == ({}, {})
            assert slices(clients[PID]) == slices(clients[pid]) == FOUND

    a_daemon(test)


# -- attach, detach --------------------------------------------------------------------------------


def test_attach_is_all_or_nothing_and_a_second_one_is_a_change() -> None:
    async def test(world: Managed) -> None:
        with pytest.raises(NoTargetError, match="has no GPU context now"):
            await world.manager.attach(PID, {}, False, ME)
        assert world.nothing_is_left()
        assert world.processes.roots == {}
        with pytest.raises(UsageError):
            await world.manager.attach(PID, {"weight": "0"}, True, ME)
        assert world.processes.roots == {}
        assert (await world.manager.attach(PID, {"weight": "7"}, True, ME)).tasks == []
        root = world.processes.roots[PID]
        assert not root.awaited
        root.borrowers = (world.borrower,)
        world.tenant()
        await world.adopt(root)
        (task,) = (await world.manager.attach(PID, {"weight": "8"}, False, ME)).tasks
        assert task.task.weight == 8
        assert world.processes.roots == {PID: root}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OwnRight, "borrow", lambda *_: pytest.fail("nothing is to be borrowed"))
        a_daemon(test)


def test_what_attach_took_is_told_of_all_that_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the request until all of it is managed."""

    async def test(world: Managed) -> None:
        monkeypatch.setattr(OwnRight, "borrow", lambda self, pid, pidfd, fd: world.borrower.borrow(pid, pidfd, fd))
        world.borrower.meanwhile = lambda: time.sleep(0.03)
        with child() as one:
            world.tree([one])
            started = time.perf_counter()
            outcome = await world.manager.attach(PID, {"class": "batch"}, False, ME)
            took_ms = (time.perf_counter() - started) * 1e3
            assert {task.task.key.pid for task in outcome.tasks} == {PID, one}
            for task in outcome.tasks:
                assert 30 <= task.discovery_ms < task.attach_ms <= took_ms
                assert task.attach_ms >= 60
                assert task.reached_by == "own right"

    a_daemon(test)


@needs_root
def test_only_its_user_and_root_attach_a_process() -> None:
    async def test(world: Managed) -> None:
        with child(NOBODY) as pid:
            with pytest.raises(NoPermissionError, match=f"process {pid} belongs to user {NOBODY}"):
                await world.manager.attach(pid, {}, True, 1000)
            assert world.processes.roots == {}
            await world.manager.attach(pid, {}, True, NOBODY)
            assert list(world.processes.roots) == [pid]

    a_daemon(test)


def test_to_attach_what_is_managed_below_another_is_a_change() -> None:
    async def test(world: Managed) -> None:
        with child() as one:
            world.tree([one])
            root = await world.launched()
            await world.adopt(root, one)
            (task,) = (await world.manager.attach(one, {"weight": "8"}, False, ME)).tasks
            assert (task.task.key.pid, task.task.weight) == (one, 8)
            assert list(world.processes.roots) == [PID]

    a_daemon(test)


def test_the_first_process_is_attached_only_for_what_it_has_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: Managed) -> None:
        with pytest.raises(NoTargetError, match="every process here descends from it"):
            await world.manager.attach(1, {}, True, 0)
        assert world.processes.roots == {}

        async def everything_of(root: Root) -> None:
            """Of all processes that there are."""

        monkeypatch.setattr(world.search, "everything_of", everything_of)
        monkeypatch.setattr(world.adoption._finder, "may_have_work", lambda pid: pid == 1)
        await world.manager.attach(1, {}, True, 0)
        assert list(world.processes.roots) == [1]

    a_daemon(test)


def test_a_child_that_is_detached_stays_so_and_the_others_go_on() -> None:
    async def test(world: Managed) -> None:
        with child() as one:
            clients = world.tree([one])
            root = await world.launched(**{"class": "batch"})
            for pid in (PID, one):
                await world.adopt(root, pid)
            assert world.manager.detach(one, ME) == []
            assert slices(clients[one]) == FOUND
            await world.adopt(root, one)
            assert list(world.processes.managed) == [PID]
            assert slices(clients[PID]) == [1] * 4  # alone now, and so at once at a tiny slice
            assert world.manager.detach(PID, ME) == []
            assert world.processes.roots == {}
            assert slices(clients[PID]) == FOUND

    a_daemon(test)


# -- suspend, resume -------------------------------------------------------------------------------


def test_suspend_and_resume() -> None:
    async def test(world: Managed) -> None:
        client = world.tenant()
        await world.adopt(await world.launched())
        (task,) = world.manager.suspend(PID, True, ME)
        assert (enabled(client), task.task.suspended, list(task.suspended_by)) == (False, True, [SuspendedBy.USER])
        world.manager.suspend(PID, True, ME)  # it is so already
        world.manager.change(PID, {"weight": "7"}, ME)
        assert not enabled(client)
        world.manager.suspend(PID, False, ME)
        assert (enabled(client), task.task.suspended, task.suspended_by) == (True, False, {})
        world.manager.suspend(PID, False, ME)  # and this
        assert enabled(client)

    a_daemon(test)


@pytest.mark.parametrize("cause", [SuspendedBy.ROOM, SuspendedBy.MEMORY])
@pytest.mark.parametrize("uid", [0, 1000])
def test_who_may_resume_what_the_daemon_keeps_off(uid: int, cause: SuspendedBy) -> None:
    async def test(world: Managed) -> None:
        client = world.tenant()
        root = await world.launched()
        await world.adopt(root)
        world.give(root, 1000)
        world.task().suspend_for(cause, "over its limit")
        world.gpus.run_all()
        assert not enabled(client)
        may = uid == 0 and cause is SuspendedBy.ROOM
        with contextlib.nullcontext() if may else pytest.raises(RunlistError, match=r"limit|only root may resume"):
            world.manager.suspend(PID, False, uid)
        assert enabled(client) is may
        world.manager.suspend(PID, True, uid)
        world.manager.suspend(PID, False, uid)  # one's own is let go, the other cause stays
        assert enabled(client) is may
        assert (cause in world.task().suspended_by) is not may

    a_daemon(test)


def test_a_suspend_that_fails_leaves_all_as_it_was() -> None:
    async def test(world: Managed) -> None:
        with child() as one:
            clients = world.tree([one])
            root = await world.launched()
            for pid in (PID, one):
                await world.adopt(root, pid)
            (context,) = world.task(one).contexts.values()
            failing = context.handle
            failing.on_control = lambda call: INVALID_ARGUMENT if call.command == 0x2080110B else None  # type: ignore[attr-defined]
            with pytest.raises(RunlistError):
                world.manager.suspend(PID, True, ME)
            assert [world.task(pid).suspended_by for pid in (PID, one)] == [{}, {}]
            assert all(enabled(client) for client in clients.values())
            failing.on_control = lambda call: None  # type: ignore[attr-defined]

    a_daemon(test)


def test_a_process_without_a_context_takes_part_in_all_or_none() -> None:
    async def test(world: Managed) -> None:
        with child() as one:
            world.tree([one])
            root = await world.launched()
            for pid in (PID, one):
                await world.adopt(root, pid)
            process = world.processes.managed[one]
            world.processes.drop(process, process.keys(), by_itself=True)
            (away,) = world.processes.away(one)
            before = away.task
            (context,) = world.task().contexts.values()
            context.handle.on_control = lambda call: INVALID_ARGUMENT  # type: ignore[attr-defined]
            with pytest.raises(RunlistError):
                world.manager.suspend(PID, True, ME)
            with pytest.raises(RunlistError):
                world.manager.change(PID, {"timeslice": "7000", "interleave": "high"}, ME)
            assert (away.task, away.suspended_by, away.controls) == (before, {}, {})
            context.handle.on_control = lambda call: None  # type: ignore[attr-defined]
            world.manager.suspend(PID, True, ME)
            world.manager.change(PID, {"timeslice": "7000", "interleave": "high"}, ME)
            assert (away.task.timeslice_us, away.task.suspended, away.controls) == (7000, True, {"interleave": "high"})
            world.manager.suspend(PID, False, ME)
            assert not away.task.suspended

    a_daemon(test)


def test_one_that_waits_for_its_contexts_is_detached_though_it_has_nothing_now() -> None:
    async def test(world: Managed) -> None:
        with child() as one:
            root = await world.launched()
            await world.manager.attach(one, {"weight": "8"}, True, ME)
            assert root.asked_of.keys() == {one}
            assert world.manager.detach(one, ME) == []
            assert (root.asked_of, root.excluded) == ({}, set())  # what was asked for it goes, and nothing else
            root.asked_of[one] = Asked(Program.of(one), {"weight": "8"})
            task = world.placement.new_task(one, UUIDS[0], root)
            root.away[task.task.key] = Away(Program.of(one), task)  # as when it was checkpointed
            assert world.manager.detach(one, ME) == []
            assert (root.asked_of, root.away, root.excluded) == ({}, {}, {one})

    a_daemon(test)


def test_what_was_attached_below_another_is_detached_with_all_that_it_has() -> None:
    async def test(world: Managed) -> None:
        with child() as one:
            clients = world.tree([one])
            root = await world.launched()
            await world.manager.attach(one, {"class": "batch"}, True, ME)
            assert (slices(clients[one]), root.asked_of.keys()) == ([1] * 4, {one})
            assert world.manager.detach(one, ME) == []
            assert (slices(clients[one]), root.asked_of, root.excluded) == (FOUND, {}, {one})

    a_daemon(test)
