"""Commands that wait for room, and what tenants say, as the manager does it. The driver is in memory."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from runlist.daemon.requests import joined, launches
from runlist.daemon.requests.joined import LOOKS_A_SECOND, Joined
from runlist.daemon.requests.messages import Kind, TenantMessage
from runlist.daemon.tasks.managed import Root
from runlist.errors import NoTargetError, RunlistError
from runlist.model import TaskClass
from runlist.proc.borrow import OwnRight
from tests.fixtures.adoption import FOUND, OF_CHILD, PID, child, own_usage, slices
from tests.fixtures.fake_rm import UUIDS
from tests.fixtures.manager import ME, NO_PROCESS, Managed, a_daemon

pytestmark = pytest.mark.usefixtures("own_usage")
__all__ = ["own_usage"]


# -- run -------------------------------------------------------------------------------------------


def limited(short_path: Path, over: str) -> Path:
    rules = short_path / "rules.toml"
    rules.write_text(f'[limits]\ntasks = 1\nover = "{over}"\n')
    return rules


async def both_gpus_busy(world: Managed) -> Root:
    world.tenant()
    world.tenant(gpu=UUIDS[1])
    root = await world.launched()
    await world.adopt(root)
    return root


def test_a_command_waits_for_room_in_its_turn(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "_QUEUE_LOOK_S", 0.001)

    async def test(world: Managed) -> None:
        with child() as first, child() as second:
            root = await both_gpus_busy(world)
            waiting = [asyncio.create_task(world.launched(pid)) for pid in (first, second)]
            await asyncio.sleep(0.01)
            words, others = world.manager.launches.waiting(ME)
            assert words == [f"the command of process {pid}" for pid in (first, second)]
            assert others == 0
            assert world.manager.launches.waiting(1000) == ([], 2)
            with pytest.raises(RunlistError, match="managed already"):
                await world.launched(first)
            assert list(world.processes.roots) == [PID]
            world.processes.remove_root(root)
            await waiting[0]  # there is room for one, on each of two GPUs
            await asyncio.sleep(0.01)
            assert first in world.processes.roots
            assert not waiting[1].done()
            world.processes.remove_root(world.processes.roots[first])
            await waiting[1]
            assert world.manager.launches.waiting(ME) == ([], 0)

    a_daemon(test, limited(short_path, "queue"))


def test_a_command_that_gives_up_waits_no_more(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "_QUEUE_LOOK_S", 0.001)

    async def test(world: Managed) -> None:
        await both_gpus_busy(world)
        with child() as pid:
            waiting = asyncio.create_task(world.launched(pid))
            await asyncio.sleep(0.01)
        with pytest.raises(NoTargetError):
            await waiting
        assert world.manager.launches.waiting(ME) == ([], 0)

    a_daemon(test, limited(short_path, "queue"))


def test_without_room_a_command_is_refused_or_runs_as_batch(short_path: Path) -> None:
    async def refused(world: Managed) -> None:
        root = await both_gpus_busy(world)
        with child() as pid:
            with pytest.raises(RunlistError, match=r"the command is not started: GPU .* has 1 task, and .* allows 1"):
                await world.launched(pid)
            assert list(world.processes.roots) == [PID]
            world.processes.remove_root(root)
            await world.launched(pid)
            assert list(world.processes.roots) == [pid]

    async def as_batch(world: Managed) -> None:
        await both_gpus_busy(world)
        with child() as pid:
            assert (await world.launched(pid, **{"class": "latency"})).settings == {"class": "batch"}

    a_daemon(refused, limited(short_path, "refuse"))
    a_daemon(as_batch, limited(short_path, "batch"))


def test_a_command_below_a_managed_one_is_told_so() -> None:
    async def test(world: Managed) -> None:
        with child() as pid:
            await world.launched()
            assert await world.manager.launches.begin(pid, {}, world.borrower, None, ME) == []
            world.processes.remove_root(world.processes.roots[pid])
            (note,) = await world.manager.launches.begin(pid, {"weight": "7"}, world.borrower, None, ME)
            assert note.startswith(f"this is below process {PID}, which is managed")

    a_daemon(test)


def test_once_the_launcher_hung_up_only_our_own_right_is_left() -> None:
    async def test(world: Managed) -> None:
        root = await world.launched()
        await world.manager.launches.hung_up(NO_PROCESS, world.borrower)  # it had been refused
        assert world.borrower in root.borrowers
        await world.manager.launches.hung_up(PID, world.borrower)
        (borrower,) = root.borrowers
        assert isinstance(borrower, OwnRight)

    a_daemon(test)


def test_what_a_launcher_leaves_behind_is_of_its_tree() -> None:
    async def test(world: Managed) -> None:
        with child() as left:
            root = await world.launched()
            await world.manager.launches.hung_up(PID, world.borrower)
            assert left in root.heirs
            assert world.opened.is_set()
            assert world.processes.root_of(left) is root

    a_daemon(test)


# -- what tenants say ------------------------------------------------------------------------------


def test_a_tenant_is_heard_if_it_is_managed_and_its_user_s() -> None:
    async def test(world: Managed) -> None:
        report = TenantMessage(Kind.REPORT_LATENCY, 0, 1, 2_500_000)
        assert not world.manager.hear(PID, ME, report, lambda: None)
        world.tenant()
        root = await world.launched()
        await world.adopt(root)
        root.uid = 1000
        assert not world.manager.hear(PID, 1001, report, lambda: None)
        assert world.task().tail.p99_s(time.monotonic()) is None
        for uid in (0, 1000):
            assert world.manager.hear(PID, uid, report, lambda: None)
        assert world.task().tail.p99_s(time.monotonic()) == 0.0025

    a_daemon(test)


def test_descriptors_are_wanted_of_what_is_below_a_root_of_its_user() -> None:
    async def test(world: Managed) -> None:
        with child() as pid:
            assert world.manager.wants(pid, ME) is False
            await world.launched()
            assert world.manager.wants(pid, ME) is True

    a_daemon(test)


def test_who_joined_is_looked_at_and_nothing_else_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: Managed) -> None:
        join = TenantMessage(Kind.JOIN, 0, 1, 7, descriptors=(4242,))
        world.rm.copies[4242] = world.rm.file()
        looked_for: list[int] = []
        monkeypatch.setattr(world.search, "look_anew", looked_for.append)
        await world.launched()
        assert world.manager.hear(PID, ME, join, lambda _: True)
        (job,) = world.manager._joining
        await asyncio.wait([job])
        await asyncio.sleep(0)
        assert not world.manager._joining
        assert looked_for == [PID]

    a_daemon(test)


def test_who_tells_of_a_client_once_more_is_looked_at_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has made a compute engine: no look waits until its files have come to rest. But one that says so for ever is
    looked at as seldom as others, and one that is managed, or of which the kernel tells, not at all for that.
    """

    async def test(world: Managed) -> None:
        looked_at: list[int] = []

        async def look(_: Root, pids: list[int]) -> None:
            looked_at.extend(pids)

        monkeypatch.setattr(world.search, "look_at_once", look)
        root = await world.launched()

        async def says(client: int, times: int = 1) -> None:
            for _ in range(times):
                assert world.manager.hear(PID, ME, TenantMessage(Kind.JOIN, 0, 1, client), lambda _: True)
                (job,) = world.manager._joining
                await asyncio.wait([job])
                await asyncio.sleep(0)

        await says(7)
        assert looked_at == []
        await says(7)
        assert looked_at == [PID]
        await says(8)
        assert looked_at == [PID]
        with monkeypatch.context() as patch:
            patch.setattr(type(world.manager.kernel), "works", True)
            await says(8)
            assert looked_at == [PID]
        await says(8, 2 * LOOKS_A_SECOND)
        assert LOOKS_A_SECOND - 1 <= len(looked_at) < 2 * LOOKS_A_SECOND
        world.tenant()
        await world.adopt(root)
        looked_at.clear()
        monkeypatch.setattr(world.manager, "_joined", Joined())
        await says(9, 2)
        assert looked_at == []

    a_daemon(test)


