"""A process that hands what it has on a GPU to a child, and ends: the child is looked at, however quick that was."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from runlist.daemon import __main__ as module
from runlist.daemon.tasks.managed import Root
from runlist.daemon.tree import look_schedule
from runlist.daemon.tree.adoption import SHARED_AT_ONCE
from runlist.daemon.tree.look_schedule import LookSchedule
from tests.fixtures.adoption import OF_CHILD, child, own_usage, until
from tests.fixtures.manager import Managed, a_daemon

pytestmark = pytest.mark.usefixtures("own_usage")
__all__ = ["own_usage"]


@pytest.fixture
def woken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    looked: list[int] = []
    monkeypatch.setattr("runlist.daemon.tree.search.Search.look_anew", lambda self, pid: looked.append(pid))
    return looked


def test_who_shared_a_client_is_looked_at_when_its_owner_has_ended(woken: list[int]) -> None:
    async def test(world: Managed) -> None:
        root = world.root()
        with child() as heir:
            with child() as owner:
                world.tenant(owner, OF_CHILD)
                world.rm.processes[heir] = dict(world.rm.processes[owner])
                await world.adopt(root, owner)
                await world.adopt(root, heir)
                assert list(world.processes.managed) == [owner]
                world.manager.look_who_is_left()
                assert woken == []
            await until(lambda: not world.processes.managed)
            for _ in range(2):
                world.manager.look_who_is_left()
            assert woken == [heir]
            await world.adopt(root, heir)
            assert list(world.processes.managed) == [heir]

    a_daemon(test)


def test_who_shares_is_looked_up_a_few_at_a_time() -> None:
    async def test(world: Managed) -> None:
        ended = 1 << 22
        world.adoption._shared = {ended + number: (ended, 7) for number in range(SHARED_AT_ONCE + 5)}
        assert len(world.adoption.left()) == SHARED_AT_ONCE
        assert len(world.adoption.left()) == 5
        assert world.adoption.left() == []

    a_daemon(test)


def test_the_end_of_one_that_is_managed_has_others_looked_at() -> None:
    async def test(world: Managed) -> None:
        ends: list[int] = []
        world.processes.on_end = lambda: ends.append(1)
        root = world.root()
        with child() as one:
            world.tenant(one, OF_CHILD)
            await world.adopt(root, one)
            assert ends == []
        await until(lambda: ends)
        assert not world.processes.managed

    a_daemon(test)


def test_one_that_ended_before_anybody_looked_is_missed() -> None:
    schedule = LookSchedule()
    assert not schedule.due(7, 5)
    schedule.looked_at(1)
    assert not schedule.forget_gone({7: 5, 1: 3})
    assert schedule.forget_gone({7: -1, 1: 3})
    assert not schedule.forget_gone({1: 3})
    assert not schedule.forget_gone({1: -1})  # it was looked at


def test_whose_files_go_before_it_ends_is_known_by_its_tree() -> None:
    """The kernel closes them first."""

    async def test(world: Managed) -> None:
        root = world.root()
        root.quota.limit = 1 << 30
        with child() as one:
            world.tenant(one, OF_CHILD)
            await world.adopt(root, one)
            process = world.processes.managed[one]
            world.processes.drop(process, process.keys(), by_itself=True)
            assert world.processes.ended == {one: root}
        root.quota.limit = None

    a_daemon(test)


def test_a_scan_that_missed_one_is_followed_by_a_walk_and_one_by_chance_by_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever came by a walk that was no open's has to come to rest before it is looked at."""
    monkeypatch.setattr(module, "FIRST_LOOK_S", 0.001)
    monkeypatch.setattr(module, "QUIET_S", 0.001)
    monkeypatch.setattr(module, "SCAN_EVERY_S", 600.0)
    monkeypatch.setattr(module, "OpenWatch", lambda paths: SimpleNamespace(works=False, close=lambda: None))
    walks: list[bool] = []
    misses = [True, True, False, False]

    async def main() -> None:
        async def scan(*, walk: bool) -> None:
            walks.append(walk)
            search.missed = bool(misses) and misses.pop(0)

        async def nothing() -> None:
            pass

        search = SimpleNamespace(scan=scan, settled=True, took_s=0.0, missed=False)
        daemon: Any = SimpleNamespace(
            plane=SimpleNamespace(watch_paths=list),
            opened=asyncio.Event(),
            processes=SimpleNamespace(roots={1: object()}),
            placement=SimpleNamespace(rules=SimpleNamespace(drop_ins={})),
            search=search,
            sightings=SimpleNamespace(begun=nothing),
            kernel=SimpleNamespace(works=False),
        )
        daemon.opened.set()
        looking = asyncio.create_task(module._look(daemon))
        await until(lambda: len(walks) >= 3)
        assert walks == [True, True, True]
        await asyncio.sleep(0.05)
        assert walks == [True, True, True]  # all has come to rest
        monkeypatch.setattr(module, "SCAN_EVERY_S", 0.05)
        daemon.opened.set()
        await until(lambda: len(walks) >= 8)
        looking.cancel()
        assert walks[3:8] == [True, True, False, True, False]

    asyncio.run(main())


def test_after_an_end_who_is_new_need_not_come_to_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    async def test(world: Managed) -> None:
        async def adopt(root: Root, pid: int, *, new_only: bool) -> None:
            looks.append(pid)

        monkeypatch.setattr(world.adoption, "adopt", adopt)
        monkeypatch.setattr(look_schedule, "QUIET_S", 3600.0)
        monkeypatch.setattr(look_schedule, "SETTLE_S", 3600.0)
        with child() as one:
            world.root(one)
            for _ in range(2):
                await world.search.scan()
            assert looks == []
            world.processes.on_end()
            await world.search.scan()
            assert looks == [one]
            await world.search.scan()
            assert looks == [one]

    a_daemon(test)
