"""Layers and what they are made of, in a few steps each with the figures that come of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from runlist.model import Cap, Deadline, Report, Share, Task, TaskClass, TaskKey, Usage
from runlist.policies.cap import Account, CapLayer
from runlist.policies.deadline import DeadlineLayer
from runlist.policies.interface import Decision, Policy
from runlist.policies.parts.aimd import Aimd
from runlist.policies.parts.brake import Brake
from runlist.policies.parts.floor import Floor
from runlist.policies.parts.pace import Pace
from runlist.policies.parts.pressure import Pressure
from runlist.policies.parts.waiting import earliest
from runlist.policies.slo import SloLayer, _cap

GPU = "GPU-0"


def task(pid: int, task_class: TaskClass = TaskClass.NORMAL, **values: object) -> Task:
    return Task(TaskKey(pid, GPU), task_class, f"program{pid}", 1000, 0.0, **values)  # type: ignore[arg-type]


def key(pid: int) -> TaskKey:
    return TaskKey(pid, GPU)


class Below(Policy):
    """All that it sees get 30 ms; notes the tasks."""

    summary = "for tests"

    def __init__(self) -> None:
        super().__init__({})
        self.seen: list[Task] = []

    def decide(self, tasks: Sequence[Task], now: float) -> Decision:
        self.seen = list(tasks)
        return Decision({each.key: Share(30_000) for each in tasks if not each.suspended})


# -- caps ------------------------------------------------------------------------------------------

CAP = Cap(20_000, 100_000)  # 20 ms in every 100 ms


def used(seconds: float) -> list[Task]:
    return [task(1, cap=CAP, usage=Usage(seconds, 1))]


def test_an_account_has_the_part_of_its_quota_for_what_is_left_of_the_period() -> None:
    assert (Account(CAP, 10.0).balance, Account(CAP, 10.0).ends) == (pytest.approx(0.02), pytest.approx(10.1))
    assert Account(CAP, 10.075).balance == pytest.approx(0.005)


@pytest.mark.parametrize(("left_us", "empty"), [(310, False), (290, True)])
def test_an_account_with_next_to_nothing_left_is_empty(left_us: int, empty: bool) -> None:
    """Suspending takes longer than 0.3 ms."""
    account = Account(CAP, 10.0)
    account.settle(used(0.0), 10.0)
    account.settle(used(0.02 - left_us / 1e6), 10.05)
    assert account.empty is empty


@pytest.mark.parametrize(("left_us", "empty"), [(110, False), (90, True)])
def test_of_a_small_quota_a_quarter_is_next_to_nothing(left_us: int, empty: bool) -> None:
    account = Account(Cap(400, 20_000), 10.0)
    account.settle(used(0.0), 10.0)
    account.settle(used((400 - left_us) / 1e6), 10.01)
    assert account.empty is empty


@pytest.mark.parametrize(("back_us", "empty"), [(900, True), (1100, False)])
def test_within_a_period_enough_idle_time_has_to_come_back_before_one_runs_again(back_us: int, empty: bool) -> None:
    account = Account(CAP, 10.0)
    account.settle(used(0.0), 10.0)
    account.settle(used(0.02), 10.05)
    assert account.empty
    account.settle(used(0.02 - back_us / 1e6), 10.06)
    assert account.empty is empty
    account.settle(used(0.02 - back_us / 1e6), 10.1)  # a period begins: its quota is there
    assert not account.empty


def test_who_used_several_quotas_waits_for_as_many_periods() -> None:
    account = Account(CAP, 10.0)
    account.settle(used(0.0), 10.0)
    account.settle(used(0.07), 10.05)
    assert account.until == pytest.approx(10.3)
    account.settle(used(0.07), 10.1)
    assert (account.until, account.empty) == (pytest.approx(10.3), True)


def test_another_cap_takes_nothing_back_and_gives_no_more_than_it_has() -> None:
    account = Account(CAP, 10.0)
    account.settle(used(0.0), 10.0)
    account.settle(used(0.015), 10.05)
    account.change(CAP, 10.05)
    assert (account.balance, account.ends) == (pytest.approx(0.005), pytest.approx(10.1))
    account.change(Cap(50_000, 100_000), 10.05)
    assert (account.balance, account.ends) == (pytest.approx(0.005), pytest.approx(10.1))
    account.change(Cap(3_000, 200_000), 10.05)
    assert (account.balance, account.ends) == (pytest.approx(0.003), pytest.approx(10.2))


def test_a_capped_group_is_off_until_its_next_period_and_says_so() -> None:
    layer, now = CapLayer({}, below := Below()), 10.0
    tasks = [task(1, cap=CAP), task(2)]
    decision = layer.decide(tasks, now)
    assert decision.shares == {key(1): Share(30_000), key(2): Share(30_000)}
    assert decision.again_after_s == pytest.approx(0.02)  # not before this it can have used it up
    tasks[0] = replace(tasks[0], usage=Usage(0.02, 1))
    decision = layer.decide(tasks, 10.04)
    assert decision.shares[key(1)] == Share(30_000, False, pytest.approx(10.1))
    assert decision.again_after_s == pytest.approx(0.06)
    assert [each.suspended for each in below.seen] == [True, False]
    assert layer.why(key(1)) == "cap 20 %: waits 60 ms for its next period"
    assert layer.why(key(2)) == ""
    tasks[0] = replace(tasks[0], suspended=True)
    decision = layer.decide(tasks, 10.05)
    assert key(1) not in decision.shares  # its user suspended it
    layer.decide([task(2)], 10.06)
    assert layer.decide([task(2)], 10.2).again_after_s is None  # its account is full again: nobody needs it


def test_nobody_looks_at_an_account_whose_tasks_are_off_for_another_reason() -> None:
    layer = CapLayer({}, Below())
    assert layer.decide([task(1, cap=CAP, suspended=True)], 10.0).again_after_s is None


def test_looks_at_an_account_are_a_millisecond_apart_at_least() -> None:
    layer, capped = CapLayer({}, Below()), task(1, cap=CAP)
    layer.decide([capped], 10.0)
    left = replace(capped, usage=Usage(0.0196, 1))  # 0.4 ms
    assert layer.decide([left], 10.05).again_after_s == pytest.approx(0.001)
    left = replace(capped, usage=Usage(0.0186, 1))  # 1.4 ms
    assert layer.decide([left], 10.06).again_after_s == pytest.approx(0.0014)


# -- deadlines -------------------------------------------------------------------------------------


def deadline(pid: int, budget_us: int, period_us: int, **values: object) -> Task:
    return task(pid, TaskClass.DEADLINE, deadline=Deadline(budget_us, period_us), **values)


def test_the_shortest_period_is_ten_milliseconds() -> None:
    """It is a value that cannot be, and no want of room: `runlist run` refuses it before it starts anything."""
    assert DeadlineLayer({}, Below()).admit(deadline(1, 1_000, 10_000), []) is None
    with pytest.raises(ValueError, match=r"a deadline's period is 10 ms to 10 s, not 9\.999 ms"):
        deadline(1, 1_000, 9_999)


def test_who_comes_second_has_slices_of_a_quarter_of_the_firsts_slack_and_others_the_least() -> None:
    layer = DeadlineLayer({}, Below())
    tasks = [deadline(pid, 5_000, period_us) for pid, period_us in ((1, 25_000), (2, 30_000), (3, 40_000))]
    slices = {key.pid: share.timeslice_us for key, share in layer.decide(tasks, 10.0).shares.items()}
    assert slices == {1: 30_000, 2: 5_000, 3: 2_000}
    slices = {key.pid: share.timeslice_us for key, share in layer.decide(tasks[:2], 10.0).shares.items()}
    assert slices == {1: 30_000, 2: 5_000}
    assert layer.decide(tasks[:1], 10.0).shares == {key(1): Share(30_000)}


@pytest.mark.parametrize(("period_us", "second_us"), [(10_000, 2_000), (200_000, 20_000)])
def test_those_slices_are_neither_too_short_nor_too_long(period_us: int, second_us: int) -> None:
    layer = DeadlineLayer({}, Below())
    shares = layer.decide([deadline(1, 5_000, period_us), deadline(2, 5_000, 300_000)], 10.0).shares
    assert shares[key(2)].timeslice_us == second_us


def test_a_deadline_reserves_for_its_own_class_alone() -> None:
    layer = DeadlineLayer({}, below := Below())
    decision = layer.decide([replace(deadline(1, 5_000, 10_000), task_class=TaskClass.NORMAL)], 10.0)
    assert (decision.again_after_s, len(layer._reservations)) == (None, 0)
    layer.decide([task(1, TaskClass.DEADLINE), deadline(2, 1_000, 10_000)], 10.0)  # without one it is a latency task
    assert [each.task_class for each in below.seen] == [TaskClass.LATENCY, TaskClass.DEADLINE]
    assert list(layer._reservations) == [key(2)]


def test_who_used_its_budget_waits_for_its_next_period() -> None:
    layer, one = DeadlineLayer({}, Below()), deadline(1, 5_000, 20_000)
    decision = layer.decide([one, task(2)], 10.0)
    assert decision.again_after_s == pytest.approx(0.005)
    decision = layer.decide([replace(one, usage=Usage(0.005, 1)), task(2)], 10.006)
    assert decision.shares[key(1)] == Share(30_000, False, pytest.approx(10.02))
    assert layer.why(key(1)) == "budget of 5 ms used: waits 14 ms for its next period"


# -- service targets -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "target_ms", "cap"),
    [
        (0.5, 10, Cap(12_500, 25_000)),  # 4 ms, less than a turn of the shortest period
        (0.1, 10, Cap(4_000, 40_000)),  # 0.4 of the target at a time
        (0.1, 1, Cap(2_500, 25_000)),
        (0.05, 1, Cap(1_500, 30_000)),  # no turn is shorter
        (0.011, 100, Cap(8_800, 800_000)),  # no period is longer
        (0.01, 1, Cap(5_000, 500_000)),  # the least part comes in breaks of 5 ms
    ],
)
def test_the_part_of_the_background_is_a_cap_of_turns_shorter_than_the_target(
    share: float, target_ms: float, cap: Cap
) -> None:
    assert _cap(share, 1e3 * target_ms) == cap


def service(**values: object) -> Task:
    return task(1, TaskClass.LATENCY, target_p99_us=10_000, **values)


def test_without_a_target_or_reports_nobody_is_capped() -> None:
    layer = SloLayer({}, below := Below())
    background = task(2, TaskClass.BATCH)
    layer.decide([task(1, TaskClass.LATENCY), background], 10.0)
    assert [each.cap for each in below.seen] == [None, None]
    decision = layer.decide([service(), background], 10.0)
    assert ([each.cap for each in below.seen], decision.again_after_s) == ([None, None], 1.0)  # nothing is reported


def test_requests_that_are_late_lower_the_background_by_what_it_had_and_ones_that_are_not_raise_it_again() -> None:
    layer, now = SloLayer({}, below := Below()), 10.0
    used_s, seen = 0.0, []
    for step in range(400):
        now += 0.05
        used_s += 0.05
        late = 40 <= step < 45
        for _ in range(10):
            layer.on_event(Report(key(1), 0.012 if late else 0.002), now)
        layer.decide([service(), task(2, TaskClass.BATCH, usage=Usage(used_s, 1))], now)
        cap = next(each.cap for each in below.seen if each.key == key(2))
        seen.append(1.0 if cap is None else cap.fraction)
    assert seen[39] == 1.0
    assert seen[46] <= 0.7
    assert seen[-1] > seen[60]
    assert layer.why(key(2)).startswith("p99 2 ms of 10 ms: background at ")
    assert layer.why(key(3)) == ""


def test_near_what_failed_the_background_is_raised_later_and_by_half_as_much_while_there_is_as_much_to_do() -> None:
    layer, now = SloLayer({}, below := Below()), 10.0
    seen = []
    for step in range(100):
        now += 0.05
        for _ in range(10):
            layer.on_event(Report(key(1), 0.012 if 40 <= step < 45 else 0.002), now)
        had_s = 0.025 * step  # half of the time
        layer.decide([service(), task(2, TaskClass.BATCH, usage=Usage(had_s, 1))], now)
        cap = next(each.cap for each in below.seen if each.key == key(2))
        seen.append(1.0 if cap is None else round(cap.fraction, 3))
    assert list(dict.fromkeys(seen)) == [1.0, 0.35, 0.245, 0.275, 0.305, 0.32, 0.335]
    assert (seen.index(0.245), seen.index(0.305), seen.index(0.32)) == (45, 70, 85)


def test_a_stricter_cap_of_the_users_own_stays() -> None:
    layer, now, own = SloLayer({}, below := Below()), 10.0, Cap(1_000, 100_000)
    for _ in range(60):
        now += 0.05
        for _ in range(10):
            layer.on_event(Report(key(1), 0.02), now)
        layer.decide([service(), task(2, TaskClass.BATCH, cap=own), task(3, TaskClass.BATCH)], now)
    caps = {each.key.pid: each.cap for each in below.seen}
    assert (caps[1], caps[2]) == (None, own)
    assert caps[3] is not None


# -- their parts -----------------------------------------------------------------------------------


def test_a_share_is_lowered_to_a_part_of_what_was_had_and_raised_by_steps() -> None:
    aimd = Aimd(0.03, 0.7)
    aimd.lower(0.5, 100.0, 10.0)
    assert aimd.share == pytest.approx(0.35)
    aimd.raise_(100.0, 10.1)
    assert aimd.share == pytest.approx(0.38)
    for step in range(2, 6):
        aimd.raise_(100.0, 10.0 + step / 10)
    assert aimd.share == pytest.approx(0.44)  # the next one would come near what failed: it waits
    aimd.raise_(100.0, 11.9)
    assert aimd.share == pytest.approx(0.44)
    aimd.raise_(100.0, 12.0)
    assert aimd.share == pytest.approx(0.455)  # after 2 s, by half a step
    aimd.raise_(79.0, 12.1)  # with a fifth less to do, what failed may work
    assert aimd.share == pytest.approx(0.485)


def test_a_small_share_grows_by_a_quarter_of_itself_and_none_is_below_a_hundredth() -> None:
    aimd = Aimd(0.03, 0.1)
    for _ in range(3):
        aimd.lower(0.0, 100.0, 10.0)
    assert aimd.share == 0.01
    aimd.raise_(10.0, 20.0)
    assert aimd.share == pytest.approx(0.0125)
    aimd.reset()
    assert aimd.share == 1.0


def test_a_share_that_fails_again_and_again_is_tried_after_twice_as_long() -> None:
    aimd, now, waits = Aimd(0.05, 0.9), 10.0, []
    for _ in range(8):
        aimd.lower(1.0, 100.0, now)
        failed, began = aimd.share / 0.9, now
        while aimd.share + 1e-9 < failed * 0.95:
            now += 0.05
            aimd.raise_(100.0, now)
        waits.append(round(now - began))
        now += 0.05
    assert waits == [2, 4, 8, 16, 32, 60, 60, 60]


def test_who_is_stopped_all_the_time_is_let_go_for_a_break_once_it_is_owed_one() -> None:
    floor = Floor(0.01, 0.005)
    assert floor.ends(True, 10.0) is None
    assert floor.ends(True, 10.49) is None
    assert floor.ends(True, 10.5) == pytest.approx(10.505)
    assert floor.ends(True, 10.503) == pytest.approx(10.505)
    assert floor.ends(True, 10.505) is None
    assert floor.ends(True, 10.98) is None  # what it had counts
    assert floor.ends(False, 10.99) is None
    assert floor.ends(True, 20.0) is None  # it ran: nothing is owed
    assert floor.ends(True, 20.51) == pytest.approx(20.515)


def test_looks_are_as_many_as_wanted_at_first_and_then_held_to_their_rate() -> None:
    pace, now, looks = Pace(10.0, 3), 100.0, []
    for _ in range(8):
        after = pace.after(now + 0.001, now)
        looks.append(round(after, 3))
        now += after
    assert looks[:3] == [0.001] * 3
    assert looks[-3:] == [0.1] * 3
    assert pace.after(now + 60.0, now) == pytest.approx(60.0)
    assert Pace(10.0).after(99.0, 100.0) == 0.0  # a time that has passed is now


def test_a_brake_learns_how_many_are_late_after_a_release_from_those_before_it_went_on_too() -> None:
    brake, now = Brake(10.0), 10.0
    for _ in range(2000):
        now += 0.001
        brake.add(False, now)
    assert [brake.add(True, now) for _ in range(4)] == [False, False, True, False]
    brake.look(now + 0.26)
    assert brake.on  # four more would be late of a thousand, where six may be
    for _ in range(1001):
        now += 0.001
        brake.add(False, now)
    brake.look(now)
    assert not brake.on  # those are long ago


@pytest.mark.parametrize(
    ("look", "own", "after"), [(100.2, None, 0.2), (100.2, 0.1, 0.1), (99.0, 0.1, 0.0), (200.0, None, 9.5)]
)
def test_the_earlier_look_counts_and_none_is_later_than_the_guard_allows(
    look: float, own: float | None, after: float
) -> None:
    assert earliest(100.0, Decision({}, own), look).again_after_s == pytest.approx(after)


def test_a_brake_goes_on_with_the_requests_that_would_break_the_target_and_off_when_a_release_is_affordable() -> None:
    brake, now = Brake(10.0), 10.0
    assert not brake.add(True, 10.5)  # it suffered from earlier shares
    for number in range(1000):
        now = 11.0 + number / 1000
        assert not brake.add(False, now)
    assert [brake.add(True, now) for _ in range(4)] == [False, False, True, False]  # 0.35 of 0.6 % of 1000 is 2.1
    assert brake.on
    brake.look(now + 0.2)
    assert brake.on  # what waited already comes yet
    brake.look(now + 0.26)
    assert brake.on  # as many again would be late, and six in a thousand may be
    brake.look(now + 1.01)
    assert not brake.on
    quiet = Brake(10.0)
    quiet.add(False, 11.0)
    assert quiet.add(True, 11.0)  # of so few one is enough


@pytest.mark.parametrize(("excess_ms", "begins"), [(2.3, False), (2.5, True)])
def test_pressure_begins_with_a_request_that_takes_up_nearly_a_third_of_the_room(
    excess_ms: float, begins: bool
) -> None:
    pressure = Pressure()
    for number in range(200):
        assert not pressure.add(0.002, 0.010, 5.0 + number / 100, tight=False)
    assert pressure.add(0.002 + excess_ms / 1e3, 0.010, 10.0, tight=False) is begins
    assert (pressure.until > 10.0) is begins
    assert pressure.add(0.002, 0.010, 10.001, tight=False) is begins  # it is over, if there was one
