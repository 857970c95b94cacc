"""What is done to a process that the kernel saw at work, beside looking at it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import msgspec
import pytest

from runlist.daemon.tasks.managed import SuspendedBy
from runlist.daemon.tree import sightings
from runlist.protocol.kernel_autogen import Kind, Refusal, What
from tests.unit.test_sightings import FD, PID, World

# As they are to be: taken from the code they would hold whatever it says.
LONGEST_S = 0.02
LOOKS_A_SECOND = 20


def test_others_are_served_between_the_tasks_that_are_set_right() -> None:
    async def run() -> None:
        world = World()
        world.pieces = 50
        world.sightings.gap()
        turns = 0
        while not world.asserted or world.sightings._corrections._setting_right is not None:
            turns += bool(world.asserted)
            await asyncio.sleep(0)
        assert turns >= world.pieces
        world.sightings.close()

    asyncio.run(run())


def test_one_is_looked_at_on_hints_so_often_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(sightings, "time", SimpleNamespace(monotonic=lambda: clock.now))
    known = sightings._Process((0, 0))
    for clock.now in (100.0, 100.5, 101.0):  # the last begins another second
        may = [known.may_look() for _ in range(LOOKS_A_SECOND + 1)]
        assert may == [clock.now != 100.5] * LOOKS_A_SECOND + [False]


def test_what_did_the_forbidden_before_it_was_managed_is_suspended_for_that_once() -> None:
    async def run() -> None:
        world = World()
        suspended: list[tuple[object, str]] = []
        task = SimpleNamespace(
            task=SimpleNamespace(key=SimpleNamespace(gpu="GPU")),
            suspend_for=lambda *why: suspended.append(why),
            room_ms=None,
        )
        world.takes_in = SimpleNamespace(tasks={"GPU": task})
        world.entry = SimpleNamespace(rule=SimpleNamespace(where="a.toml:1"), match=lambda: None)
        forbidden = msgspec.structs.replace(world.event(Kind.OTHER), what=What.FORBIDDEN, parent=Refusal.GROUPS)
        elsewhere = msgspec.structs.replace(forbidden, fd=FD + 1)
        world.made(Kind.CHANNEL)
        world.sightings.hear([elsewhere, forbidden])
        await world.looked(1)
        await asyncio.sleep(0)
        why = "suspended: it made more channel groups, which a.toml:1 forbids"
        assert (suspended, world.ran) == ([(SuspendedBy.POLICY, why)], [{"GPU"}])
        world.made(Kind.CHANNEL)
        await world.looked(2)
        await asyncio.sleep(0)
        assert len(suspended) == 1  # it was resumed meanwhile, or not
        world.sightings.hear([elsewhere])
        assert len(suspended) == 1
        world.sightings.hear([forbidden])
        assert len(suspended) == 2
        world.sightings.close()

    asyncio.run(run())


def test_files_of_who_is_managed_are_looked_at_once_one_was_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sightings, "QUIET_S", 0.0)

    async def run() -> None:
        world = World()
        world.managed[PID] = object()
        for what, pid in ((What.CLOSED, PID), (What.EXECUTED, PID), (What.CLOSED, PID + 1)):
            world.sightings.hear([msgspec.structs.replace(world.event(Kind.OTHER), what=what, pid=pid)])
        await asyncio.sleep(0.01)
        assert world.checked == [PID, PID]
        world.sightings.close()

    asyncio.run(run())


def test_who_ended_is_looked_at_no_more() -> None:
    async def run() -> None:
        world = World()
        world.made(Kind.CHANNEL)
        world.sightings.hear([msgspec.structs.replace(world.event(Kind.OTHER), what=What.ENDED)])
        await asyncio.sleep(2 * LONGEST_S)
        assert world.looks == []
        assert world.forgotten == 1
        world.sightings.close()

    asyncio.run(run())
