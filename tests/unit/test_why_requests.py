"""Which calls of a process are one request, and what parts two: made-up events, all in µs here."""

from __future__ import annotations

import sys

import pytest

from runlist.why.report import analyse, lines
from runlist.why.requests import USUAL_PAUSE_NS, learnt_pause
from runlist.why.seen import What
from runlist.why.under_way import Waits
from tests.fixtures.why_events import (
    COPY,
    ME,
    PAUSE_US,
    STACK_OF_FUTEX,
    STACK_OF_STOP,
    STOPPED,
    SYNC,
    Event,
    asleep,
    back,
    call,
    launch,
    out,
    parts_us,
    row_of,
    seen,
    turn,
    us,
    usual,
    wake,
)


def test_one_that_goes_on_when_the_recording_ends_is_told_with_what_it_waits_for() -> None:
    events = [launch(0), out(50, state=0, to=77, name="hog"), back(30_050), *call(30_100, 0)[:1]]
    report = analyse(seen(events, 40_000, turns=[turn(30_100, 60_000)]), 0, us(PAUSE_US)).report
    assert (report.requests, report.slow) == (0, [])
    (row,) = report.going_on
    assert (row.ms, row.culprit) == (40.0, "core")
    assert sum(row.parts_ms.values()) == pytest.approx(row.ms)
    assert lines(report, "it") == [
        "it: no request was seen from its beginning to its end in 0.0 s",
        "one that began at 0.000 s went on, after 40.00 ms: it waited 30.0 ms for a core, which hog [77] had",
    ]


def test_what_has_not_begun_to_wait_goes_on_no_less() -> None:
    usual_ones = [each for number in range(5) for each in usual(10_000.0 * (number + 1))]
    begun = [*asleep(80_000, 90_000), launch(90_000), out(90_050, stack=STACK_OF_FUTEX)]
    report = analyse(seen([*usual_ones, *begun], 190_000), None, us(PAUSE_US)).report
    assert [row.why for row in report.going_on] == [
        "it waited for a lock of another thread, or process (futex), for 100.0 ms"
    ]
    idle = analyse(seen([*usual_ones, out(60_500)], 190_000), None, us(PAUSE_US)).report
    assert idle.going_on == []


def test_a_pause_is_slept_and_not_waited_for_a_core() -> None:
    kept = [launch(0), *call(100, 200), out(210, state=0, to=77), back(20_000), launch(20_010), *call(20_020, 20_100)]
    assert row_of(seen(kept, 90_000)).ms == pytest.approx(20.1)
    slept = [launch(0), *call(100, 200), *asleep(210, 20_000), launch(20_010), *call(20_020, 20_100)]
    assert len(analyse(seen(slept, 90_000), 0, us(PAUSE_US)).report.slow) == 2


def test_what_the_host_computes_while_the_gpu_works_is_no_pause() -> None:
    events = [wake(0), back(0), launch(10), launch(20_010), *call(20_020, 20_110), out(80_000)]
    assert row_of(seen(events, 90_000)).ms == pytest.approx(20.1)


def _of_two(at: float, waits_us: float = 0, stack: int = STACK_OF_FUTEX) -> list[Event]:
    """After a pause, two launches with something between them, and a wait."""
    kept = [out(at + 20, stack=stack), wake(at + 20 + waits_us), back(at + 20 + waits_us)] if waits_us else []
    at_wait = at + waits_us + 100
    return [*asleep(at - 8_000, at), launch(at), *kept, launch(at_wait - 50), *call(at_wait, at_wait + 300)]


def test_what_a_request_waits_for_in_its_middle_is_no_pause() -> None:
    events = [each for number in range(5) for each in _of_two(10_000.0 * (number + 1))]
    report = analyse(seen([*events, *_of_two(90_000, 20_000)], 200_000), us(10_000), us(PAUSE_US)).report
    (row,) = report.slow
    assert (report.requests, row.launches) == (6, 2)
    assert (row.culprit, row.why) == (
        "asleep",
        "it waited for a lock of another thread, or process (futex), for 20.0 ms",
    )
    assert parts_us(row) == {"host": 100, "asleep": 20_000, "gpu": 300}


def test_a_wait_for_what_was_launched_before_is_of_the_same_request() -> None:
    events = [launch(0), *asleep(10, 20_000), *call(20_010, 20_100)]
    row = row_of(seen(events, 90_000))
    assert parts_us(row) == {"host": 20, "asleep": 19_990, "gpu": 90}


def test_who_launches_ahead_and_waits_after_a_pause_has_a_request_each_time() -> None:
    events = [
        each
        for at in range(0, 200_000, 20_000)
        for each in (*call(at + 10, at + 400), launch(at + 450), *asleep(at + 500, at + 20_000))
    ]
    report = analyse(seen(events, 300_000), 0, us(PAUSE_US)).report
    assert [row.ms for row in report.slow] == pytest.approx([0.39] * 10)


@pytest.mark.parametrize("told", [{"stack": STACK_OF_STOP}, {"state": STOPPED}])
def test_who_is_stopped_rests_not_of_its_own_accord(told: dict[str, int]) -> None:
    between = [launch(0), out(50, **told), wake(60_000), back(60_050), launch(60_100), *call(60_200, 60_300)]
    row = row_of(seen(between, 90_000))
    assert row.why.startswith("it was stopped for 60.0 ms, by a signal, a debugger or its cgroup's freezer")
    while_it_waits = [launch(0), *call(100, 60_300), out(110, **told), wake(60_000), back(60_050)]
    row = row_of(seen(while_it_waits, 90_000, turns=[turn(0, 90_000)]))  # nobody else wants the GPU
    assert row.culprit == "asleep"
    assert "stopped" in row.why


