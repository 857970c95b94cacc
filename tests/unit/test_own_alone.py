"""What a process asks for itself that nobody manages yet, what a part of a tree is asked for, and what is sent."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from runlist.daemon.requests.manager import Manager
from runlist.daemon.requests.own import OwnSettings
from runlist.daemon.tasks.managed import Root, SuspendedBy
from runlist.errors import NoTargetError, NotSupportedError, RunlistError
from runlist.planes.process.region import create
from runlist.proc.borrow import OwnRight
from tests.fixtures.adoption import FOUND, OF_CHILD, PID, child, own_usage, slices, until
from tests.fixtures.fake_rm import UUIDS
from tests.fixtures.manager import ME, Managed, a_daemon

pytestmark = pytest.mark.usefixtures("own_usage")
__all__ = ["own_usage"]

GiB = 1 << 30


@contextlib.contextmanager
def borrowing(monkeypatch: pytest.MonkeyPatch, world: Managed) -> Iterator[OwnSettings]:
    """Files are borrowed from the driver in memory by right of our own."""
    monkeypatch.setattr(OwnRight, "borrow", lambda self, *which: world.borrower.borrow(*which))
    yield OwnSettings(world.manager)


def files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_it_is_managed_for_that_and_let_go_when_it_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: Managed) -> None:
        client = world.tenant()
        with borrowing(monkeypatch, world) as own:
            outcome = await own.manage(PID, {"weight": "70"}, None, ME)
            assert [(task.task.key.pid, task.task.weight) for task in outcome.tasks] == [(PID, 70)]
            assert outcome.notes == []
            root = world.processes.roots[PID]
            assert (root.settings, root.awaited, root.own[PID].alone) == ({}, False, True)
            await own.manage(PID, {"class": "batch"}, None, ME)  # in place of the last ones
            assert (world.task().task.weight, world.task().task.task_class.value) == (100, "batch")
            assert own.leave(PID, ME) == []
            assert not world.search._left_alone  # a rule may have it now
            assert world.processes.roots == {}
            assert slices(client) == FOUND
            with pytest.raises(NoTargetError, match="has asked for nothing"):
                own.leave(PID, ME)

    a_daemon(test)


def test_one_for_whom_somebody_asked_more_meanwhile_stays_managed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: Managed) -> None:
        world.tenant()
        with borrowing(monkeypatch, world) as own:
            await own.manage(PID, {"weight": "70"}, None, ME)
            world.manager.change(PID, {"weight": "40"}, ME)
            assert own.leave(PID, ME) == []
            assert world.task().task.weight == 40

    a_daemon(test)


def test_whoever_leaves_stays_where_rules_keep_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was told that only root may detach it, and was no rule's ever after."""

    async def test(world: Managed) -> None:
        world.tenant()
        with borrowing(monkeypatch, world) as own:
            await own.manage(PID, {"weight": "70"}, None, ME)
            world.give(world.processes.roots[PID], 1000)
            task = world.task()
            task.rule = "rules.toml:1"
            task.suspend_for(SuspendedBy.ROOM, "GPU-1 has 1 task")
            assert own.leave(PID, 1000) == []
            assert (world.task().task.weight, world.processes.roots[PID].by_rule) == (100, True)
            with pytest.raises(NoTargetError, match="has asked for nothing"):
                own.leave(PID, 1000)
            world.manager.release(0)

    a_daemon(test)


def test_it_asks_before_it_has_work(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: Managed) -> None:
        with borrowing(monkeypatch, world) as own:
            assert (await own.manage(PID, {"weight": "70"}, None, ME)).tasks == []
            root = world.processes.roots[PID]
            world.tenant()
            await world.adopt(root)
            assert world.task().task.weight == 70

    a_daemon(test)


def test_what_it_asks_for_itself_wins_over_what_its_tree_has_also_on_another_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(world: Managed) -> None:
        world.tenant()
        root = await world.launched(weight="30", **{"class": "batch"})
        await world.adopt(root)
        with borrowing(monkeypatch, world) as own:
            await own.manage(PID, {"weight": "70"}, None, ME)
            world.tenant(fd=9, gpu=UUIDS[1])
            await world.adopt(root)
            assert [(task.task.weight, task.task.task_class.value) for task in world.tasks()] == [(70, "batch")] * 2
            assert own.leave(PID, ME) == []
            assert [task.task.weight for task in world.tasks()] == [30, 30]

    a_daemon(test)


def test_where_it_cannot_be_managed_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: Managed) -> None:
        world.tenant()
        with borrowing(monkeypatch, world) as own:
            with pytest.raises(NotSupportedError, match=f"process {PID}: "):
                await own.manage(PID, {"memory": "3G"}, None, ME)  # nobody could keep that
            assert world.processes.roots == {}

            async def everything_of(root: Root) -> None:
                assert root.awaited is True
                raise RunlistError("the driver refuses")

            monkeypatch.setattr(world.manager.search, "everything_of", everything_of)
            with pytest.raises(RunlistError, match="the driver refuses"):
                await own.manage(PID, {"weight": "70"}, None, ME)
            assert world.processes.roots == {}

    a_daemon(test)


