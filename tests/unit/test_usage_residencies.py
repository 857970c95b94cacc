"""From records to residencies: whose time it was, told once, and nothing invented."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runlist.planes.nvidia.switch_log import Batch, Record
from runlist.planes.nvidia.usage.residencies import Residencies
from runlist.planes.usage import Reading, Residency

S, E = 6, 7
MS = 1_000_000
NOW = 1_700_000_000_000_000_000


def _feed(
    follower: Residencies, *events: tuple[int, float, float], until: float, gaps: list[tuple[int, int]] | None = None
) -> Reading:
    """Events are (tag, pid, ms); process 12's context 3 is written 12.3."""
    records: list[Record] = []
    for number, (tag, pid, at) in enumerate(events):
        who, _, which = str(pid).partition(".")
        records.append((tag, number, int(which or 0), int(who), NOW + round(at * MS)))
    return follower.feed(Batch(records, gaps or [], NOW + int(until * MS)))


def _ms(reading: Reading) -> list[tuple[int, float, float]]:
    return [
        (part.pid, round((part.start_ns - NOW) / MS, 3), round((part.end_ns - NOW) / MS, 3))
        for part in reading.residencies
    ]


def _follower() -> Residencies:
    return Residencies(NOW)


def test_two_processes_in_turns() -> None:
    reading = _feed(_follower(), (S, 1, 0), (E, 1, 2), (S, 2, 2.084), (E, 2, 4), (S, 1, 4.084), until=5)
    assert _ms(reading) == [(1, 0, 2), (2, 2.084, 4), (1, 4.084, 5)]
    assert reading.usage[1].held_s == pytest.approx(0.002916)
    assert reading.usage[2].held_s == pytest.approx(0.001916)
    assert (reading.usage[1].turns, reading.usage[2].turns) == (2, 1)
    assert reading.until == pytest.approx(NOW / 1e9 + 0.005)
    assert reading.dropped == 0


def test_an_open_turn_comes_in_parts_that_join_and_counts_once() -> None:
    follower = _follower()
    parts = [_feed(follower, (S, 1, 1), until=3), _feed(follower, until=7), _feed(follower, (E, 1, 8), until=9)]
    assert [_ms(part) for part in parts] == [[(1, 1, 3)], [(1, 3, 7)], [(1, 7, 8)]]
    assert [part.usage[1].turns for part in parts] == [1, 0, 0]
    assert _feed(follower, until=20).usage == {}


def test_records_after_the_flush_belong_to_this_reading() -> None:
    follower = _follower()
    assert _ms(_feed(follower, (S, 1, 1), (E, 1, 4), (S, 2, 4.5), until=3)) == [(1, 1, 4)]
    assert _ms(_feed(follower, until=6)) == [(2, 4.5, 6)]


def test_clocks_that_disagree_a_little_tell_nothing_twice() -> None:
    """The reader took 1's part up to 5; then the log says that it ended at 4.96."""
    follower = _follower()
    _feed(follower, (S, 1, 0), until=5)
    reading = _feed(follower, (E, 1, 4.96), (S, 2, 4.99), (E, 2, 6), until=7)
    assert _ms(reading) == [(2, 5, 6)]


def test_two_contexts_of_a_process() -> None:
    follower = _follower()
    reading = _feed(follower, (S, 1.1, 0), (E, 1.1, 1), (S, 1.2, 2), (E, 1.2, 4), until=4)
    assert reading.residencies == [
        Residency(1, 1, NOW, NOW + MS),
        Residency(1, 2, NOW + 2 * MS, NOW + 4 * MS),
    ]
    assert (reading.usage[1].held_s, reading.usage[1].turns) == (pytest.approx(0.003), 2)


def test_who_was_there_before_the_log_is_known_at_its_end() -> None:
    assert _ms(_feed(_follower(), (E, 1, 3), (S, 2, 3.1), until=4)) == [(1, 0, 3), (2, 3.1, 4)]
    follower = _follower()
    _feed(follower, until=10)
    assert _ms(_feed(follower, (E, 1, 13), until=14)) == [(1, 10, 13)]  # of this reading's time only


def test_an_end_without_a_start_later_on_tells_nothing() -> None:
    follower = _follower()
    reading = _feed(follower, (S, 1, 0), (E, 1, 1), (E, 2, 3), until=4)
    assert _ms(reading) == [(1, 0, 1)]
    assert _ms(_feed(follower, (S, 1, 5), (E, 2, 6), until=7)) == []


