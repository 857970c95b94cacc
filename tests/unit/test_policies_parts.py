"""The smaller parts of policies: hints, pace, options, reservations, segments, tails, AIMD and waiting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from runlist.model import Activity, Deadline, Hint, Segment, Share, Task, TaskClass, TaskKey, Usage
from runlist.policies import Decision, Policy
from runlist.policies.parts.aimd import Aimd
from runlist.policies.parts.hints import Hints
from runlist.policies.parts.options import no_more, number
from runlist.policies.parts.pace import Pace, reached
from runlist.policies.parts.reservation import Reservation
from runlist.policies.parts.segments import Segments
from runlist.policies.parts.tail import Tail
from runlist.policies.parts.waiting import Waiting, earliest

# As they are to be: taken from the code they would hold whatever it says.
BURST_S = 0.05
LONGEST_S = 0.0075
LONGEST_WAIT_S = 9.5
LOWEST = 0.01
MOST = 4096

KEY, OTHER = TaskKey(1, "GPU-0"), TaskKey(2, "GPU-0")
ALICE = (1000, "")


def task(key: TaskKey = KEY, **values: object) -> Task:
    return Task(key, values.pop("task_class", TaskClass.NORMAL), "x", 0, 0.0, **values)


# -- hints -----------------------------------------------------------------------------------------


def entitled(turns: int = 0) -> dict[TaskKey, Task]:
    return {KEY: task(usage=Usage(0.0, turns))}


def test_a_hint_holds_from_shortly_before_to_shortly_after() -> None:
    hints = Hints()
    hints.note(Hint(KEY, 0.1), 1.0)
    assert hints.off_until(entitled(), 1.0) == (None, pytest.approx(0.0975))
    until, look = hints.off_until(entitled(), 1.0976)
    assert (until, look) == (pytest.approx(1.105), pytest.approx(0.002))
    assert hints.off_until(entitled(), 1.1051) == (None, None)


def test_a_hint_ends_a_millisecond_after_the_task_came_on() -> None:
    hints = Hints()
    hints.note(Hint(KEY, 0.0), 1.0)
    hints.off_until(entitled(), 1.0)
    assert hints.off_until(entitled(1), 1.002) == (pytest.approx(1.003), pytest.approx(0.001))
    assert hints.off_until(entitled(1), 1.0031) == (None, None)


@pytest.mark.parametrize("turns", [0, 1, 7])
def test_those_are_known_for_whom_the_background_went_off(turns: int) -> None:
    hints = Hints()
    hints.note(Hint(KEY, 0.0), 1.0)
    hints.note(Hint(OTHER, 0.1), 1.0)
    both = {**entitled(turns), OTHER: task(OTHER, usage=Usage(turns=turns))}
    hints.off_until(both, 1.0)
    assert hints.wanting() == [KEY]
    hints.off_until(both, 1.006)
    assert hints.wanting() == []
    hints.off_until(both, 1.0976)
    assert hints.wanting() == [OTHER]
    hints.drop(OTHER)
    assert hints.wanting() == []


def test_a_hint_does_not_end_by_the_touch_of_a_context() -> None:
    def told(turns: int, work: int) -> dict[TaskKey, Task]:
        return {KEY: replace(entitled(turns)[KEY], activity=Activity(work))}

    hints = Hints()
    hints.note(Hint(KEY, 0.002), 1.0)
    hints.off_until(told(0, 5), 1.0)
    assert hints.off_until(told(1, 5), 1.002) == (pytest.approx(1.007), pytest.approx(0.002))
    assert hints.off_until(told(1, 6), 1.003) == (pytest.approx(1.004), pytest.approx(0.001))


def test_a_hint_holds_as_long_as_the_task_has_not_come_on() -> None:
    hints = Hints()
    hints.note(Hint(KEY, 0.0), 1.0)
    for step in range(5):
        assert hints.off_until(entitled(7), 1.0 + step / 1e3)[0] == pytest.approx(1.005)
    assert hints.off_until(entitled(8), 1.0045)[0] == pytest.approx(1.005)


def test_hints_hold_the_background_off_for_no_more_than_half_of_the_time() -> None:
    hints, held, now = Hints(), 0, 1.0
    for step in range(10_000):
        now = 1.0 + step * 1e-4
        if step % 10 == 0:
            hints.note(Hint(KEY, 0.001), now)
        held += hints.off_until(entitled(), now)[0] is not None
    assert 0.3 < held / 10_000 < 0.5 + BURST_S


def test_a_hint_soon_after_another_one_holds_as_well() -> None:
    hints = Hints()
    for begin in (1.0, 1.006, 1.012):
        hints.note(Hint(KEY, 0.002), begin)
        hints.off_until(entitled(), begin)
        assert hints.off_until(entitled(), begin + 0.002)[0] == pytest.approx(begin + 0.007)


def test_hints_that_took_all_the_time_at_once_wait_until_one_of_them_is_saved() -> None:
    hints, now = Hints(), 1.0
    for _ in range(round(BURST_S * 1e3)):
        hints.note(Hint(KEY, 0.0), now)
        assert hints.off_until(entitled(), now)[0] is not None
        now += 0.001
    hints.note(Hint(KEY, 0.02), now)
    assert hints.off_until(entitled(), now) == (None, pytest.approx(0.0175))
    hints.note(Hint(KEY, 0.005), now)
    assert hints.off_until(entitled(), now) == (None, pytest.approx(LONGEST_S))


@pytest.mark.parametrize("in_s", [-0.001, 11.0, float("nan"), float("inf")])
def test_hints_that_make_no_sense_are_ignored(in_s: float) -> None:
    hints = Hints()
    hints.note(Hint(KEY, in_s), 1.0)
    assert hints.off_until(entitled(), 1.0) == (None, None)


def test_hints_of_tasks_without_the_right_or_that_are_gone_hold_nothing() -> None:
    hints = Hints()
    hints.note(Hint(KEY, 0.0), 1.0)
    assert hints.off_until({}, 1.0) == (None, None)
    hints.drop(KEY)
    assert hints.off_until(entitled(), 1.0) == (None, None)


# -- pace ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("time", "now", "expected"), [(1.0, 1.0, True), (1.0, 0.99995, True), (1.0, 0.9998, False)])
def test_timers_go_off_a_little_early(time: float, now: float, expected: bool) -> None:
    assert reached(time, now) is expected


def test_a_pace_lets_some_looks_through_and_then_holds_them_to_its_rate() -> None:
    pace, now, looks = Pace(100, burst=10), 5.0, 0
    while now < 6.0:
        now += pace.after(now + 0.001, now)
        looks += 1
    assert looks == pytest.approx(112, abs=5)


def test_a_pace_leaves_rare_looks_alone() -> None:
    pace, now = Pace(100), 5.0
    for _ in range(50):
        assert pace.after(now + 0.05, now) == pytest.approx(0.05)
        now += 0.05


def test_what_others_ask_does_not_count() -> None:
    pace = Pace(100, burst=1)
    for step in range(1_000):
        after = pace.after(10.0, step * 1e-3)
        assert after == pytest.approx(10.0 - step * 1e-3)


# -- options ---------------------------------------------------------------------------------------


def test_numbers_are_taken_out_of_the_options() -> None:
    options = {"a": "1.5", "b": "x"}
    assert number(options, "a", 0.0, 0.0, 2.0) == 1.5
    assert number(options, "missing", 7.0, 0.0, 2.0) == 7.0
    assert options == {"b": "x"}
    with pytest.raises(ValueError, match="no option b: take a, c"):
        no_more(options, "a", "c")
    with pytest.raises(ValueError, match="b=x is not a number"):
        number(options, "b", 0.0, 0.0, 2.0)


@pytest.mark.parametrize("text", ["20", "20ms", "0.02s", "20000us", "20 ms", "2e1"])
def test_lengths_of_time_are_milliseconds_or_have_their_unit(text: str) -> None:
    assert number({"quantum_ms": text}, "quantum_ms", 0.0, 5.0, 100.0, ms=True) == 20.0
    if not text.isdecimal() and text != "2e1":
        with pytest.raises(ValueError, match=f"step={text} is not a number$"):
            number({"step": text}, "step", 0.0, 5.0, 100.0)


# -- reservations ----------------------------------------------------------------------------------


def reservation() -> Reservation:
    return Reservation(Deadline(5_000, 20_000), Usage(1.0, 0, 0.0), 10.0, ALICE)


def test_a_budget_is_used_up_and_comes_back_with_the_period() -> None:
    budget = reservation()
    budget.settle(Usage(1.004), 10.01)
    assert not budget.spent
    budget.settle(Usage(1.0052), 10.015)
    assert budget.spent
    assert budget.until == pytest.approx(10.02)
    budget.settle(Usage(1.0054), 10.02)
    assert budget.left == pytest.approx(0.0046)
    assert budget.ends == pytest.approx(10.04)


def test_what_is_not_used_is_lost_and_what_is_used_too_much_is_owed() -> None:
    budget = reservation()
    budget.settle(Usage(1.0), 10.1)
    assert budget.left == pytest.approx(0.005)
    budget.settle(Usage(1.018), 10.119)
    assert budget.until == pytest.approx(10.12 + 2 * 0.02)
    budget.settle(Usage(1.018), 10.14)
    assert budget.left == pytest.approx(-0.003)


def test_idle_time_is_given_back_when_it_is_known() -> None:
    budget = reservation()
    budget.settle(Usage(1.006), 10.01)
    assert budget.spent
    budget.settle(Usage(1.006, 0, 0.004), 10.015)
    assert budget.left == pytest.approx(0.003)


def test_another_deadline_holds_from_the_next_period() -> None:
    budget = reservation()
    budget.change(Deadline(2_000, 30_000), 10.01)
    assert (budget.left, budget.ends) == (pytest.approx(0.002), pytest.approx(10.02))
    budget.settle(Usage(1.0), 10.02)
    assert budget.ends == pytest.approx(10.05)


def test_a_shorter_period_does_not_begin_at_the_end_of_a_long_one() -> None:
    """One that had 5 s in every 10 was off for up to 10 s, once it had 5 ms in every 20."""
    budget = Reservation(Deadline(5_000_000, 10_000_000), Usage(), 10.0, ALICE)
    budget.settle(Usage(1.0), 11.0)
    budget.change(Deadline(5_000, 20_000), 11.0)
    budget.settle(Usage(1.005), 11.005)
    assert budget.spent
    assert budget.until == pytest.approx(11.02)
    budget.change(Deadline(5_000, 20_000), 11.01)  # the same again
    assert budget.until == pytest.approx(11.02)


@pytest.mark.parametrize(("cycle_ms", "short_ms"), [(12, 2), (20, 5), (100, 89), (110, 95), (50, 25)])
def test_a_deadline_that_changes_all_the_time_gives_no_more_than_the_same_one(cycle_ms: int, short_ms: int) -> None:
    """10 % came to be 60 %: a short period ended the long one, of which all was used."""
    long, short = Deadline(10_000, 100_000), Deadline(1_000, 10_000)
    budget, used = Reservation(long, Usage(), 10.0, ALICE), 0.0
    for step in range(2000):
        now = 10.001 + step / 1000
        used += 0.0 if budget.spent else 0.001
        budget.change(long if step % cycle_ms < cycle_ms - short_ms else short, now)
        budget.settle(Usage(used), now)
    assert used <= 0.1 * 2.0 + 0.012


def test_a_tiny_budget_is_there_at_the_beginning_of_a_period() -> None:
    budget = Reservation(Deadline(100, 20_000), Usage(), 10.0, ALICE)
    assert not budget.spent
    budget.settle(Usage(0.00105), 10.01)
    assert budget.until == pytest.approx(10.2)
    budget.settle(Usage(0.00105), 10.2)
    assert not budget.spent


# -- segments --------------------------------------------------------------------------------------


def test_the_highest_priority_counts() -> None:
    segments = Segments(1.0)
    tasks = [task(segment=1), task(OTHER, segment=5)]
    foremost = segments.foremost(tasks, (), 10.0)
    assert foremost.tasks == {OTHER}
    assert foremost.until == pytest.approx(11.0)
    assert segments.foremost([task(segment=1), task(OTHER)], (), 10.1).tasks == {KEY}
    assert segments.foremost([task(), task(OTHER)], (), 10.2).tasks == frozenset()


def test_equals_run_together() -> None:
    assert Segments(1.0).foremost([task(segment=2), task(OTHER, segment=2)], (), 10.0).tasks == {KEY, OTHER}


def test_a_segment_whose_beginning_was_missed_begins_when_it_is_first_seen() -> None:
    segments, tasks = Segments(1.0), [task(segment=1)]
    segments.note(Segment(KEY, 1), 10.0)
    assert segments.foremost(tasks, (), 10.1).look == pytest.approx(11.0)
    segments.note(Segment(OTHER, None), 10.2)  # it had none
    assert segments.foremost(tasks, (), 10.2).look == pytest.approx(11.0)
    segments.note(Segment(KEY, None), 10.4)
    assert segments.foremost(tasks, (), 10.5).look == pytest.approx(11.5)
    assert segments.foremost([task(segment=2)], (), 10.7).look == pytest.approx(11.7)


def test_once_all_of_it_is_used_segments_wait_until_a_quarter_is_there_again() -> None:
    segments, tasks = Segments(1.0), [task(segment=1), task(OTHER)]
    assert segments.foremost(tasks, (), 10.0).tasks == {KEY}
    segments.note(Segment(KEY, 1), 10.9)
    assert segments.foremost(tasks, (), 10.9).until == pytest.approx(11.0)
    spent = segments.foremost(tasks, (), 11.0)
    assert spent.tasks == frozenset()
    assert spent.look == pytest.approx(11.0 + 0.25 / 4)  # four parts of five are the segments'
    segments.note(Segment(KEY, 1), 11.0625)
    assert segments.foremost(tasks, (), 11.0625).tasks == {KEY}


def test_of_two_segments_the_lesser_is_kept_off_and_that_is_paid_for() -> None:
    segments, tasks = Segments(0.1), [task(segment=1), task(OTHER, segment=5)]
    assert segments.foremost(tasks, (), 10.0).tasks == {OTHER}
    for key, priority in ((KEY, 1), (OTHER, 5)):
        segments.note(Segment(key, priority), 10.06)
    assert segments.foremost(tasks, (), 10.06).until == pytest.approx(10.1)
    equal = [task(segment=5), task(OTHER, segment=5)]
    free = Segments(0.1)
    free.foremost(equal, (), 10.0)
    for key in (KEY, OTHER):
        free.note(Segment(key, 5), 10.06)
    assert free.foremost(equal, (), 10.06).until == pytest.approx(10.16)  # nobody is kept off


def test_batch_tasks_and_tasks_that_cannot_run_keep_nobody_off() -> None:
    segments = Segments(1.0)
    for each, off in [
        (task(segment=1, task_class=TaskClass.BATCH), ()),
        (task(segment=1, suspended=True), ()),
        (task(segment=1), {KEY}),
    ]:
        assert segments.foremost([each, task(OTHER)], off, 10.0).tasks == frozenset()


def test_a_segment_that_is_too_long_does_not_count_until_another_begins() -> None:
    segments, tasks = Segments(0.1), [task(segment=1), task(OTHER)]
    segments.note(Segment(KEY, 1), 10.0)
    assert segments.foremost(tasks, (), 10.0).look == pytest.approx(10.1)
    assert segments.foremost(tasks, (), 10.1).tasks == frozenset()
    assert segments.foremost(tasks, (), 20.0).tasks == frozenset()
    segments.note(Segment(KEY, None), 20.1)
    segments.note(Segment(KEY, 1), 20.1)
    assert segments.foremost(tasks, (), 20.1).tasks == {KEY}


def test_however_often_segments_begin_the_others_get_their_time() -> None:
    segments, tasks, kept_off = Segments(0.1), [task(segment=1), task(OTHER)], 0
    for step in range(10_000):
        now = 10.0 + step * 1e-3
        segments.note(Segment(KEY, 1), now)
        kept_off += bool(segments.foremost(tasks, (), now).tasks)
    assert 0.7 < kept_off / 10_000 < 0.82


# -- tails -----------------------------------------------------------------------------------------


def test_the_p99_is_of_the_last_second() -> None:
    tail = Tail()
    for step in range(300):
        tail.add(0.5 if step == 10 else 0.001 * (step % 100), 10.0 + step * 0.01)
    assert tail.p99_s(13.0) == pytest.approx(0.098)
    assert tail.rate(13.0) == pytest.approx(100, abs=2)


def test_of_few_reports_older_ones_count() -> None:
    tail = Tail()
    for step in range(10):
        tail.add(0.002, 10.0 + 0.3 * step)
    assert tail.p99_s(14.0) == 0.002
    assert tail.p99_s(20.0) is None
    assert not tail.silent(14.0)
    assert tail.silent(20.0)


def test_what_was_acted_on_does_not_count_again() -> None:
    tail = Tail()
    for step in range(100):
        tail.add(0.009 if step < 50 else 0.001, 10.0 + 0.01 * step)
    assert tail.exceeds(0.005, 11.0, since=0.0)
    assert not tail.exceeds(0.005, 11.0, since=10.495)
    assert not tail.exceeds(0.010, 11.0, since=0.0)


def test_times_that_are_none_are_ignored_and_not_all_are_kept() -> None:
    tail = Tail()
    for bad in (-1.0, float("nan"), float("inf")):
        tail.add(bad, 1.0)
    assert tail.p99_s(1.0) is None
    for _ in range(3 * MOST):
        tail.add(0.001, 1.0)
    assert len(tail._reports) == MOST


# -- AIMD ------------------------------------------------------------------------------------------


def test_down_at_once_from_what_was_really_had_and_up_by_steps() -> None:
    aimd = Aimd(0.03, 0.7)
    aimd.lower(0.5, 100.0, 10.0)
    assert aimd.share == pytest.approx(0.35)
    aimd.raise_(100.0, 10.3)
    assert aimd.share == pytest.approx(0.38)
    for _ in range(50):
        aimd.lower(1.0, 100.0, 11.0)
    assert aimd.share == LOWEST
    aimd.reset()
    assert aimd.share == 1.0


def test_what_failed_is_tried_again_more_and_more_rarely() -> None:
    aimd, now, tries = Aimd(0.03, 0.7), 0.0, []
    for _ in range(4 * 120):
        now += 0.25
        if aimd.share > 0.4:
            tries.append(now)
            aimd.lower(1.0, 100.0, now)
        else:
            aimd.raise_(100.0, now)
    gaps = [after - before for before, after in pairwise(tries)]
    assert gaps[0] < 8
    assert gaps[-1] > 3 * gaps[0]
    assert aimd.share > 0.25


def test_with_less_load_what_failed_is_forgotten() -> None:
    aimd = Aimd(0.03, 0.7)
    aimd.lower(0.5, 100.0, 10.0)
    for step in range(40):
        aimd.raise_(50.0, 10.0 + step * 0.001)
    assert aimd.share == 1.0


# -- waiting ---------------------------------------------------------------------------------------


class Below(Policy):
    """All that it sees get 5 ms."""

    summary = "for tests"

    def decide(self, tasks: Sequence[Task], now: float) -> Decision:
        return Decision({each.key: Share(5_000) for each in tasks if not each.suspended}, 0.5)


def test_a_waiting_task_looks_suspended_below_and_keeps_its_slice() -> None:
    waiting, tasks = Waiting(Below({})), [task(), task(OTHER)]
    assert waiting.decide(tasks, {}, 1.0).shares[KEY] == Share(5_000)
    decision = waiting.decide(tasks, {KEY: 1.2}, 1.1)
    assert decision.shares == {KEY: Share(5_000, False, 1.2), OTHER: Share(5_000)}
    assert waiting.decide(tasks, {KEY: 1.2, OTHER: 99.0}, 1.1).shares[OTHER].until == 1.1 + LONGEST_WAIT_S
    assert Waiting(Below({})).decide(tasks, {KEY: 1.2}, 1.1).shares[KEY] == Share(None, False, 1.2)


@pytest.mark.parametrize(("look", "expected"), [(float("inf"), 0.5), (1.2, 0.2), (3.0, 0.5), (0.5, 0.0)])
def test_the_earlier_look_counts(look: float, expected: float) -> None:
    assert earliest(1.0, Decision({}, 0.5), look).again_after_s == pytest.approx(expected)
    assert earliest(1.0, Decision({}), float("inf")).again_after_s is None
