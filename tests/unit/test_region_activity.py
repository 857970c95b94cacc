"""What the processes of a region say that they do, and having them say when they work."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from runlist.planes.process.region import Activity, RegionError
from runlist.planes.process.region.activity import MAX_COUNT, Activities
from runlist.planes.process.region.format import NO_LIMIT, SLOT, SLOTS, SLOTS_AT, SlotState
from tests.fixtures.region import Made, child, made

# As they are to be: taken from the code they would hold whatever it says.
LOOK_AGAIN_S = 1.0
MOST_MOVES = 3

__all__ = ["child", "made"]


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_the_activity_of_a_process(made: Made, child: int) -> None:
    made.slot(0, os.getpid(), activity=(1, 2, 3, 4))
    made.slot(3, child, activity=(50, 60, 70, 80))
    assert made.region.activity(child) == Activity(50, 60, 70, 80)
    assert made.region.activity(os.getpid()) == Activity(1, 2, 3, 4)
    made.slot(3, child, activity=(51, 0, 77, 88))
    assert made.region.activity(child) == Activity(51, 0, 77, 88)


def test_the_activity_of_who_has_no_slot(made: Made, child: int, clock: Clock) -> None:
    made.slot(0, child, start=1)  # an earlier one of the same id
    made.slot(1, child, state=SlotState.REAPED)
    assert made.region.activity(child) is None
    assert made.region.activity(1 << 22) is None
    assert not made.region.watch(child, True)
    made.slot(2, child, activity=(9, 0, 0, 0))
    assert made.region.activity(child) is None  # it is not looked for each time
    clock.now += LOOK_AGAIN_S
    assert made.region.activity(child) == Activity(9, 0, 0, 0)


def test_whose_slot_has_which_clients(made: Made, child: int, clock: Clock) -> None:
    activities = Activities(lambda at, size: os.pread(made.region.fileno(), size, at))
    assert activities.clients_of(child) == (-1, 0)
    made.slot(3, child)
    assert activities.clients_of(child) == (-1, 0)  # it is not looked for each time
    clock.now += LOOK_AGAIN_S
    made.write(SLOTS_AT + 3 * SLOT.size + SLOT.offsets["clients"], (5).to_bytes(8, "little"))
    assert activities.clients_of(child) == (3, 5)
    made.slot(3, os.getpid())
    assert activities.clients_of(child) == (-1, 0)  # it is somebody else's by now


def test_a_slot_beyond_those_that_were_claimed_is_none(made: Made, child: int) -> None:
    made.slot(2, child)
    made.header("slots_used", 2, 4)
    assert made.region.activity(child) is None


def test_a_process_that_moves_to_another_slot_is_found_at_once(made: Made, child: int) -> None:
    made.slot(1, child, activity=(3, 0, 0, 0))
    assert made.region.activity(child) == Activity(3, 0, 0, 0)
    made.slot(1, os.getpid(), activity=(5, 0, 0, 0))
    made.slot(2, child, activity=(4, 0, 0, 0))
    assert made.region.activity(child) == Activity(4, 0, 0, 0)
    made.write(SLOTS_AT + 2 * SLOT.size, bytes(SLOT.size))
    assert made.region.activity(child) is None


def test_a_slot_that_changes_hands_all_the_time_is_not_looked_for_each_time(
    made: Made, child: int, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look for it reads all slots."""
    made.slot(1, os.getpid())
    made.slot(SLOTS - 1, os.getpid())
    sizes: list[int] = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: sizes.append(size) or pread(fd, size, at))
    for turn in range(200):
        made.slot((1, SLOTS - 1)[turn % 2], child)
        made.slot((SLOTS - 1, 1)[turn % 2], os.getpid())
        made.header("slots_used", SLOTS, 4)
        made.region.activity(child)
        made.region.watch(child, True)
        clock.now += LOOK_AGAIN_S / 100
    assert sum(size > SLOT.size for size in sizes) <= 2 * (MOST_MOVES + 2)
    clock.now += LOOK_AGAIN_S
    assert made.region.activity(child) == Activity()


def test_a_process_may_move_a_few_times_and_be_found_each_time(made: Made, child: int, clock: Clock) -> None:
    places = [2 * turn for turn in range(MOST_MOVES + 2)]
    for before, at in zip([None, *places], places, strict=False):
        if before is not None:
            made.slot(before, os.getpid())
        made.slot(at, child, activity=(at, 0, 0, 0))
        found = made.region.activity(child)
        assert found == (Activity(at) if at < places[-1] else None)
    clock.now += LOOK_AGAIN_S  # then it is looked for again
    assert made.region.activity(child) == Activity(places[-1])


def test_a_process_that_ended_does_nothing_any_more(made: Made, clock: Clock) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    made.slot(0, process.pid, activity=(1, 1, 0, 0))
    assert made.region.activity(process.pid) == Activity(1, 1, 0, 0)
    process.communicate()
    clock.now += LOOK_AGAIN_S
    assert made.region.activity(process.pid) is None


@pytest.mark.parametrize("number", [MAX_COUNT, MAX_COUNT + 1, NO_LIMIT])
def test_an_activity_that_is_nonsense_is_bounded(made: Made, child: int, number: int) -> None:
    made.slot(0, child, activity=(number,) * 4)
    assert made.region.activity(child) == Activity(*[MAX_COUNT] * 4)


def test_one_read_tells_the_activity(made: Made, child: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made.slot(500, child)
    made.slot(501, os.getpid())
    pids = (child, os.getpid())
    for pid in pids:
        made.region.activity(pid)
    calls: list[int] = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: calls.append(size) or pread(fd, size, at))
    for pid in pids * 5:
        made.region.activity(pid)
    assert len(calls) == 10
    assert max(calls) <= 128


def test_however_many_are_asked_for(made: Made, child: int) -> None:
    made.slot(0, child, activity=(7, 0, 0, 0))
    for pid in range(1 << 22, (1 << 22) + 3 * SLOTS):
        assert made.region.activity(pid) is None
    assert made.region.activity(child) == Activity(7, 0, 0, 0)
    assert len(made.region._activities._places) <= SLOTS


def test_a_process_is_watched_and_not(made: Made, child: int) -> None:
    made.slot(0, os.getpid())
    made.slot(1, child)
    assert made.region.watch(child, True)
    assert (made.watched(0), made.watched(1)) == (0, 1)
    assert made.region.watch(child, False)
    assert made.watched(1) == 0
    assert made.region.activity(child) == Activity()


def test_the_activity_in_a_region_that_was_cut_short(made: Made, child: int) -> None:
    made.slot(1, child)
    made.region.activity(child)
    os.ftruncate(made.region.fileno(), SLOTS_AT)
    with pytest.raises(RegionError, match="cut short"):
        made.region.activity(child)