def test_a_start_without_an_end_ends_at_the_next_start() -> None:
    assert _ms(_feed(_follower(), (S, 1, 0), (S, 2, 3), (E, 2, 4), until=5)) == [(1, 0, 3), (2, 3, 4)]


def test_one_lost_record_is_the_holders_end() -> None:
    reading = _feed(_follower(), (S, 1, 0), (S, 2, 3), until=4, gaps=[(1, 1)])
    assert _ms(reading) == [(1, 0, 3), (2, 3, 4)]
    assert reading.dropped == 1


def test_time_of_which_records_are_missing_is_nobodys() -> None:
    follower = _follower()
    _feed(follower, (S, 1, 0), until=2)
    reading = _feed(follower, (E, 2, 50), (S, 3, 51), (E, 3, 52), until=53, gaps=[(0, 40), (2, 2)])
    assert _ms(reading) == []
    assert reading.dropped == 42
    assert reading.usage[3].turns == 1
    reading = _feed(follower, (S, 3, 60), until=61)
    assert _ms(reading) == [(3, 60, 61)]


def test_a_lapped_log_goes_on_with_what_is_left() -> None:
    follower = _follower()
    _feed(follower, (S, 1, 0), (E, 1, 1), until=2)
    reading = _feed(follower, (E, 2, 100), (S, 1, 101), (E, 1, 102), until=103, gaps=[(0, 5000)])
    assert _ms(reading) == [(1, 101, 102)]


def test_other_records_are_passed_over() -> None:
    assert _ms(_feed(_follower(), (0, 9, 0), (S, 1, 1), (5, 9, 2), (E, 1, 3), (255, 9, 4), until=5)) == [(1, 1, 3)]


def test_hidden_and_kernel_processes_are_pid_0() -> None:
    reading = _feed(_follower(), (S, 0, 0), (E, 0, 1), (S, 0xFFFFFFFF, 2), (E, 0xFFFFFFFF, 3), until=3)
    assert _ms(reading) == [(0, 0, 1), (0, 2, 3)]


def test_a_clock_that_is_set_back_does_not_stop_the_accounts() -> None:
    follower = _follower()
    _feed(follower, (S, 1, 0), until=100)
    assert _ms(_feed(follower, until=-3_600_000)) == []
    assert _ms(_feed(follower, until=-3_599_990)) == [(1, -3_600_000, -3_599_990)]


@pytest.mark.parametrize("slept", [300, 8 * 3_600_000])
@pytest.mark.parametrize("in_log", [False, True])
def test_nobody_is_charged_for_a_time_that_the_clock_left_out(in_log: bool, slept: int) -> None:
    """As of a machine that slept, or whose clock was wrong by a little: the time by one that nobody sets is all that
    passed.
    """
    follower, told = _follower(), []
    feeds = [(0, 10), (slept, slept + 20), (slept + 20, slept + 30)]
    for number, (start, until) in enumerate(feeds):
        records = [(S, number, 0, 1, NOW + start * MS)] if in_log or not number else []
        told += _ms(follower.feed(Batch(records, [], NOW + until * MS, 20 * MS)))
    assert told == [(1, 0, 10), (1, slept, slept + 20), (1, slept + 20, slept + 30)]


_EVENT = st.tuples(st.sampled_from([S, E, 0]), st.integers(1, 3), st.integers(0, 2), st.integers(-50, 900))


@given(st.lists(st.tuples(st.lists(_EVENT, max_size=8), st.integers(0, 500), st.booleans()), max_size=6))
def test_whatever_is_logged_time_is_told_once(batches: list[tuple[list[tuple[int, int, int, int]], int, bool]]) -> None:
    follower = _follower()
    told, now = NOW, 0
    for events, step, lost in batches:
        now += step
        records = [(tag, 0, context, pid, NOW + now * MS + late * MS) for tag, pid, context, late in events]
        gaps = [(len(records) // 2, 3)] if lost and records else []
        reading = follower.feed(Batch(records, gaps, NOW + now * MS))
        span = sum(part.end_ns - part.start_ns for part in reading.residencies)
        assert sum(held.held_s for held in reading.usage.values()) == pytest.approx(span / 1e9)
        for part in reading.residencies:
            assert told <= part.start_ns < part.end_ns <= reading.until * 1e9 + 1000
            told = part.end_ns
