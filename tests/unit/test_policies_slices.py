"""Slices by weight: the part, and the policy that is nothing else, on a small GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runlist.model import Task, TaskClass, TaskKey, Usage
from runlist.policies import PolicySpec, load_policy
from runlist.policies.fair import Fair
from runlist.policies.parts.slices import WeightedSlices
from tests.unit.test_policies_gpu import Tenant, TinyGpu, shares, tenant

# As they are to be: taken from the code they would hold whatever it says.
BASE_US = 16000
MAX_US = 200000
MIN_US = 700
SHORT_BASE_US = 2000
WINDOW_ROUNDS = 3
WINDOW_S = 0.25

LATENCY = TaskClass.LATENCY


def task(pid: int, weight: int = 100, **values: object) -> Task:
    return Task(TaskKey(pid, "GPU-0"), values.pop("task_class", TaskClass.BATCH), "x", 0, 0.0, weight=weight, **values)


def slices(*tasks: Task) -> list[int]:
    given_us, _ = WeightedSlices().slices(tasks, tasks, 0.0)
    return [given_us[each.key] for each in tasks]


# -- slices to begin with --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([100], [BASE_US]),
        ([1], [BASE_US]),
        ([100, 100], [BASE_US, BASE_US]),
        ([300, 100], [BASE_US * 3 // 2, BASE_US // 2]),
        ([100] * 8, [BASE_US] * 8),
        ([10_000, 100], [100 * MIN_US, MIN_US]),
        ([10_000, 1], [MAX_US, MIN_US]),
    ],
)
def test_slices_are_in_proportion_to_weights(weights: list[int], expected: list[int]) -> None:
    assert slices(*(task(pid, weight) for pid, weight in enumerate(weights))) == expected


def test_a_latency_task_makes_all_slices_short() -> None:
    assert slices(task(1, task_class=LATENCY), task(2), task(3)) == [SHORT_BASE_US] * 3


def test_a_group_shares_as_one_with_the_largest_of_its_weights() -> None:
    quarter_us = BASE_US * 3 // 2 // 4  # of what each of the two has of a round of three slices
    assert slices(task(1, 100, group="a"), task(2, 300, group="a"), task(3, 300)) == [
        quarter_us,
        3 * quarter_us,
        4 * quarter_us,
    ]


@given(st.lists(st.tuples(st.integers(1, 10_000), st.sampled_from(["", "a", "b"])), min_size=1, max_size=8))
def test_slices_stay_within_bounds(tasks: list[tuple[int, str]]) -> None:
    got = slices(*(task(pid, weight, group=group) for pid, (weight, group) in enumerate(tasks)))
    assert all(MIN_US <= us <= MAX_US for us in got)


MANY = {"owned_by": (1001, ""), "most_weight": 100}
ONE = {"owned_by": (1002, ""), "most_weight": 100}


@pytest.mark.parametrize("weight", [1, 100, 10_000])
@pytest.mark.parametrize("many", [2, 63])
def test_a_user_with_many_processes_weighs_no_more_than_one_with_a_single_one(many: int, weight: int) -> None:
    crowd = [task(pid, weight, **MANY) for pid in range(many)]
    *theirs, mine = slices(*crowd, task(100, **ONE))
    part = mine / (mine + sum(theirs))
    assert part == pytest.approx(max(0.5, 100 / (100 + many * weight)), abs=0.02)
    assert min(theirs) >= MIN_US
    assert mine <= MAX_US


def test_what_rules_give_comes_beside_that_and_others_have_what_they_ask_for() -> None:
    three = [task(pid, 400, given_weight=200, **MANY) for pid in range(3)]  # 200 each, and 100 of 600 beyond
    assert slices(*three, task(9, 700, owned_by=(0, ""))) == [round(BASE_US * 2 / 3)] * 3 + [BASE_US * 2]
    shared = [task(1, group="g", **MANY), task(2, 300, group="g", **ONE)]  # by a rule: no user can make one for another
    assert sum(slices(*shared, task(3, 300))[:2]) == pytest.approx(1.5 * BASE_US, abs=1)
    classes = [task(1, **MANY), task(2, task_class=TaskClass.NORMAL, **MANY), task(3, **ONE)]
    assert slices(*classes) == [BASE_US] * 3


def test_who_is_idle_takes_nothing_of_what_its_user_may_weigh() -> None:
    part, tasks = WeightedSlices(), [*(task(pid, **MANY) for pid in range(3)), task(9, **ONE)]
    first, _ = part.slices(tasks, tasks, 0.0)
    half_s = first[tasks[3].key] / 1e6
    after = [tasks[0], tasks[1], used(tasks[2], 10 * first[tasks[2].key] / 1e6, 10), used(tasks[3], 10 * half_s, 10)]
    corrected, _ = part.slices(after, after, 2.0)
    assert corrected[tasks[2].key] > 1.5 * first[tasks[2].key]
    assert corrected[tasks[3].key] < first[tasks[3].key]


# -- when to look, and what is remembered ----------------------------------------------------------


def used(each: Task, held_s: float, turns: int) -> Task:
    return replace(each, usage=Usage(held_s, turns))


def test_shares_are_looked_at_after_three_rounds_or_a_quarter_of_a_second() -> None:
    part, two, ten = WeightedSlices(), [task(1), task(2)], [task(pid) for pid in range(10)]
    assert part.slices(two, two, 1.0)[1] == pytest.approx(WINDOW_S)
    assert part.slices(two, two, 1.1)[1] == pytest.approx(WINDOW_S - 0.1)
    rounds_s = WINDOW_ROUNDS * 10 * BASE_US / 1e6
    assert rounds_s > WINDOW_S
    assert WeightedSlices().slices(ten, ten, 1.0)[1] == pytest.approx(rounds_s)
    assert part.slices(two[:1], two, 1.2)[1] is None


def test_what_a_window_cannot_tell_from_chance_changes_nothing() -> None:
    part, tasks = WeightedSlices(), [task(1), task(2)]
    first, _ = part.slices(tasks, tasks, 0.0)
    nearly = [used(tasks[0], 0.130, 11), used(tasks[1], 0.120, 10)]
    assert part.slices(nearly, nearly, 0.25)[0] == first


def looked_at(part: WeightedSlices, tasks: list[Task], parts: Sequence[float]) -> list[float]:
    """How long each of twelve looks is waited for, while so many tasks hold these parts of the time."""
    now, waits = 0.0, list[float]()
    for _ in range(12):
        _, again = part.slices(tasks, tasks, now)
        assert again is not None
        waits.append(again)
        now += again
        for place, one in enumerate(parts):
            usage = tasks[place].usage
            tasks[place] = used(tasks[place], usage.held_s + one * again, usage.turns + 10)
    return waits


def test_while_shares_are_on_target_looks_come_more_seldom_down_to_one_in_four_windows() -> None:
    waits = looked_at(WeightedSlices(), [task(1), task(2)], (0.5, 0.5))
    assert waits[:2] == pytest.approx([WINDOW_S] * 2)
    assert waits[-4:] == pytest.approx([4 * WINDOW_S] * 4)


@pytest.mark.parametrize("busy", [0, 1])
def test_while_nobody_competes_looks_come_more_seldom_too(busy: int) -> None:
    part, tasks = WeightedSlices(), [task(1), task(2)]
    waits = looked_at(part, tasks, (1.0,) * busy)
    assert waits[-2:] == pytest.approx([4 * WINDOW_S] * 2)
    now = sum(waits)
    _, again = part.slices(tasks, tasks, now)
    assert again is not None
    uneven = [used(tasks[0], tasks[0].usage.held_s + 0.9, tasks[0].usage.turns + 100), used(tasks[1], 0.1, 100)]
    part.slices(uneven, uneven, now + again)
    assert part.slices(uneven, uneven, now + again)[1] == pytest.approx(WINDOW_S)


def test_of_a_group_it_is_enough_that_one_task_fills_its_slices() -> None:
    """So a longer slice would still be of use to it."""
    part, tasks = WeightedSlices(), [task(1, group="a"), task(2, group="a"), task(3)]
    first, _ = part.slices(tasks, tasks, 0.0)
    full, brief = first[tasks[0].key] / 1e6, 0.001
    after = [used(tasks[0], 10 * full, 10), used(tasks[1], 10 * brief, 10), used(tasks[2], 0.05, 10)]
    corrected, _ = part.slices(after, after, 0.3)
    assert corrected[tasks[0].key] < first[tasks[0].key]
    assert corrected[tasks[2].key] == first[tasks[2].key]  # it gives slices away: that would change nothing


def test_what_was_seen_of_tasks_that_compete_is_kept_while_they_do_and_for_a_few_seconds() -> None:
    part, two, now = WeightedSlices(), [task(1), task(2)], 1.0
    part.slices(two, two, now)
    window = part._window
    while now < 70.0:  # records are looked through twice meanwhile
        now += 0.2
        two = [used(each, now / 2, int(now * 40)) for each in two]
        part.slices(two, two, now)
    assert part._window is window
    part, two = WeightedSlices(), [task(1), task(2)]
    part.slices(two, two, 1.0)
    for at, again in ((1.1, WINDOW_S - 0.1), (4.0, WINDOW_S - 0.1), (12.0, WINDOW_S)):
        assert part.slices(two, two, at)[1] == pytest.approx(again)
        part.slices(two[:1], two, at)


def test_a_group_may_be_off_by_the_longest_of_its_slices() -> None:
    part, tasks = WeightedSlices(), [task(1, 100, group="a"), task(2, 300, group="a"), task(3, 300)]
    first, _ = part.slices(tasks, tasks, 0.0)
    assert first[tasks[0].key] < 10_000 < first[tasks[1].key]
    after = [used(tasks[0], 0.035, 0), used(tasks[1], 0.1, 0), used(tasks[2], 0.115, 0)]
    assert part.slices(after, after, 0.25)[0] == first


def test_time_in_which_nobody_can_run_does_not_count() -> None:
    policy, tasks = Fair({}), [task(1), task(2)]
    policy.decide(tasks, 1.0)
    tasks = [used(each, 0.1, 8) for each in tasks]
    policy.decide(tasks, 1.2)
    policy.decide([replace(each, suspended=True) for each in tasks], 1.2)
    assert policy.decide(tasks, 3.0).again_after_s == pytest.approx(WINDOW_S - 0.2)


def test_slices_are_corrected_by_what_was_held() -> None:
    part, tasks = WeightedSlices(), [task(1), task(2)]
    part.slices(tasks, tasks, 0.0)
    after = [used(tasks[0], 0.200, 10), used(tasks[1], 0.050, 10)]
    corrected, _ = part.slices(after, after, 0.25)
    assert corrected[tasks[0].key] < BASE_US / 2  # the other gives slices away: a longer one would change nothing
    assert corrected[tasks[1].key] == BASE_US


def test_a_task_that_is_idle_is_not_compared_with() -> None:
    part, tasks = WeightedSlices(), [task(1), task(2), task(3)]
    first, _ = part.slices(tasks, tasks, 0.0)
    after = [used(tasks[0], 0.125, 10), used(tasks[1], 0.125, 10), used(tasks[2], 0.001, 1)]
    assert part.slices(after, after, 0.25)[0] == first


def test_where_turns_are_not_known_all_that_held_anything_count() -> None:
    part, tasks = WeightedSlices(), [task(1), task(2)]
    part.slices(tasks, tasks, 0.0)
    after = [used(tasks[0], 0.225, 0), used(tasks[1], 0.025, 0)]
    corrected, _ = part.slices(after, after, 0.25)
    assert corrected[tasks[1].key] > 1.5 * corrected[tasks[0].key]


def test_tasks_that_come_and_go_are_compared_only_while_they_compete() -> None:
    """As capped ones do: here one is there 50 of every 100 ms, and has its half of them."""
    part, now = WeightedSlices(), 0.0
    first, second = task(1), task(2)
    for _ in range(30):
        both = [first, second]
        given_us, _ = part.slices(both, both, now)
        now += 0.05
        first = used(first, first.usage.held_s + 0.025, first.usage.turns + 2)
        second = used(second, second.usage.held_s + 0.025, second.usage.turns + 2)
        part.slices([first], [first, second], now)
        now += 0.05
        first = used(first, first.usage.held_s + 0.05, first.usage.turns)
    assert given_us == {first.key: BASE_US, second.key: BASE_US}


def test_what_was_held_under_other_weights_is_not_made_up_for() -> None:
    part, tasks = WeightedSlices(), [task(1, 300), task(2, 100)]
    part.slices(tasks, tasks, 0.0)
    swapped = [used(task(1, 100), 0.18, 10), used(task(2, 300), 0.06, 10)]
    corrected, again = part.slices(swapped, swapped, WINDOW_S - 0.01)
    assert again == pytest.approx(WINDOW_S)
    assert corrected == {swapped[0].key: BASE_US // 2, swapped[1].key: BASE_US * 3 // 2}
    later = [used(swapped[0], 0.25, 14), used(swapped[1], 0.23, 14)]
    assert part.slices(later, later, 2 * WINDOW_S - 0.02)[0] == corrected  # nor a moment before it was time


def test_nothing_is_kept_of_tasks_that_are_gone() -> None:
    part, now = WeightedSlices(), 0.0
    for pid in range(0, 400, 2):
        pair = [task(pid), task(pid + 1)]
        for _ in range(3):
            now += 0.3
            part.slices(pair, pair, now)
            pair = [used(each, now, int(now * 40)) for each in pair]
    assert len(part._groups) < 200
    assert len(part._given) < 200
    assert len(part._windows) <= 16


# -- on a GPU --------------------------------------------------------------------------------------

BURSTS = {"burst_s": 0.0125, "wait_s": 50e-6}  # four kernels of 3.2 ms, and a wait for them
SHORT = {"burst_s": 0.003, "wait_s": 50e-6}


def run_fair(*tenants: Tenant, seconds: float = 6.0) -> TinyGpu:
    gpu = TinyGpu(load_policy(PolicySpec("fair")), tenants)
    gpu.run(seconds)
    assert gpu.notes == []
    return gpu


def parts(gpu: TinyGpu, start: float, end: float) -> list[float]:
    """What each had of the time that anybody held."""
    held = shares(gpu, start, end)
    return [held[each.key.pid] / sum(held.values()) for each in gpu.tenants]


@pytest.mark.parametrize("work", [{}, BURSTS], ids=["busy", "bursts"])
@pytest.mark.parametrize("weights", [[300, 100], [1_000, 100], [100] * 4])
def test_shares_come_out_by_weight(weights: list[int], work: dict[str, float]) -> None:
    gpu = run_fair(*(tenant(pid, weight=weight, **work) for pid, weight in enumerate(weights, 1)))
    targets = [weight / sum(weights) for weight in weights]
    assert parts(gpu, 0, 6) == pytest.approx(targets, abs=0.02)
    for start in (1, 2, 3, 4, 5):
        assert parts(gpu, start, start + 1) == pytest.approx(targets, abs=0.05)


@pytest.mark.parametrize("count", [2, 4, 8])
def test_sharing_costs_little(count: int) -> None:
    gpu = run_fair(*(tenant(pid, **BURSTS) for pid in range(count)))
    assert sum(each.worked_s for each in gpu.tenants) / 6 > 0.95
    assert sum(each.controls for each in gpu.tenants) < 3 * count


def test_a_job_with_short_bursts_gets_its_part_beside_long_ones() -> None:
    gpu = run_fair(tenant(1, **SHORT), tenant(2), tenant(3), seconds=8)
    assert parts(gpu, 4, 8) == pytest.approx([1 / 3] * 3, abs=0.02)


def test_what_an_idle_task_leaves_goes_to_the_others_at_once() -> None:
    gpu = run_fair(tenant(1), tenant(2), tenant(3, start_s=2.0))
    assert parts(gpu, 0.0, 2.0)[:2] == pytest.approx([0.5, 0.5], abs=0.02)
    assert sum(shares(gpu, 0.0, 2.0).values()) > 0.98
    assert parts(gpu, 3.0, 4.0) == pytest.approx([1 / 3] * 3, abs=0.05)


def test_a_group_has_one_share_however_many_of_its_tasks_work() -> None:
    gpu = run_fair(*(tenant(pid, group="a", start_s=2.0 * (pid - 1)) for pid in (1, 2, 3)), tenant(9), seconds=7)
    for start in (1.0, 3.0, 5.0):
        assert parts(gpu, start, start + 1)[3] == pytest.approx(0.5, abs=0.05)
    assert parts(gpu, 6, 7)[:3] == pytest.approx([1 / 6] * 3, abs=0.03)


@pytest.mark.parametrize("at_s", [2.0, 2.3, 2.6, 2.9])
def test_changed_weights_are_shares_within_a_second_whenever_they_change(at_s: float) -> None:
    gpu = run_fair(tenant(1, weight=300, **BURSTS), tenant(2, weight=100, **BURSTS), seconds=at_s)
    gpu.change(gpu.tenants[0], weight=100)
    gpu.change(gpu.tenants[1], weight=300)
    gpu.run(2.0)
    for start in (at_s + 0.5, at_s + 1.0, at_s + 1.5):
        assert parts(gpu, start, start + 0.5) == pytest.approx([0.25, 0.75], abs=0.05)


@settings(max_examples=5, deadline=None)
@given(st.lists(st.sampled_from([50, 100, 200, 400]), min_size=2, max_size=5))
def test_any_weights(weights: list[int]) -> None:
    gpu = run_fair(*(tenant(pid, weight=weight) for pid, weight in enumerate(weights)), seconds=4)
    assert parts(gpu, 1, 4) == pytest.approx([weight / sum(weights) for weight in weights], abs=0.025)
