"""Roots and what is below them, and the schedulers of the GPUs: looked up, let go, released when a control fails."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from pathlib import Path

import pytest

from runlist.daemon.tasks.managed import Count, SuspendedBy
from runlist.daemon.tree import processes
from runlist.errors import NoTargetError, RunlistError, UsageError
from runlist.planes.nvidia.slices import SLICES
from runlist.planes.process.region import gpu_key
from runlist.policies import PolicySpec
from runlist.proc.borrow import Holder
from runlist.proc.process import start_of
from tests.fixtures.adoption import (
    FOUND,
    OF_CHILD,
    PID,
    SET_TIMESLICE,
    World,
    child,
    in_a_daemon,
    own_usage,
    slices,
    until,
)
from tests.fixtures.daemon import NOBODY, needs_root
from tests.fixtures.fake_rm import INVALID_ARGUMENT, UUIDS, Call, FakeClient

pytestmark = pytest.mark.usefixtures("own_usage")
__all__ = ["own_usage"]


async def two(world: World, one: int, **settings: str) -> tuple[FakeClient, FakeClient]:
    """A root with this process and a child, each with a context."""
    clients = world.tenant(), world.tenant(one, OF_CHILD)
    root = world.root(**settings)
    for pid in (PID, one):
        await world.adopt(root, pid)
    return clients


# -- roots -----------------------------------------------------------------------------------------


def test_a_process_below_a_root_is_of_the_nearest_one() -> None:
    async def test(world: World) -> None:
        with child() as one, child() as other:
            assert world.processes.root_of(one) is None
            far = world.root()
            assert world.processes.root_of(PID) is world.processes.root_of(one) is far
            near = world.root(one)
            assert world.processes.root_of(one) is near
            assert world.processes.root_of(other) is far
            assert world.processes.root_of(os.getppid()) is None
            world.tenant(other, OF_CHILD)
            await world.adopt(near, other)  # it has been moved there since: what manages it counts
            assert world.processes.root_of(other) is near
            assert [process.pid for process in world.processes.under(one)] == [other]
            assert [process.pid for process in world.processes.under(other)] == [other]
            assert world.processes.under(PID) == []

    in_a_daemon(test)


def test_the_heirs_of_a_root_that_ended_are_its_tree_until_the_last_of_them_ends() -> None:
    async def test(world: World) -> None:
        with child() as one, child() as other, child() as outside:
            root = world.root(one)
            root.excluded.add(outside)  # it was detached
            world.processes.inherit(root, [other, outside, PID, one])
            os.kill(one, 9)
            await until(lambda: root.ended)
            assert world.processes.roots == {one: root}
            assert world.processes.tops(root) == [other]
            assert world.processes.root_of(other) is root
            assert world.processes.root_of(outside) is None
            await world.processes.forget_heirs()
            assert world.processes.roots == {one: root}
            os.kill(other, 9)
            await until(lambda: start_of(other) is None)
            await world.processes.forget_heirs()
            assert world.processes.roots == {}
            assert world.processes.root_of(other) is None

    in_a_daemon(test)


def test_who_is_found_too_late_to_have_what_one_left_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, told = threading.Event(), threading.Event()

    def who_has(*_: object) -> Holder:
        asked.set()
        assert told.wait(60)
        return Holder(PID, os.pidfd_open(PID), {})

    async def test(world: World) -> None:
        with child() as one:
            await two(world, one)
            os.kill(one, 9)
            await until(asked.is_set)
            world.processes.forget(world.processes.managed[one], restore=False)
            told.set()

    monkeypatch.setattr(processes.borrow, "who_has", who_has)
    in_a_daemon(test)


def test_an_outer_tree_stays_as_long_as_one_in_it() -> None:
    async def test(world: World) -> None:
        with child() as one, child() as other:
            outer = world.root(one)
            inner = world.root(other)
            inner.outer = outer
            os.kill(one, 9)
            await until(lambda: outer.ended)
            world.processes.forget_ended(())
            assert world.processes.chain(inner) == [inner, outer]
            world.processes.remove_root(inner)
            world.processes.forget_ended(())
            assert world.processes.roots == {}

    in_a_daemon(test)


def test_the_id_of_a_root_that_ended_may_be_anothers() -> None:
    async def test(world: World) -> None:
        with child() as one, child() as left:
            before = world.root(one, weight="7")
            with pytest.raises(RunlistError, match="managed already"):
                world.root(one)
            world.processes.inherit(before, [left])
            world.processes._root_ended(before)
            assert world.processes.root_of(one) is None
            assert world.processes.roots == {one: before}
            assert world.processes.tops(before) == [left]
            now = world.root(one)
            assert world.processes.root_of(one) is now
            assert world.processes.root_of(left) is before
            assert world.processes.chain(before) == [before]
            assert world.processes.roots == {one: now, before.pid: before}
            assert before.pid < 0  # no process has such an id
            assert world.processes.tops(now) == [one]
            world.processes.remove_root(before)
            assert world.processes.roots == {one: now}
            assert world.processes.root_of(left) is None
            world.processes.inherit(now, [left])
            assert world.processes.root_of(left) is now
            world.processes._root_ended(now)
            last = world.root(one)
            assert world.processes.roots == {one: last, now.pid: now}
            assert now.pid < 0
            assert now.pid != before.pid
            world.processes.remove_root(now)
            world.processes.remove_root(last)

    in_a_daemon(test)


def test_a_user_has_so_many_heirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "MAX_HEIRS", 2)

    async def test(world: World) -> None:
        with child() as one, child() as a, child() as b, child() as c:
            for at_once in ([[a], [a, b, c]], [[a, b, c]]):
                root = world.root(one)
                for pids in at_once:
                    world.processes.inherit(root, pids)
                assert list(root.heirs) == [a, b]
                world.processes.remove_root(root)

    in_a_daemon(test)


def test_the_end_of_each_root_is_noticed_though_descriptors_are_used_again() -> None:
    async def test(world: World) -> None:
        with child() as one, child() as other:
            before = world.root(one)
            world.processes.remove_root(before)
            now = world.root(other)
            os.kill(other, 9)
            await until(lambda: now.ended)
            assert world.processes.roots == {}
            assert not before.ended

    in_a_daemon(test)


def test_what_a_root_leaves_at_work_is_its_heir() -> None:
    async def test(world: World) -> None:
        with child() as top, child() as busy:
            world.tenant(busy, OF_CHILD)
            root = world.root(top)
            await world.adopt(root, busy)
            os.kill(top, 9)
            await until(lambda: root.ended)
            world.processes.forget(world.processes.managed[busy], restore=True)  # for now it has nothing on the GPU
            assert world.processes.root_of(busy) is root
            world.processes.remove_root(root)

    in_a_daemon(test)


def test_a_process_that_ends_as_it_is_named_is_no_root(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        monkeypatch.setattr(processes, "owner_of", lambda pid: None)
        with pytest.raises(NoTargetError):
            world.root()
        assert world.processes.roots == {}

    in_a_daemon(test)


def test_a_tree_may_be_let_go_while_its_heirs_are_looked_at() -> None:
    async def test(world: World) -> None:
        with child() as one, child() as heir:
            root = world.root(one)
            world.processes.inherit(root, [heir])
            os.kill(heir, 9)
            await until(lambda: start_of(heir) is None)
            looking = asyncio.create_task(world.processes.forget_heirs())
            await asyncio.sleep(0)
            world.processes.remove_root(root)
            await looking
            assert world.processes.root_of(heir) is None

    in_a_daemon(test)


def test_whose_a_client_is_and_what_is_released_is_not_expected_back() -> None:
    async def test(world: World) -> None:
        with child() as one:
            mine, its = await two(world, one)
            assert world.processes.owners_of_clients().get(mine.handle) == PID
            assert world.processes.owners_of_clients().get(its.handle) == one
            assert world.processes.owners_of_clients().get(its.handle + 1) is None
            world.processes.forget(world.processes.managed[one], restore=True)
            assert world.processes.owners_of_clients().get(its.handle) is None
            assert world.processes.expected == set()

    in_a_daemon(test)


def test_what_is_below_a_root_is_put_back_with_it_and_nothing_else() -> None:
    async def test(world: World) -> None:
        with child() as one:
            clients = world.tenant(), world.tenant(one, OF_CHILD)
            for pid in (PID, one):
                await world.adopt(world.root(pid, timeslice="5000"), pid)
            first, second = world.processes.roots[PID], world.processes.roots[one]
            assert world.processes.remove_root(first) == []
            assert [slices(client) for client in clients] == [FOUND, [5000] * 4]
            assert (list(world.processes.roots), list(world.processes.managed)) == ([one], [one])
            assert world.processes.remove_root(first) == []  # it is gone already
            again = world.root()
            world.processes.remove_root(first)  # that was another one, of the same process
            assert world.processes.roots[PID] is again
            world.processes.remove_root(second)
            assert slices(clients[1]) == FOUND

    in_a_daemon(test)


def test_what_the_driver_does_not_put_back_is_told() -> None:
    async def test(world: World) -> None:
        world.tenant()
        root = world.root(timeslice="5000")
        await world.adopt(root)
        (context,) = world.processes.managed[PID].contexts()
        context.handle.on_control = refuses  # type: ignore[attr-defined]
        assert world.processes.remove_root(root) != []

    in_a_daemon(test)


def test_a_root_without_work_is_forgotten_when_it_ends_and_one_with_work_later() -> None:
    async def test(world: World) -> None:
        with child() as idle, child() as working:
            busy = world.root(working)
            world.tenant()
            await world.adopt(busy, PID)
            world.root(idle)
            os.kill(idle, 9)
            os.kill(working, 9)
            await until(lambda: busy.ended and idle not in world.processes.roots)
            assert (list(world.processes.roots), list(world.processes.managed)) == ([working], [PID])
            world.processes.forget(world.processes.managed[PID], restore=True)
            assert world.processes.roots == {}

    in_a_daemon(test)


def test_the_end_of_one_has_the_next_look_come_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        with child() as one:
            woken: list[int] = []
            monkeypatch.setattr(world.search, "_wake", lambda: woken.append(1))
            world.tenant(one, OF_CHILD)
            await world.adopt(world.root(), one)
            woken.clear()
            os.kill(one, 9)
            await until(lambda: woken)

    in_a_daemon(test)


def test_all_trees_of_a_user_share_what_reading_their_regions_may_cost() -> None:
    async def test(world: World) -> None:
        with child() as one, child() as other:
            assert world.root(one).quota._reads is world.root(other).quota._reads

    in_a_daemon(test)


def test_what_ends_is_forgotten_and_the_others_get_its_share_at_once() -> None:
    async def test(world: World) -> None:
        with child() as one, child() as other:
            mine = world.tenant()
            root = world.root(timeslice="5")
            await world.adopt(root)
            world.tenant(one, OF_CHILD)
            await world.adopt(root, one)
            task = world.processes.managed[PID].tasks[UUIDS[0]]
            assert slices(mine) == [5] * 4
            clients = world.tenant(other, OF_CHILD)
            await world.adopt(root, other)
            assert slices(clients) == [SLICES.safe_us] * 4  # only one may have a tiny slice
            world.processes.forget(world.processes.managed[PID], restore=True)
            os.kill(one, 9)
            await until(lambda: one not in world.processes.managed)
            assert slices(clients) == [5] * 4
            assert task.task.key not in world.gpus.scheduler(UUIDS[0]).tasks
            assert list(world.processes.managed) == [other]

    in_a_daemon(test)


def test_a_process_that_is_not_managed_is_lost_for_nothing() -> None:
    async def test(world: World) -> None:
        world.processes.lose(PID, OSError("gone"))
        with pytest.raises(NoTargetError):
            world.root(1 << 22)
        assert world.processes.roots == {}

    in_a_daemon(test)


@needs_root
def test_one_below_a_user_s_root_that_runs_as_another_is_not_reached() -> None:
    async def test(world: World) -> None:
        with child(NOBODY) as one, child() as other:
            clients = world.tenant(one, OF_CHILD), world.tenant(other, OF_CHILD)
            root = world.root()
            root.uid = NOBODY
            for pid in (one, other):
                await world.adopt(root, pid)
            assert list(world.processes.managed) == [one]
            assert slices(clients[1]) == FOUND
            root.uid = 0  # root's own reaches all
            await world.adopt(root, other)
            assert list(world.processes.managed) == [one, other]

    in_a_daemon(test)


# -- GPUs ------------------------------------------------------------------------------------------


def refuses(call: Call) -> int | None:
    return INVALID_ARGUMENT if call.command == SET_TIMESLICE else None


def test_one_that_cannot_be_controlled_is_let_go_and_the_others_get_its_share_at_once() -> None:
    async def test(world: World) -> None:
        with child() as one:
            _, mine = await two(world, one, timeslice="5")
            assert slices(mine) == [SLICES.safe_us] * 4
            task = world.processes.managed[PID].tasks[UUIDS[0]]
            (context,) = task.contexts.values()
            world.processes.managed[PID].tasks[UUIDS[0]].suspend_for(SuspendedBy.USER)
            context.handle.on_control = lambda call: INVALID_ARGUMENT  # type: ignore[attr-defined]
            world.gpus.run_all()
            assert world.released == [PID]
            assert list(world.gpus.scheduler(UUIDS[0]).tasks) == [world.processes.managed[one].tasks[UUIDS[0]].task.key]
            assert slices(mine) == [5] * 4
            context.handle.on_control = lambda call: None  # type: ignore[attr-defined]

    in_a_daemon(test)


@pytest.mark.parametrize("asked_for", [True, False])
def test_a_failure_is_told_to_whoever_asked_and_else_the_task_is_let_go(asked_for: bool) -> None:
    async def test(world: World) -> None:
        with child() as one:
            await two(world, one, timeslice="5000")
            task = world.processes.managed[PID].tasks[UUIDS[0]]
            (context,) = task.contexts.values()
            task.suspend_for(SuspendedBy.USER)
            context.handle.on_control = lambda call: INVALID_ARGUMENT  # type: ignore[attr-defined]
            with pytest.raises(RunlistError) if asked_for else contextlib.nullcontext():
                world.gpus.run([UUIDS[0]], {task.task.key} if asked_for else set())
            assert world.released == ([] if asked_for else [PID])
            assert (task.task.key in world.gpus.scheduler(UUIDS[0]).tasks) is asked_for
            context.handle.on_control = lambda call: None  # type: ignore[attr-defined]

    in_a_daemon(test)


def test_a_policy_is_changed_on_every_gpu_or_on_none(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        with child() as one:
            await two(world, one)
            world.gpus.scheduler(UUIDS[1])
            world.gpus.use(PolicySpec("fair"))
            assert world.gpus.spec == PolicySpec("fair")
            assert [scheduler.policy_name for scheduler in world.gpus.all()] == ["fair"] * 2
            with pytest.raises(UsageError):
                world.gpus.use(PolicySpec("best"))
            own = tmp_path / "own.py"
            own.write_text(
                "from runlist.policies import Decision, Policy\n"
                "class POLICY(Policy):\n    summary = 'takes nobody'\n"
                "    def admit(self, task, tasks):\n"
                f"        return 'not you' if task.key.pid == {one} else None\n"
                "    def decide(self, tasks, now):\n        return Decision({})\n"
            )
            with pytest.raises(RunlistError, match=r"not you \(nothing changed\)"):
                world.gpus.use(PolicySpec(str(own)))
            assert [scheduler.policy_name for scheduler in world.gpus.all()] == ["fair"] * 2
            world.processes.forget(world.processes.managed[one], restore=True)
            world.gpus.use(PolicySpec(str(own)))
            assert {scheduler.policy_name for scheduler in world.gpus.all()} == {str(own)}

    in_a_daemon(test)


def test_what_a_tree_was_refused_is_counted_when_it_is_gone() -> None:
    async def test(world: World) -> None:
        world.tenant()
        root = world.root()
        await world.adopt(root)
        root.quota._refused[gpu_key(UUIDS[0])] = 3
        world.processes.remove_root(root)
        assert world.gpus.scheduler(UUIDS[0]).ended[Count.MEMORY_REFUSALS] == 3

    in_a_daemon(test)