def test_of_many_who_joined_few_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined, "MOST", 2)
    told = Joined()
    assert [told.computes(pid, 7) for pid in (1, 2, 3, 2, 3, 1)] == [False, False, False, True, True, False]


def test_tasks_for_which_there_is_no_room_are_refused_or_batch(short_path: Path) -> None:
    async def as_batch(world: Managed) -> None:
        world.tenant()
        await world.adopt(world.root(**{"class": "latency"}))
        with child() as pid:
            world.tenant(pid, OF_CHILD)
            await world.adopt(world.processes.roots[PID], pid)
            assert world.task(PID).task.task_class is TaskClass.LATENCY
            assert (world.task(pid).task.task_class, world.task(pid).task.suspended) == (TaskClass.BATCH, False)

    async def refused(world: Managed) -> None:
        world.tenant()
        root = world.root()
        await world.adopt(root)
        with child() as pid:
            client = world.tenant(pid, OF_CHILD)
            with pytest.raises(RunlistError, match=f"process {pid} is not managed: GPU .* has 1 task"):
                await world.adopt(root, pid)
            assert slices(client) == FOUND
            assert list(world.processes.managed) == [PID]

    a_daemon(as_batch, limited(short_path, "batch"))
    a_daemon(refused, limited(short_path, "refuse"))