def test_memory_that_it_asks_for_is_kept_by_the_region_that_it_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(world: Managed) -> None:
        world.tenant()
        at_first = files()
        region, other = (create(tmp_path, strict=False)[1] for _ in range(2))
        with contextlib.closing(region), contextlib.closing(other), borrowing(monkeypatch, world) as own:
            await own.manage(PID, {"memory": "3G"}, os.dup(region.fileno()), ME)
            root = world.processes.roots[PID]
            assert (root.quota.limit, region.read().memory) == (3 * GiB, 3 * GiB)
            before = files()
            outcome = await own.manage(PID, {"memory": "90G"}, os.dup(other.fileno()), ME)  # it has one
            await until(lambda: files() == before)
            assert outcome.notes == ["a limit of 90.0 GiB has no effect: the GPU has 80.0 GiB"]
            assert (region.read().memory, other.read().memory) == (90 * GiB, None)
            assert (await own.manage(PID, {"weight": "7"}, None, ME)).notes == []  # there was no limit before
            assert (root.quota.limit, region.read().memory) == (None, None)
            assert own.leave(PID, ME) == []
        await until(lambda: files() == at_first)

    a_daemon(test)


def test_where_one_of_its_settings_is_refused_the_others_stay_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(world: Managed) -> None:
        world.tenant()
        at_first = files()
        _, region = create(tmp_path, strict=False)
        with contextlib.closing(region), borrowing(monkeypatch, world) as own:
            await own.manage(PID, {"memory": "3G", "weight": "70"}, os.dup(region.fileno()), ME)
            root = world.processes.roots[PID]
            with pytest.raises(RunlistError, match="takes a budget and a period"):
                await own.manage(PID, {"memory": "2G", "class": "deadline"}, None, ME)
            assert (root.quota.limit, region.read().memory, world.task().task.weight) == (3 * GiB, 3 * GiB, 70)
            assert root.own[PID].settings == {"memory": "3G", "weight": "70"}
            assert own.leave(PID, ME) == []
        await until(lambda: files() == at_first)

    a_daemon(test)


def test_a_part_of_a_tree_without_work_is_asked_for_where_one_waits_for_it() -> None:
    async def test(world: Managed) -> None:
        root = await world.launched()
        with child() as one:
            with pytest.raises(NoTargetError, match=f"{one} has no GPU context"):
                await world.manager.attach(one, {"weight": "8"}, False, ME)
            assert root.asked_of == {}
            outcome = await world.manager.attach(one, {"weight": "8"}, True, ME)
            assert (outcome.tasks, root.asked_of[one].settings) == ([], {"weight": "8"})
            with pytest.raises(NoTargetError, match=f"{one} has no GPU context"):
                await world.manager.attach(one, {"weight": "9"}, False, ME)
            assert root.asked_of[one].settings == {"weight": "8"}
            world.tenant(one, OF_CHILD)
            await world.adopt(root, one)
            assert world.task(one).task.weight == 8
            assert list(world.processes.roots) == [PID]
        with child() as other:
            await world.manager.attach(other, {"weight": "5"}, True, ME)
            assert list(root.asked_of) == [other]  # the first has ended

    a_daemon(test)


def test_all_tasks_are_roots_to_see_and_ones_own_anybodys() -> None:
    async def test(world: Managed) -> None:
        world.tenant()
        await world.adopt(await world.launched())
        (task,) = world.tasks()
        for uid, seen in ((0, [task]), (ME, [task]), (ME + 77, [])):
            assert world.manager.tasks(uid) == world.manager.visible(uid) == seen

    a_daemon(test)


@pytest.mark.parametrize(("there", "taken", "trouble"), [(False, True, ""), (True, True, ""), (True, False, "odd")])
def test_files_that_a_process_sends_are_taken_once_they_were_looked_at(there: bool, taken: bool, trouble: str) -> None:
    did: list[Any] = []

    async def joined(fds: tuple[int, ...], uid: int) -> Any:
        did.append(("looked at", fds, uid))
        return SimpleNamespace(trouble=trouble)

    def take_sent(root: object, pid: int, key: int, sent: object) -> bool:
        did.append(("sent", root, pid, key))
        return taken

    world: Any = SimpleNamespace(
        search=SimpleNamespace(
            root_for=lambda pid, uid: "a root" if there else None, look_anew=lambda pid: did.append(("look", pid))
        ),
        descriptors=SimpleNamespace(joined=joined),
        _adoption=SimpleNamespace(take_sent=take_sent),
        _joining=set(),
    )
    message: Any = SimpleNamespace(descriptors=(8, 9), nanoseconds=3)

    async def run() -> None:
        assert Manager._join(world, 7, ME, message) is there
        assert len(world._joining) == there
        for _ in range(5):
            await asyncio.sleep(0)
        assert world._joining == set()

    with capture_logs() as logs:
        asyncio.run(run())
    looked, sent = ("looked at", (8, 9), ME), ("sent", "a root", 7, 3)
    assert did == ([looked, sent, *([("look", 7)] if taken else [])] if there else [])
    assert [log["reason"] for log in logs] == ([trouble] if trouble else [])