def test_requests_that_one_thread_serves_at_once_are_told_apart_by_their_streams() -> None:
    """It launches for each on a stream of its own, and threads of a pool wait for them. One makes a call elsewhere in
    its middle, which takes long, while others come and go.
    """

    def request(at: float, stream: int, rest: float) -> list[Event]:
        waits = call(at + rest + 10, at + rest + 300, tid=ME + stream, stream=stream)
        return [launch(at, stream=stream), launch(at + rest, stream=stream), *waits]

    events = [*call(0, 100, COPY, stream=0), *call(100, 200, stream=0)]  # as it begins
    for number in range(10):
        events += request(1_000 + 10_000 * number, 16, 100)
        if number not in range(4, 7):
            events += request(1_050 + 10_050 * number, 17, 31_000 if number in (3, 9) else 100)
    report = analyse(seen(events, 131_000), us(5_000), us(PAUSE_US)).report
    assert [row.ms for row in report.slow] == pytest.approx([31.3, 31.3])
    assert report.requests == 18


def test_what_is_looked_at_does_not_grow_with_the_streams_there_have_been(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that makes a stream for each request, and one that never waits for some of them."""
    asked = []
    done = Waits.done
    monkeypatch.setattr(Waits, "done", lambda *of: asked.append(of) or done(*of))
    number = 100
    for streams in (range(16, 16 + number), range(16, 16 + number // 2)):
        events = []
        for each in range(number):
            at, stream = 1_000.0 + 10_000 * each, streams[each % len(streams)]
            events += [launch(at, stream=stream), launch(at + 10, stream=7_000 + each)]
            events += call(at + 100, at + 300, stream=stream)
        asked.clear()
        report = analyse(seen(events, 10_000.0 * (number + 1)), 0, us(PAUSE_US)).report
        assert report.requests == number
        assert len(asked) <= 2 * number


def test_how_many_launches_a_request_has_is_learnt_from_all_threads_where_one_has_made_few() -> None:
    """A pool of many: one of them sleeps in the middle of its second request."""
    events = []
    for tid in (ME, ME + 1, ME + 2):
        for at in (10_000, 20_000):
            rest = 3_000 if (tid, at) == (ME, 20_000) else 100
            events += [launch(at, tid, tid), out(at + 10, tid), wake(at + rest - 10, tid), back(at + rest - 10, tid)]
            events += [launch(at + rest, tid, tid), *call(at + rest + 10, at + rest + 300, SYNC, tid, tid)]
    rows = analyse(seen(events, 90_000), us(1_000), us(2_000)).report.slow
    assert [(row.ms, row.launches) for row in rows] == [(pytest.approx(3.3), 2)]


def test_a_request_that_uses_two_streams_is_one() -> None:
    events = []
    for at in range(10_000, 100_000, 10_000):
        events += [launch(at, stream=16), launch(at + 20, stream=17)]
        events += [*call(at + 100, at + 300, stream=16), *call(at + 310, at + 400, stream=17)]
    rows = analyse(seen(events, 110_000), 0, us(PAUSE_US)).report.slow
    assert [row.ms for row in rows] == pytest.approx([0.4] * 9)
    assert [row.launches for row in rows] == [2] * 9


def test_a_pause_is_learnt_from_the_widest_gap() -> None:
    short, long = [60_000, 90_000, 130_000], [9_000_000, 11_000_000]
    assert 130_000 < learnt_pause([*short, *long]) < 9_000_000
    assert learnt_pause([]) == USUAL_PAUSE_NS
    assert learnt_pause([60_000, 100_000, 200_000]) == USUAL_PAUSE_NS


def test_where_launches_are_not_watched_a_request_begins_where_its_thread_awakes() -> None:
    events = [
        *asleep(0, 20_000), *call(20_100, 20_400),  # it launched, unseen
        *asleep(20_500, 40_000), out(40_010, state=0, to=77, name="hog"), back(60_000), *call(60_100, 60_300),
    ]  # fmt: skip
    report = analyse(seen(events, 90_000, launches_until=0), 0, us(PAUSE_US)).report
    assert [row.ms for row in report.slow] == pytest.approx([0.4, 20.3])
    assert report.slow[1].culprit == "core"


def test_where_launches_are_not_watched_a_program_that_polls_has_requests_all_the_same() -> None:
    events = [
        wake(0),
        back(0),
        *call(10_000, 10_300),
        *call(10_400, 10_500),
        *call(30_000, 30_700),
        *call(50_000, 55_000),
    ]
    report = analyse(seen(events, 90_000, launches_until=0), 0, us(PAUSE_US)).report
    assert [row.ms for row in report.slow] == pytest.approx([0.5, 0.7, 5])
    assert not any("queue" in row.parts_ms for row in report.slow)  # each wait is for its own launch


def _steps(requests: int, threads: int = 2) -> int:
    """How many lines of ours are run for so many requests of each of some threads."""
    events = [
        each._replace(tid=tid, value=each.value + tid if each.what is What.CALL else each.value)
        for number in range(requests)
        for tid in range(ME, ME + threads)
        for each in usual(10_000.0 * (number + 1) + tid, 300 + number % 7)
    ]
    steps = 0

    def count(*_: object) -> object:
        nonlocal steps
        steps += 1
        return count

    what = seen(events, 20_000.0 * requests)
    sys.settrace(count)
    try:
        assert analyse(what, None, us(PAUSE_US)).report.requests == threads * requests
    finally:
        sys.settrace(None)
    return steps


def test_many_requests_take_as_much_longer_as_they_are_more() -> None:
    assert _steps(200) < 6 * _steps(50)


def test_many_threads_take_no_more_than_each_beside_each() -> None:
    """Not with each wait of a third beside these: a server may have some hundreds."""
    assert _steps(2, 40) < 20 * _steps(2, 10)
