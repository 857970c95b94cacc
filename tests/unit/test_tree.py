"""Trees and their processes between looks: who is looked at again, who waits for a checkpoint, and what is told of
tasks that the GPU knows as one. No GPU is needed.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from runlist.daemon.relay.vet import refusal, vetted
from runlist.daemon.tasks.managed import Away, ManagedTask, Root
from runlist.daemon.tree import adoption, look_schedule, processes
from runlist.daemon.tree.adoption import Adoption
from runlist.daemon.tree.look_schedule import LookSchedule
from runlist.daemon.tree.search import Search
from runlist.errors import NoTargetError, NotSupportedError, RunlistError
from runlist.model import Share, Task, TaskClass, TaskKey
from runlist.planes.process.region import RegionError, create
from runlist.proc.process import Program
from tests.fixtures.adoption import FOUND, OF_CHILD, PID, child, own_usage, slices, until
from tests.fixtures.fake_rm import UUIDS
from tests.fixtures.manager import NO_PROCESS, Managed, a_daemon
from tests.fixtures.region import is_region

pytestmark = pytest.mark.usefixtures("own_usage")
__all__ = ["own_usage"]

STRANGER = 54_321


# -- trees -----------------------------------------------------------------------------------------


def test_a_process_that_is_none_is_no_root_and_leaves_nothing_open() -> None:
    async def test(world: Managed) -> None:
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(NoTargetError):
            world.processes.add_root(NO_PROCESS, {})
        world.root()
        with pytest.raises(RunlistError, match="managed already"):
            world.root()
        assert len(os.listdir("/proc/self/fd")) == before + 1

    a_daemon(test)


def test_a_user_has_so_many_trees_and_root_any_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "MAX_TREES", 2)

    async def test(world: Managed) -> None:
        with child(STRANGER) as one, child(STRANGER) as two, child(STRANGER) as three:
            known = world.processes
            assert not known.is_full(STRANGER)
            assert not known.is_full(STRANGER, 1)
            assert known.is_full(STRANGER, 2)
            world.root(one)
            assert not known.is_full(STRANGER)
            assert known.is_full(STRANGER, 1)
            world.root(two)
            assert known.is_full(STRANGER)
            assert not known.is_full(0, 9)
            with pytest.raises(RunlistError, match="all for one user"):
                world.root(three)
            assert set(known.roots) == {one, two}

    a_daemon(test)


def test_a_root_that_ended_goes_with_the_last_of_its_tree() -> None:
    async def test(world: Managed) -> None:
        with child() as pid:
            world.tenant(pid, 20)
            root = world.root(pid)
            await world.adopt(root, pid)
            with child() as ended:
                lone = world.root(ended)
            await until(lambda: lone.ended)
            assert list(world.processes.roots) == [pid]
        await until(lambda: root.ended)
        await until(lambda: world.processes.roots == {})
        assert world.processes.managed == {}

    a_daemon(test)


def test_a_tree_whose_limit_cannot_be_kept_is_not_managed(tmp_path: Path) -> None:
    async def test(world: Managed) -> None:
        with child() as pid:
            _, region = create(tmp_path, strict=True)
            fds = [os.dup(region.fileno()) for _ in range(2)]
            region.close()
            for fd in fds:
                with pytest.raises(RunlistError, match="weight"):
                    await world.manager.launches.begin(pid, {"weight": "none of this kind"}, world.borrower, fd, 0)
            await until(lambda: not any(is_region(fd) for fd in fds))
            with pytest.raises(NotSupportedError):
                await world.manager.launches.begin(pid, {"memory": "1GiB"}, world.borrower, None, 0)
            assert world.processes.roots == {}
            with pytest.raises(RunlistError, match="weight"):
                await world.manager.launches.begin(pid, {"weight": "none of this kind"}, world.borrower, None, 0)
            assert world.processes.roots == {}

    a_daemon(test)


def test_a_user_with_all_the_trees_there_are_launches_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "MAX_TREES", 1)

    async def test(world: Managed) -> None:
        with child(STRANGER) as one, child(STRANGER) as two:
            await world.manager.launches.begin(one, {}, world.borrower, None, STRANGER)
            with pytest.raises(RunlistError, match="all for one user"):
                await world.manager.launches.begin(two, {}, world.borrower, None, STRANGER)
            assert list(world.processes.roots) == [one]
            world.processes.remove_root(world.processes.roots[one])

    a_daemon(test)


def test_rules_name_also_what_is_of_a_user_with_all_the_trees_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "MAX_TREES", 1)

    async def test(world: Managed) -> None:
        with child(STRANGER) as one, child(STRANGER) as two, child(STRANGER) as three:
            world.root(one)
            assert world.processes.add_root(two, {}, by_rule=True).by_rule
            world.processes.remove_root(world.processes.roots[one])
            assert not world.processes.is_full(STRANGER)  # those of rules take nobody's place
            world.root(three)
            assert world.processes.is_full(STRANGER)

    a_daemon(test)


def test_what_is_let_go_while_it_is_attached_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: Managed) -> None:
        async def everything_of(root: Root) -> None:
            world.processes.remove_root(root)

        monkeypatch.setattr(world.search, "everything_of", everything_of)
        with child() as pid, pytest.raises(NoTargetError, match="ended, or was detached, while it was attached"):
            await world.manager.attach(pid, {}, True, 0)
        assert world.processes.roots == {}

    a_daemon(test)


def test_attaching_needs_work_now_unless_it_is_to_wait() -> None:
    async def test(world: Managed) -> None:
        with child() as pid:
            with pytest.raises(NoTargetError, match="has no GPU context now"):
                await world.manager.attach(pid, {}, False, 0)
            assert world.processes.roots == {}
            outcome = await world.manager.attach(pid, {"weight": "50"}, True, 0)
            assert outcome.tasks == []
            root = world.processes.roots[pid]
            assert (root.awaited, root.settings) == (False, {"weight": "50"})
            world.processes.remove_root(root)

    a_daemon(test)


def test_a_region_that_its_relay_refused_is_refused_with_the_reason() -> None:
    async def test(world: Managed) -> None:
        fd = vetted(world.plane, os.memfd_create("no region"), STRANGER)
        with pytest.raises(RegionError) as caught:
            await world.manager.descriptors.region(os.dup(fd), STRANGER)
        assert str(caught.value) == refusal(fd) != ""
        with pytest.raises(RunlistError, match="the memory region is refused: "):
            await world.manager.launches.begin(PID, {}, world.borrower, fd, STRANGER)
        await until(lambda: not os.path.exists(f"/proc/self/fd/{fd}"))

    a_daemon(test)


def test_a_process_whose_driver_does_not_answer_any_more_is_released() -> None:
    async def test(world: Managed) -> None:
        world.tenant()
        root = world.root(timeslice="5000")
        await world.adopt(root)
        (copy,) = world.borrower.copies
        copy.on_control = lambda call: 0x65
        world.checks.check(files=True, slices=False)
        assert list(world.processes.managed) == [PID]
        world.checks.check(files=True, slices=True)
        assert world.processes.managed == {}
        world.checks.correct(PID)  # it is not managed: nothing

    a_daemon(test)


def test_descendants_may_end_while_a_tree_is_attached_but_not_its_root(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: Managed) -> None:
        gone: set[int] = set()
        asked: list[int] = []

        async def adopt(self: Adoption, root: Root, pid: int, *, new_only: bool) -> None:
            assert not new_only
            asked.append(pid)
            if pid in gone:
                raise NoTargetError("gone")

        monkeypatch.setattr(Adoption, "adopt", adopt)
        with child() as one, child() as other:
            root = world.root()
            gone |= {one}
            await world.search.everything_of(root)
            assert {PID, one, other} <= set(asked)
            gone.add(PID)
            with pytest.raises(NoTargetError):
                await world.search.everything_of(root)

    a_daemon(test)


def test_a_root_that_ended_goes_with_the_last_task_that_was_away() -> None:
    async def test(world: Managed) -> None:
        with child() as top, child() as left:
            root = world.root(top)
            key = TaskKey(left, UUIDS[0])
            task = ManagedTask(Task(key, TaskClass.NORMAL, "x", 0, 0.0), root=root)
            root.away[key] = Away(Program.of(left), task)
            os.kill(top, 9)
            await until(lambda: root.ended)
            world.processes.forget_away()
            assert list(world.processes.roots) == [top]
        world.processes.forget_away()
        assert world.processes.roots == {}

    a_daemon(test)


def test_of_the_processes_that_ended_only_the_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_MOST_ENDED", 2)

    async def test(world: Managed) -> None:
        with child() as one, child() as two, child() as three:
            root = world.root()
            root.quota.limit = 1 << 30
            for pid in (one, two, three):
                world.tenant(pid, OF_CHILD)
                await world.adopt(root, pid)
                os.kill(pid, 9)
                await until(lambda pid=pid: pid not in world.processes.managed)  # type: ignore[misc]
            assert world.processes.ended == {two: root, three: root}

    a_daemon(test)


def test_a_look_that_was_cut_short_goes_on_while_the_tree_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: Managed) -> None:
        rest = [True, True, False]
        looks: list[int] = []
        finder = world.adoption._finder
        find = finder.find

        def counted(pid: int, *words: object, **options: object) -> object:
            looks.append(pid)
            return find(pid, *words, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(finder, "find", counted)
        monkeypatch.setattr(finder, "is_unfinished", lambda pid: rest.pop(0))
        root = world.root()
        world.tenant()
        await world.adopt(root)
        assert (looks, rest) == ([PID] * 3, [])
        for file in world.rm.processes[PID].values():
            file.clients.clear()
        world.processes.forget(world.processes.managed[PID], restore=True)
        rest[:] = [True, True, False]  # nothing was found yet
        await world.adopt(root)
        assert (looks, rest) == ([PID] * 6, [])
        rest[:] = [True] * 9
        root.excluded.add(PID)
        await world.adopt(root)
        assert looks == [PID] * 7

    a_daemon(test)


# -- looking again ---------------------------------------------------------------------------------


def test_a_tree_is_looked_at_again_with_its_heirs_and_at_once() -> None:
    async def test(world: Managed) -> None:
        woken: list[int] = []
        search = Search(world.processes, world.adoption, world.checks, world.placement, lambda: woken.append(1))
        with child() as one, child() as heir:
            root = world.root(one)
            world.processes.inherit(root, [heir, NO_PROCESS])
            for pid in (one, heir, PID):
                search._schedule.looked_at(pid)
            search.look_again(root)
            assert woken == [1]
            assert list(search._schedule._known) == [PID]
            await search.scan()
            assert heir in search._schedule._known

    a_daemon(test)


def test_a_process_without_open_files_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {1: 0, 2: 3, 3: -1}
    monkeypatch.setattr(look_schedule, "descriptor_count", counts.__getitem__)
    schedule = LookSchedule()
    for pid in (1, 2, 3):
        schedule.looked_at(pid)
    schedule.forget_gone(counts)
    assert schedule.known == [1, 2]


def test_a_look_that_is_cut_short_goes_on_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: Managed) -> None:
        looks: list[bool] = []

        async def look(self: Adoption, *_: object, **__: object) -> bool:
            looks.append(True)
            await asyncio.sleep(0.02)
            return len(looks) < most

        monkeypatch.setattr(Adoption, "_adopt", look)
        root = world.root()
        most = 3
        await world.adopt(root)
        assert len(looks) == 3
        monkeypatch.setattr(adoption, "MOST_S", 0.01)
        most = 1000
        looks.clear()
        await world.adopt(root)
        assert len(looks) == 1

    a_daemon(test)


def test_a_descendant_of_another_user_is_left_alone() -> None:
    async def test(world: Managed) -> None:
        with child(STRANGER) as pid, child() as other:
            world.tree([pid, other])
            root = world.root()
            root.uid = STRANGER + 1
            for one in (pid, other):
                await world.adopt(root, one)
            assert world.processes.managed == {}
            root.uid = STRANGER
            for one in (pid, other):
                await world.adopt(root, one)
            assert list(world.processes.managed) == [pid]

    a_daemon(test)


def test_how_long_it_took_is_told_of_the_first_time() -> None:
    async def test(world: Managed) -> None:
        root = world.root()
        world.tenant()
        started = time.perf_counter()
        await world.adopt(root)
        task = world.task()
        first = (task.discovery_ms, task.attach_ms, task.reached_by)
        assert 0 < first[0] <= first[1] <= (time.perf_counter() - started) * 1e3
        assert first[2] == "own right"
        world.tenant(fd=9)
        await world.adopt(root)
        assert task.task.contexts == 2
        assert (task.discovery_ms, task.attach_ms, task.reached_by) == first

    a_daemon(test)


# -- slices of tasks with several contexts ---------------------------------------------------------


def test_a_task_has_the_longest_of_the_slices_that_it_was_found_with() -> None:
    async def test(world: Managed) -> None:
        client = world.rm.tenant(PID).client()
        device = client.device()
        groups = [*client.context(device), *client.context(device)]
        client.objects[groups[0]].slice_us = 3_000
        await world.adopt(world.root())
        task = world.task()
        assert task.slice_us(Share(None)) == 3_000
        assert task.slice_us(Share(500)) == 500
        assert ManagedTask(task.task).slice_us(Share(None)) == 0

    a_daemon(test)


def test_a_copy_group_keeps_a_slice_that_is_nearly_right() -> None:
    async def test(world: Managed) -> None:
        client = world.tenant()
        await world.adopt(world.root())
        task = world.task()
        seen = []
        for us in (2_000, 3_900, 2_000, 4_000, 1_000, 1_000):
            task.set_timeslice(us)
            seen.append(slices(client)[:2])
        assert seen == [
            [2_000, 2_000], [3_900, 2_000], [2_000, 2_000], [4_000, 4_000], [1_000, 1_000], [1_000, 1_000],
        ]  # fmt: skip
        task.set_timeslice(None)
        assert slices(client) == FOUND

    a_daemon(test)
