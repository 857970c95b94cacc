"""Tasks are set right that a stranger may have stopped, or let run: all but one process', in pieces."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from runlist.daemon.tasks.managed import SuspendedBy
from runlist.daemon.tree import adoption, checks, sleepers
from runlist.proc.process import is_stopped
from tests.fixtures.adoption import PID, child, own_usage
from tests.fixtures.daemon import wait_for
from tests.fixtures.fake_rm import FakeClient
from tests.fixtures.manager import Managed, a_daemon

pytestmark = pytest.mark.usefixtures("own_usage")
__all__ = ["own_usage"]
CHANNEL = 0xC86F


def enabled(client: FakeClient) -> set[bool]:
    """What its channels are."""
    return {client.objects[channel].enabled for channel in client.of_class(CHANNEL)}


def meddle(*clients: FakeClient) -> None:
    """What ran stops, and what was off runs."""
    for client in clients:
        for channel in client.of_class(CHANNEL):
            client.objects[channel].enabled ^= True


def test_what_a_stranger_changed_is_as_the_shares_say() -> None:
    async def test(world: Managed) -> None:
        with child() as other:
            first, second = world.tree([other]).values()
            root = world.root()
            for pid in (PID, other):
                await world.adopt(root, pid)
            world.task(other).suspend_for(SuspendedBy.USER)
            world.gpus.run_all()
            assert (enabled(first), enabled(second)) == ({True}, {False})
            meddle(first, second)
            list(world.checks.assert_all())
            assert (enabled(first), enabled(second)) == ({True}, {False})
            meddle(first, second)
            list(world.checks.assert_all(but=PID))
            assert (enabled(first), enabled(second)) == ({False}, {False})
            list(world.checks.assert_all(but=other))
            assert (enabled(first), enabled(second)) == ({True}, {False})

    a_daemon(test)


def test_others_are_served_between_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "PIECE_S", 0)

    async def test(world: Managed) -> None:
        client = world.tenant()
        root = world.root()
        await world.adopt(root)
        meddle(client)
        pieces = world.checks.assert_all()
        next(pieces)
        assert enabled(client) == {True}
        world.processes.remove_root(root)  # it may go meanwhile
        assert list(pieces) == []

    a_daemon(test)


def test_what_is_armed_is_let_go_of_before() -> None:
    async def test(world: Managed) -> None:
        client = world.tenant()
        await world.adopt(world.root())
        order: list[set[bool]] = []

        def settle() -> None:
            order.append(enabled(client))
            world.task().on_settle = None

        world.task().on_settle = settle
        meddle(client)
        list(world.checks.assert_all())
        assert order == [{False}]
        assert enabled(client) == {True}

    a_daemon(test)


def test_one_that_enabled_itself_is_off_again_where_that_is_known() -> None:
    async def test(world: Managed) -> None:
        client = world.tenant()
        await world.adopt(world.root())
        world.task().suspend_for(SuspendedBy.USER)
        world.gpus.run_all()
        meddle(client)
        world.checks.correct(PID)
        assert enabled(client) == {True}
        world.checks.correct(PID, off=True)
        assert enabled(client) == {False}
        world.task().let_go(SuspendedBy.USER)
        world.gpus.run_all()
        world.checks.correct(PID, off=True)
        assert enabled(client) == {True}

    a_daemon(test)


def test_one_that_shares_its_group_is_not_set_right_by_itself() -> None:
    async def test(world: Managed) -> None:
        client = world.tenant()
        await world.adopt(world.root())
        world.task().suspend_for(SuspendedBy.USER)
        world.gpus.run_all()
        world.task().task = replace(world.task().task, together=3)
        meddle(client)
        world.checks.correct(PID, off=True)
        assert enabled(client) == {True}

    a_daemon(test)


def test_one_that_closed_its_files_keeps_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: Managed) -> None:
        world.tenant()
        root = world.root()
        await world.adopt(root)
        task = world.task()
        monkeypatch.setattr(adoption.borrow, "still_has", lambda pid, fd, copy: False)
        world.checks.check(files=False, slices=False)
        assert world.processes.managed
        world.checks.check(files=True, slices=False)
        assert not world.processes.managed
        assert [away.task for away in root.away.values()] == [task]

    a_daemon(test)


def test_who_slept_is_not_asked_about_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty idle programs took 17 requests and 50 comparisons a second."""
    clock = SimpleNamespace(monotonic=lambda: clock.now, now=1000.0)
    monkeypatch.setattr(sleepers, "time", clock)
    asked: dict[str, list[int]] = {"files": [], "slices": []}

    def looked(kind: str, after_s: float = 1.0) -> list[int]:
        clock.now += after_s
        asked[kind].clear()
        return asked[kind]

    async def test(world: Managed) -> None:
        with child() as other:
            world.tree([other])
            root = world.root()
            for pid in (PID, other):
                await world.adopt(root, pid)
            monkeypatch.setattr(world.checks, "correct", asked["slices"].append)
            monkeypatch.setattr(adoption.borrow, "still_has", lambda pid, fd, copy: asked["files"].append(pid) or True)
            world.checks.check(files=True, slices=True)
            slept = looked("files"), looked("slices")
            world.checks.check(files=True, slices=True)
            assert [set(each) for each in slept] == [{PID}] * 2
            slices = looked("slices")
            world.checks.check(files=False, slices=False, of=[other])  # the kernel says that it asked the driver
            assert slices == [other]
            os.kill(other, signal.SIGSTOP)  # to stop and to go on takes it a moment of a processor
            os.kill(other, signal.SIGCONT)
            wait_for(lambda: is_stopped(other) is False)
            ran = looked("slices")
            wait_for(lambda: other in (world.checks.check(files=False, slices=True), ran)[1])
            files, slices = looked("files", sleepers.ALL_EVERY_S), looked("slices")
            world.checks.check(files=True, slices=True)  # its children may have what it has
            assert (set(files), slices) == ({PID, other}, [PID, other])

    a_daemon(test)


