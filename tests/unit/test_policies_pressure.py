"""Pressure and the floor: when requests queue, when they do not any more, and that nobody is stopped for good."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runlist.policies.parts.floor import Floor
from runlist.policies.parts.pressure import Pressure

# As they are to be: taken from the code they would hold whatever it says.
AT_ONCE_S = 0.25
FIRST_REST_S = 0.001
LASTS = 4.0
LONGEST_REST_S = 0.03
SHORT_S = 0.01
STOPS_PER_S = 80.0

TARGET_S = 0.010
USUAL_S = 0.002


def used_to(latency_s: float = USUAL_S) -> Pressure:
    """Requests took so long for a while, until 10.0."""
    pressure = Pressure()
    for number in range(400):
        pressure.add(latency_s, TARGET_S, 6.0 + number / 100, tight=False)
    return pressure


@pytest.mark.parametrize(("tight", "begins_ms"), [(False, 2 + 0.3 * 8), (True, 2 + 0.1 * 8)])
def test_it_begins_with_the_first_request_that_queues_and_ends_with_the_first_that_does_not(
    tight: bool, begins_ms: float
) -> None:
    pressure = used_to()
    longest_s = begins_ms / 1e3
    calm_s = USUAL_S + 0.6 * (longest_s - USUAL_S)
    assert not pressure.add(longest_s - 0.0002, TARGET_S, 10.0, tight=tight)
    assert pressure.until < 10.0
    assert pressure.add(longest_s + 0.0002, TARGET_S, 10.001, tight=tight)
    assert not pressure.add(0.0090, TARGET_S, 10.002, tight=tight)  # that is known
    assert pressure.until == pytest.approx(10.002 + LASTS * TARGET_S)
    assert not pressure.add(calm_s + 0.0002, TARGET_S, 10.003, tight=tight)  # still longer than usual
    assert pressure.until > 10.003
    assert pressure.add(calm_s - 0.0002, TARGET_S, 10.004, tight=tight)
    assert pressure.until == pytest.approx(10.004)
    assert not pressure.add(USUAL_S, TARGET_S, 10.005, tight=tight)


def test_a_request_that_takes_long_by_itself_is_usual() -> None:
    """However near the target that is."""
    pressure = used_to(0.009)
    for number in range(200):
        assert not pressure.add(0.0092, TARGET_S, 10.0 + number / 100, tight=False)
    assert pressure.until < 10.0
    assert pressure.add(0.0105, TARGET_S, 12.01, tight=False)


def test_it_says_nothing_where_most_requests_are_late_anyway() -> None:
    pressure = used_to(0.030)
    assert not pressure.add(0.090, TARGET_S, 10.0, tight=False)
    assert pressure.until < 10.0


def queue(pressure: Pressure, now: float, *, tight: bool) -> float:
    """Requests queue, and do not 2 ms later; returns how long the rest after that is."""
    assert pressure.add(0.005, TARGET_S, now, tight=tight)
    assert pressure.add(USUAL_S, TARGET_S, now + 0.002, tight=tight)
    return max(0.0, pressure.until - now - 0.002)


def test_when_it_is_tight_others_rest_for_longer_after_each_return_that_was_too_soon() -> None:
    pressure, now, rests = used_to(), 10.0, []
    for _ in range(9):
        rests.append(queue(pressure, now, tight=True))
        now = pressure.until + 0.5 * SHORT_S
    assert rests[0] == pytest.approx(0, abs=1e-9)
    assert rests[1:4] == pytest.approx([FIRST_REST_S, 2 * FIRST_REST_S, 4 * FIRST_REST_S])
    assert rests[-1] == pytest.approx(LONGEST_REST_S)
    now = pressure.until + 3 * SHORT_S
    assert queue(pressure, now, tight=True) == pytest.approx(LONGEST_REST_S / 4)
    assert queue(pressure, pressure.until + 0.5 * SHORT_S, tight=False) == pytest.approx(0, abs=1e-9)


def test_however_often_requests_queue_the_stops_are_limited() -> None:
    pressure, now, begun = used_to(), 10.0, 0
    while now < 20.0:
        begun += pressure.add(0.005, TARGET_S, now, tight=False)
        pressure.add(USUAL_S, TARGET_S, now + 0.0005, tight=False)
        now += 0.001
    assert 0.8 * STOPS_PER_S * 10 < begun <= STOPS_PER_S * (10 + AT_ONCE_S) + 1


_latencies = st.floats(0.0, 1e9, allow_nan=False)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(0.0, 0.2), _latencies, st.booleans()), max_size=200))
def test_whatever_is_reported_it_ends(reports: list[tuple[float, float, bool]]) -> None:
    """Soon after the reports end, and with requests that take equally long at last."""
    pressure, now = Pressure(), 10.0
    for pause_s, latency_s, tight in reports:
        now += pause_s
        pressure.add(latency_s, TARGET_S, now, tight=tight)
        assert pressure.until <= now + max(LASTS * TARGET_S, LONGEST_REST_S, len(reports) / STOPS_PER_S)
    pressures = 0
    for number in range(3_000):
        now += 0.1
        pressures = pressures + 1 if pressure.add(USUAL_S, TARGET_S, now, tight=False) and number > 2_500 else pressures
    assert pressures == 0


# -- the floor -------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1_000), st.floats(0.0, 1.0), st.floats(1e-3, 0.05))
def test_whoever_is_stopped_has_its_part_nevertheless(seed: int, wish: float, pause_s: float) -> None:
    rnd = random.Random(seed)
    floor, now, on_s, last = Floor(0.01, 0.005), 10.0, 0.0, 10.0
    stopped = False
    while now < 20.0:
        wanted = rnd.random() < wish
        ends = floor.ends(wanted, now)
        stopped = wanted and ends is None
        last, now = now, (now + pause_s if ends is None else min(ends, now + pause_s))
        on_s += 0.0 if stopped else now - last
    assert on_s >= 0.01 * 10 - 4 * 0.005


def test_who_is_always_stopped_has_no_more_than_its_part_and_who_runs_anyway_is_not_let_go() -> None:
    floor, on_s = Floor(0.01, 0.005), 0.0
    for step in range(10_000):
        on_s += 0.001 * (floor.ends(True, 10 + step / 1e3) is not None)
    assert on_s == pytest.approx(0.1, rel=0.25)
    floor = Floor(0.01, 0.005)
    for step in range(10_000):
        assert floor.ends(step % 20 != 0, 10 + step / 1e3) is None  # one millisecond of twenty
