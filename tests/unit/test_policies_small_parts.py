"""Parts of policies by themselves, in a few steps each: what they say at which moment."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from runlist.model import Activity, Announce, Busy, Idle, Task, TaskClass, TaskKey, Usage, Vanish
from runlist.policies.parts.announcements import Announcements
from runlist.policies.parts.lengths import RequestLengths
from runlist.policies.parts.requests import Requests
from runlist.policies.parts.slices import WeightedSlices
from runlist.policies.parts.tail import Tail

# What is promised of announcements and hints (docs/tenant-api.md), and was measured to be right of the rest.
AT_ONCE_S, AHEAD_S, WAIT_S, GRACE_S, LOOK_S, FARTHEST_S, BURST_S = 0.003, 0.0025, 0.005, 0.001, 0.001, 1.0, 0.05
FIRST_IDLE_S, MIN_IDLE_S, MAX_IDLE_S, FALSE_END_S, CALM = 0.001, 0.0007, 0.004, 0.001, 200
MOST_OFF_S, BREAK_S = 0.1, 0.005
RECENT_S, OLDEST_S = 1.0, 5.0
BASE_US, MAX_WINDOWS, REMEMBERED_S = 16_000, 16, 30.0

KEY, OTHER = TaskKey(1, "GPU-0"), TaskKey(2, "GPU-0")


def task(key: TaskKey = KEY, uid: int = 1000, **values: object) -> Task:
    return Task(key, values.pop("task_class", TaskClass.LATENCY), "program", uid, 0.0, **values)  # type: ignore[arg-type]


# -- how long requests are -------------------------------------------------------------------------


def test_a_request_lasts_from_its_first_work_to_the_beginning_of_its_idleness() -> None:
    lengths, idle_s = RequestLengths(), {KEY: 0.5}
    lengths.on_event(Idle(KEY), 0.5, idle_s)  # nobody saw it begin
    for began in (1.0, 10.0):
        assert lengths.seconds == {}  # of the first alone it is not known whether it was a request
        lengths.on_event(Busy(KEY), began, idle_s)
        lengths.on_event(Idle(KEY), began + 2.5, idle_s)
    assert lengths.seconds == {KEY: 2.0}
    for began in (20.0, 30.0):
        lengths.on_event(Busy(OTHER), began, idle_s)
        lengths.on_event(Idle(OTHER), began + 1.0, idle_s)
    assert lengths.seconds[OTHER] == 1.0  # it is idle at once
    for began in (40.0, 50.0, 60.0):
        lengths.on_event(Busy(OTHER), began, {OTHER: 9.0})
        lengths.on_event(Idle(OTHER), began + 1.0, {OTHER: 9.0})
    assert lengths.seconds[OTHER] == 0.0  # none lasts less than nothing


def test_how_a_program_starts_is_no_request() -> None:
    """It loads its weights and warms up for seconds; then requests of 5 ms come, now and then a longer one."""
    lengths, now = RequestLengths(), 0.0
    for lasts in (12.0, 0.005, 0.005, 0.3, 0.005):
        lengths.on_event(Busy(KEY), now, {})
        lengths.on_event(Idle(KEY), now + lasts, {})
        now += lasts + 1.0
    assert lengths.seconds == {KEY: pytest.approx(0.005)}


def test_requests_that_are_others_now_count_before_long() -> None:
    lengths = RequestLengths()
    for number in range(200):
        lengths.on_event(Busy(KEY), number, {})
        lengths.on_event(Idle(KEY), number + (0.1 if number < 190 else 0.4), {})
    assert lengths.seconds == {KEY: pytest.approx(0.4)}


def test_of_one_that_is_gone_nothing_is_known() -> None:
    lengths = RequestLengths()
    for began in (1.0, 3.0, 5.0):
        lengths.on_event(Busy(KEY), began, {})
        lengths.on_event(Idle(KEY), began + 1.0, {})
    lengths.on_event(Busy(KEY), 7.0, {})
    assert lengths.seconds == {KEY: 1.0}
    lengths.on_event(Vanish(KEY), 8.0, {})
    lengths.on_event(Idle(KEY), 9.0, {})
    assert lengths.seconds == {}
    lengths.on_event(Busy(KEY), 10.0, {})
    lengths.on_event(Idle(KEY), 12.0, {})
    assert lengths.seconds == {}  # another of its name


# -- tails -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("beyond", "exceeds"), [(0, False), (1, False), (2, True)])
def test_one_in_a_hundred_may_be_beyond_the_limit(beyond: int, exceeds: bool) -> None:
    tail = Tail()
    for number in range(100):
        tail.add(2.0 if number < beyond else 1.0, 10.0)
    assert tail.exceeds(1.0, 10.0, since=9.0) is exceeds
    assert not tail.exceeds(1.0, 10.0, since=10.0)  # they were acted on


def test_reports_count_up_to_their_age() -> None:
    tail = Tail()
    assert tail.silent(0.0)
    tail.add(0.0, 10.0)
    assert (tail.silent(10.0 + OLDEST_S - 0.01), tail.silent(10.0 + OLDEST_S)) == (False, True)
    assert tail.rate(10.0 + RECENT_S) == 1.0
    assert tail.rate(10.0 + RECENT_S + 0.01) == 0.0
    assert tail.p99_s(10.0 + OLDEST_S) == 0.0
    assert tail.p99_s(10.0 + OLDEST_S + 0.01) is None


def test_beyond_twenty_reports_those_of_the_last_second_count() -> None:
    tail = Tail()
    tail.add(9.0, 10.0)
    for _ in range(19):
        tail.add(1.0, 12.0)
    assert tail.p99_s(12.5) == pytest.approx(9.0)
    tail.add(1.0, 12.0)
    assert tail.p99_s(12.5) == 1.0


# -- announcements ---------------------------------------------------------------------------------


class Announcing:
    """A task that announces work at 10.0, and what is to be off for it."""

    def __init__(self, budget: float = 0.1) -> None:
        self.part = Announcements(budget)
        self.task = task(activity=Activity())
        self.part.appears(self.task)

    def announce(self, in_s: float, now: float = 10.0) -> None:
        self.part.note(Announce(KEY, in_s), now)

    def works(self, work: int, before: int = 0) -> None:
        assert self.task.activity is not None
        activity = msgspec.structs.replace(self.task.activity, work=work, before=before)
        self.task = replace(self.task, activity=activity)

    def off(self, now: float) -> tuple[float | None, float | None]:
        """Until when for it, and in how long to ask again."""
        wanted, look = self.part.off_until({KEY: self.task}, now)
        return wanted.get(KEY), look


def test_for_what_comes_soon_room_is_made_from_now_until_it_is_surely_late() -> None:
    one = Announcing()
    one.announce(AT_ONCE_S)
    assert one.part.expects(KEY)
    assert one.off(10.0) == (pytest.approx(10.0 + AT_ONCE_S + WAIT_S), LOOK_S)
    ends = 10.0 + AT_ONCE_S + WAIT_S
    assert one.off(ends - LOOK_S / 2) == (pytest.approx(ends), pytest.approx(LOOK_S / 2))
    until, _ = one.off(ends)
    assert until is None
    assert not one.part.expects(KEY)


def test_for_what_comes_later_room_is_made_a_little_before() -> None:
    one = Announcing()
    one.announce(FARTHEST_S)
    assert one.off(10.0) == (None, pytest.approx(FARTHEST_S - AHEAD_S))
    assert one.off(11.0 - AHEAD_S) == (pytest.approx(11.0 + WAIT_S), LOOK_S)
    one.part.clear()
    assert not one.part.expects(KEY)
    assert one.off(11.0) == (None, None)


def test_once_the_work_began_the_others_come_back_after_a_moment_and_nothing_is_owed() -> None:
    one = Announcing()
    one.announce(0.0)
    one.off(10.0)
    one.works(1)
    assert one.off(10.001) == (pytest.approx(10.001 + GRACE_S), pytest.approx(GRACE_S))
    assert one.off(10.001 + GRACE_S) == (None, None)
    assert one.part.why(KEY) == ""
    for number in (1, 2):
        one.announce(0.0, 11.0 + number)
        one.works(number + 1, before=number)
        one.off(11.0 + number)
        one.off(11.5 + number)
    assert one.part.why(KEY) == "announces its work: 0 of 3 were wrong"


def test_work_of_before_an_announcement_does_not_make_it_right() -> None:
    """What the task did when its last announcement was settled is the least that came before the next one."""
    one = Announcing()
    one.announce(0.0)
    one.works(5)
    one.off(10.0)
    one.off(10.0 + GRACE_S)
    one.announce(0.0, 11.0)
    until, _ = one.off(11.0)  # it says that there was nothing before, and so that its old work is new
    assert until == pytest.approx(11.0 + WAIT_S)
    one.works(6)
    assert one.off(11.001)[0] == pytest.approx(11.001 + GRACE_S)


def test_what_was_wrong_is_owed_and_who_owes_too_much_is_listened_to_once_it_is_saved() -> None:
    one = Announcing(budget=0.1)
    now, wrong = 10.0, 0
    while KEY in one.part.heard([KEY], now):
        one.announce(0.0, now)
        one.off(now)
        one.off(now + WAIT_S)
        now += WAIT_S
        wrong += 1
        assert wrong < 100
    assert 10 <= wrong <= 12  # each takes WAIT_S, of which a tenth is saved meanwhile
    until, look = one.off(now)
    assert until is None
    assert look == pytest.approx(BURST_S / 0.1, rel=0.05)
    assert look is not None
    assert KEY not in one.part.heard([KEY], now + look - 0.01)
    assert KEY in one.part.heard([KEY], now + look + 1e-6)
    assert one.part.why(KEY) == f"announces its work: {wrong} of {wrong} were wrong"


def test_two_who_owe_share_what_is_saved() -> None:
    one = Announcing(budget=0.1)
    other = task(OTHER, uid=2000, activity=Activity())
    one.part.appears(other)
    for key in (KEY, OTHER):
        one.part.note(Announce(key, 0.0), 10.0)
    one.part.off_until({KEY: one.task, OTHER: other}, 10.0)
    one.part.off_until({KEY: one.task, OTHER: other}, 10.0 + 2 * BURST_S)  # nobody looked for long
    assert one.part.heard([KEY, OTHER], 10.1) == frozenset()
    _, look = one.part.off_until({}, 10.1)
    saved = 0.1 * 0.1 / 2  # by each, while nobody looked
    assert look == pytest.approx((2 * BURST_S - saved) * 2 / 0.1)


@pytest.mark.parametrize(("in_s", "counts"), [(0.0, True), (-1e-9, False), (FARTHEST_S, True), (1.01, False)])
def test_what_is_announced_for_a_time_that_makes_no_sense_counts_for_nothing(in_s: float, counts: bool) -> None:
    one = Announcing()
    one.announce(in_s)
    assert one.part.expects(KEY) is counts
    without = Announcing(budget=0.0)
    without.announce(in_s)
    assert not without.part.expects(KEY)
    assert without.part.heard([KEY], 10.0) == frozenset()


# -- requests --------------------------------------------------------------------------------------


def test_a_pause_that_was_no_end_makes_programs_idle_later_and_calm_makes_them_idle_sooner() -> None:
    requests = Requests()
    assert requests.idle_s(KEY) == FIRST_IDLE_S
    now = 10.0
    for expected in (1.5e-3, 2.25e-3, 3.375e-3, MAX_IDLE_S, MAX_IDLE_S):
        requests.begins(KEY, now)
        requests.ends(KEY, now)
        requests.begins(KEY, now + FALSE_END_S / 2)
        assert requests.idle_s(KEY) == pytest.approx(expected)
        now += 10
    for _ in range(CALM - 1):
        now += 1
        requests.begins(KEY, now)
        requests.ends(KEY, now)
    assert requests.idle_s(KEY) == MAX_IDLE_S
    requests.begins(KEY, now + 1)
    assert requests.idle_s(KEY) == pytest.approx(0.9 * MAX_IDLE_S)
    for _ in range(40 * CALM):
        requests.ends(KEY, now)
        now += 1
        requests.begins(KEY, now)
    assert requests.idle_s(KEY) == MIN_IDLE_S
    requests.drop(KEY, now)
    assert requests.idle_s(KEY) == FIRST_IDLE_S


def test_how_many_began_and_how_long_there_were_any_is_taken_once() -> None:
    requests = Requests()
    requests.begins(KEY, 10.0)
    requests.begins(OTHER, 10.5)
    requests.ends(KEY, 11.0)
    requests.ends(OTHER, 12.0)
    requests.begins(KEY, 20.0)
    assert requests.take(20.25) == (3, pytest.approx(2.25))
    assert requests.take(20.5) == (0, pytest.approx(0.25))
    requests.clear()
    assert not requests.any_busy
    assert requests.take(30.0) == (0, 0.0)


def test_a_request_has_the_gpu_for_a_while_then_the_others_have_a_break() -> None:
    requests, busy = Requests(), task(activity=Activity())
    requests.begins(KEY, 10.0)

    def off(now: float, asked: dict[TaskKey, float] | None = None) -> tuple[float | None, float]:
        return requests.off_until([busy], [busy], asked or {}, now)

    ends = 10.0 + MOST_OFF_S
    assert off(10.0) == off(10.05) == (pytest.approx(ends), pytest.approx(ends))
    assert off(ends) == (None, pytest.approx(ends + BREAK_S))
    assert requests.in_break(ends + BREAK_S / 2)
    assert off(ends + BREAK_S / 2) == (None, pytest.approx(ends + BREAK_S))
    assert not requests.in_break(ends + BREAK_S)
    again = ends + BREAK_S
    assert off(again)[0] == pytest.approx(again + MOST_OFF_S)
    requests.ends(KEY, again + 0.01)
    until, look = off(again + 0.01)
    assert until is None
    assert look > 1e6  # nothing is to be looked at


def test_who_asked_has_it_until_the_time_that_it_named_and_no_longer_than_a_request() -> None:
    requests, idle = Requests(), task(activity=Activity())
    assert requests.off_until([], [idle], {KEY: 10.02, OTHER: 10.01}, 10.0) == (10.02, 10.02)
    assert requests.off_until([], [idle], {KEY: 99.0}, 10.01)[0] == pytest.approx(10.0 + MOST_OFF_S)
    assert requests.off_until([], [idle], {KEY: 10.02}, 10.02)[0] is None  # it is over


# -- slices ----------------------------------------------------------------------------------------


def competing(*keys: int, **values: object) -> list[Task]:
    return [task(TaskKey(pid, "GPU-0"), task_class=TaskClass.NORMAL, group=f"g{pid}", **values) for pid in keys]


def test_what_is_known_of_tasks_that_are_long_gone_is_forgotten() -> None:
    slices = WeightedSlices()
    both = competing(1, 2)
    slices.slices(both, both, 100.0)
    assert len(slices._windows) == 1
    later = competing(3, 4)
    slices.slices(later, later, 100.0 + REMEMBERED_S - 1)
    assert set(slices._groups) == {"g1", "g2", "g3", "g4"}
    slices.slices(later, later, 100.0 + 2 * REMEMBERED_S)
    assert set(slices._groups) == {"g3", "g4"}
    assert {key.pid for key in slices._given} == {3, 4}
    assert len(slices._windows) == 1


def test_of_sets_of_tasks_the_latest_are_remembered() -> None:
    slices = WeightedSlices()
    for pid in range(2, MAX_WINDOWS + 4):
        both = competing(1, pid)
        slices.slices(both, both, 100.0 + pid / 1000)
    assert len(slices._windows) == MAX_WINDOWS
    assert {key.pid for window in slices._windows for key, _, _ in window} == {1, *range(4, MAX_WINDOWS + 4)}


def test_one_alone_has_the_mean_slice_whatever_its_weight_and_is_not_asked_about_again() -> None:
    slices = WeightedSlices()
    (alone,) = competing(1, weight=500)
    assert slices.slices([alone], [alone], 100.0) == ({alone.key: BASE_US}, None)


def test_a_slice_that_is_nearly_the_same_is_left() -> None:
    slices = WeightedSlices()
    both = [replace(one, weight=weight) for one, weight in zip(competing(1, 2), (100, 100), strict=True)]
    assert set(slices.slices(both, both, 100.0)[0].values()) == {BASE_US}
    for weight, changed in ((105, False), (130, True)):
        both[0] = replace(both[0], weight=weight)
        given = slices.slices(both, both, 100.0)[0]
        assert (given[both[0].key] != BASE_US) is changed


def test_time_that_a_task_gave_back_counts_as_none() -> None:
    slices = WeightedSlices()
    both = competing(1, 2)
    slices.slices(both, [replace(one, usage=Usage(5.0, 10)) for one in both], 100.0)
    less = [replace(one, usage=Usage(4.0, 8)) for one in both]
    slices._usage = {one.key: Usage(5.0, 10) for one in both}
    slices.slices(both, less, 100.1)
    (window,) = slices._windows.values()
    assert set(window.held.values()) == {0.0}
    assert set(window.turns.values()) == {0}


def held(slices: WeightedSlices, both: list[Task], now: float, *seconds: float, turns: int = 60) -> dict[int, int]:
    """So much each of them had by then."""
    both[:] = [
        replace(one, usage=Usage(one.usage.held_s + more, one.usage.turns + turns))
        for one, more in zip(both, seconds, strict=True)
    ]
    return {key.pid: us for key, us in slices.slices(both, both, now)[0].items()}


def test_a_difference_of_less_than_a_turn_is_corrected_after_two_seconds_and_not_before() -> None:
    slices, both = WeightedSlices(), competing(1, 2)
    slices.slices(both, both, 100.0)
    held(slices, both, 101.0, 0.505, 0.495, turns=31)
    assert {name: group.factor for name, group in slices._groups.items()} == {"g1": 1.0, "g2": 1.0}
    held(slices, both, 102.1, 0.555, 0.545, turns=34)
    factors = {name: group.factor for name, group in slices._groups.items()}
    assert factors["g1"] < 1.0 < factors["g2"]
    assert factors["g2"] / factors["g1"] == pytest.approx((1.06 / 1.04) ** 0.7, rel=1e-3)


def test_who_does_not_fill_its_slices_has_those_of_the_others_cut() -> None:
    slices, both = WeightedSlices(), competing(1, 2)
    slices.slices(both, both, 100.0)
    given = held(slices, both, 100.5, 0.40, 0.10, turns=25)  # the second's turns are of 4 ms, of 16 that it could have
    assert given == {1: pytest.approx(BASE_US * 0.25**0.7, rel=0.02), 2: BASE_US}


def test_one_that_pauses_is_compared_with_nobody_and_its_factor_wears_off() -> None:
    slices, both = WeightedSlices(), competing(1, 2)
    slices.slices(both, both, 100.0)
    held(slices, both, 100.5, 0.35, 0.15, turns=22)
    factor = slices._groups["g1"].factor
    both[1] = replace(both[1], usage=Usage(both[1].usage.held_s, both[1].usage.turns - 22))
    held(slices, both, 101.0, 0.5, 0.0, turns=22)
    assert slices._groups["g1"].factor == pytest.approx(factor**0.5)


def test_slices_are_within_bounds_whatever_the_weights() -> None:
    slices = WeightedSlices()
    both = [replace(one, weight=weight) for one, weight in zip(competing(1, 2), (10_000, 1), strict=True)]
    assert {key.pid: us for key, us in slices.slices(both, both, 100.0)[0].items()} == {1: 200_000, 2: 700}