def test_one_that_left_its_files_to_another_never_sleeps() -> None:
    with child() as pid:
        process: Any = SimpleNamespace(pid=pid, holder=pid)
        looks = sleepers.Sleepers()
        assert (
            looks.left_out([process], 1000.0) == looks.left_out([process], 1000.0 + sleepers.ALL_EVERY_S) == [process]
        )
        wait_for(lambda: looks.left_out([process], 1000.0) == [])
        process.holder = PID
        assert looks.left_out([process], 1000.0) == [process]
    process.holder = pid
    assert looks.left_out([process], 1000.0) == [process]  # it ended
    assert looks.left_out([process], 1000.0) == [process]


def test_one_that_may_have_been_let_on_by_another_is_suspended_once_more() -> None:
    async def test(world: Managed) -> None:
        with child() as other:
            off, on = world.tree([other]).values()
            root = world.root()
            for pid in (PID, other):
                await world.adopt(root, pid)
            world.task().suspend_for(SuspendedBy.USER)
            world.gpus.run_all()
            for pid in (PID, other):
                world.task(pid).unsure_until = time.monotonic() + 60
            meddle(off, on)
            world.checks.check(files=False, slices=False)
            assert (enabled(off), enabled(on)) == ({False}, {False})  # who is to run is not looked at for that
            meddle(off)
            world.task().unsure_until = 0.0
            world.checks.check(files=False, slices=False)
            assert enabled(off) == {True}

    a_daemon(test)


def test_others_are_served_after_each_few_milliseconds_of_setting_right(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=lambda: clock.now, now=1000.0)
    monkeypatch.setattr(checks, "time", clock)
    did: list[Any] = []

    def task(pid: int, gpu: str = "GPU-0", **more: Any) -> Any:
        def set_right() -> None:
            clock.now += 0.0015
            did.append(pid)

        key = SimpleNamespace(pid=pid, gpu=gpu)
        return SimpleNamespace(**{
            "task": SimpleNamespace(key=key), "carrier": None, "outside": "", "on_settle": None, "set_right": set_right,
            **more,
        })  # fmt: skip

    tasks = [task(pid) for pid in range(1, 8)]
    tasks += [task(8, carrier=tasks[0]), task(9, outside="why"), task(10), task(11, "GPU-1", on_settle=print)]
    world: Any = SimpleNamespace(
        _processes=SimpleNamespace(tasks=lambda: tasks), _gpus=SimpleNamespace(run=lambda *which: did.append(which))
    )
    pieces = checks.Checks.assert_all(world, but=10)
    while next(pieces, "done") is None:
        did.append("others")
    assert did == [1, 2, 3, "others", 4, 5, 6, "others", 7, 11, ({"GPU-1"}, set())]
