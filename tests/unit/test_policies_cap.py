"""Caps: the accounts, and tasks under them on a small GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runlist.model import Cap, Share, Task, TaskClass, TaskKey, Usage, Vanish
from runlist.policies import PolicySpec, load_policy
from runlist.policies.cap import Account, CapLayer
from runlist.policies.fair import Fair
from runlist.policies.parts.slices import BASE_US
from runlist.policies.priority import Priority
from tests.unit.test_policies_gpu import Tenant, TinyGpu, shares, tenant

LATENCY = TaskClass.LATENCY
KEY = TaskKey(1, "GPU-0")


def task(pid: int = 1, held_s: float = 0.0, idle_s: float = 0.0, **values: object) -> Task:
    return Task(TaskKey(pid, "GPU-0"), TaskClass.BATCH, "x", 0, 0.0, usage=Usage(held_s, 0, idle_s), **values)


def capped(percent: float, **values: object) -> dict[str, object]:
    return {"cap": Cap.of_percent(percent, **values)}


# -- accounts --------------------------------------------------------------------------------------


def account(cap: Cap | None = None) -> Account:
    opened = Account(cap or Cap(30_000), 10.0)
    opened.settle([task()], 10.0)
    return opened


def test_an_account_begins_with_the_part_of_its_quota_for_what_is_left_of_the_period() -> None:
    assert account().balance == pytest.approx(0.03)
    assert Account(Cap(30_000), 10.075).balance == pytest.approx(0.0075)
    assert Account(Cap(30_000), 10.075).ends == pytest.approx(10.1)


def test_what_is_used_is_taken_out_and_each_period_puts_the_quota_in() -> None:
    it = account()
    it.settle([task(held_s=0.02)], 10.05)
    assert (it.balance, it.empty) == (pytest.approx(0.01), False)
    it.settle([task(held_s=0.0298)], 10.06)
    assert (it.empty, it.until) == (True, pytest.approx(10.1))
    it.settle([task(held_s=0.0304)], 10.1)
    assert (it.balance, it.empty) == (pytest.approx(0.0296), False)


def test_debt_is_paid_by_as_many_periods_as_it_takes() -> None:
    it = account()
    it.settle([task(held_s=0.1)], 10.09)
    assert it.until == pytest.approx(10.3)
    it.settle([task(held_s=0.1)], 10.2)
    assert it.empty
    it.settle([task(held_s=0.1)], 10.3)
    assert it.balance == pytest.approx(0.02)


def test_what_is_not_used_adds_up_to_the_burst_and_no_more() -> None:
    it = account()
    it.settle([task()], 12.0)
    assert it.balance == pytest.approx(0.03)
    it = account(Cap(30_000, burst_us=20_000))
    it.settle([task()], 12.0)
    assert it.balance == pytest.approx(0.05)


def test_idle_time_is_given_back_and_resumes_the_task() -> None:
    it = account()
    it.settle([task(held_s=0.03)], 10.03)
    assert it.empty
    it.settle([task(held_s=0.03, idle_s=0.0005)], 10.04)
    assert it.empty
    it.settle([task(held_s=0.03, idle_s=0.02)], 10.05)
    assert (it.balance, it.empty) == (pytest.approx(0.02), False)


def test_a_changed_cap_forgives_nothing() -> None:
    it = account()
    it.settle([task(held_s=0.05)], 10.05)
    it.change(Cap(80_000), 10.05)
    assert it.balance == pytest.approx(-0.02)
    it.change(Cap(5_000, 20_000), 10.05)
    assert it.ends == pytest.approx(10.06)


@given(
    st.integers(1, 100),
    st.sampled_from([10_000, 50_000, 100_000]),
    st.lists(st.tuples(st.floats(0, 0.05), st.floats(-0.5, 1)), min_size=1, max_size=200),
)
def test_an_account_that_is_not_empty_is_within_its_quotas(
    percent: int, period_us: int, steps: list[tuple[float, float]]
) -> None:
    """However time passes and whatever is given back."""
    cap = Cap.of_percent(percent, period_us)
    it, now, held, idle = Account(cap, 10.0), 10.0, 0.0, 0.0
    it.settle([task()], now)
    for elapsed, part in steps:
        now += elapsed
        if part < 0:
            idle += -part * (held - idle)
        elif not it.empty:
            held += part * elapsed
        it.settle([task(held_s=held, idle_s=idle)], now)
        assert it.empty or held - idle <= cap.fraction * (now - 10.0) + 2 * cap.quota_us / 1e6
        assert not it.empty or it.until > now - 1e-3


# -- the layer -------------------------------------------------------------------------------------


def layer() -> CapLayer:
    return CapLayer({}, Fair({}))


def test_without_caps_the_layer_does_nothing() -> None:
    tasks = [task(1), task(2)]
    assert layer().decide(tasks, 10.0) == Fair({}).decide(tasks, 10.0)


def test_a_capped_task_is_looked_at_when_it_can_have_used_its_quota_and_says_why_it_waits() -> None:
    it = layer()
    assert it.decide([task(**capped(30))], 10.0).again_after_s == pytest.approx(0.03)
    assert it.why(KEY) == ""
    decision = it.decide([task(held_s=0.03, **capped(30))], 10.03)
    assert decision.shares == {KEY: Share(BASE_US, False, pytest.approx(10.1))}
    assert decision.again_after_s == pytest.approx(0.07)
    assert it.why(KEY) == "cap 30 %: waits 70 ms for its next period"
    assert it.decide([task(held_s=0.0302, **capped(30))], 10.1).shares == {KEY: Share(BASE_US)}


def test_a_part_that_a_layer_above_made_is_said_to_three_digits() -> None:
    it = layer()
    it.decide([task(**capped(3.79932))], 10.0)
    it.decide([task(held_s=0.03, **capped(3.79932))], 10.03)
    assert it.why(KEY).startswith("cap 3.8 %: ")


def test_one_that_waits_anyway_is_not_looked_at() -> None:
    stack = load_policy(PolicySpec())
    tasks = [replace(task(0), task_class=LATENCY), task(1), task(2, **capped(1))]
    decision = stack.decide(tasks, 10.0)
    assert not decision.shares[TaskKey(2, "GPU-0")].enabled
    below = Priority({}).decide(tasks, 10.0)
    assert decision.again_after_s == pytest.approx(below.again_after_s)  # the end of the turn of the other


def test_a_group_has_one_account_with_the_smallest_cap_and_keeps_it_when_its_tasks_end() -> None:
    it = layer()
    tasks = [task(1, group="a", **capped(30)), task(2, group="a", **capped(50)), task(3, group="a")]
    it.decide(tasks, 10.0)
    used = [replace(each, usage=Usage(0.0102)) for each in tasks]
    decision = it.decide(used, 10.031)
    assert not any(share.enabled for share in decision.shares.values())
    successor = [task(4, group="a", **capped(30))]
    it.decide([], 10.04)
    assert not it.decide(successor, 10.05).shares[TaskKey(4, "GPU-0")].enabled


def test_a_task_that_comes_again_pays_what_it_owed() -> None:
    """Its usage begins anew, and nobody is asked between while it is the only one on the GPU."""
    layer = CapLayer({}, Fair({}))
    layer.decide([task(**capped(30))], 10.0)
    layer.decide([task(held_s=0.029, **capped(30))], 10.04)
    layer.on_event(Vanish(KEY, Usage(0.05)), 10.05)
    assert not layer.decide([task(**capped(30))], 10.06).shares[KEY].enabled
    assert "waits 40 ms" in layer.why(KEY)


def test_who_has_no_cap_any_more_waits_no_more() -> None:
    it, other = layer(), task(2, **capped(30))
    assert it.decide([task(**capped(30)), other], 10.0).shares[KEY].enabled
    assert not it.decide([task(held_s=0.03, **capped(30)), other], 10.03).shares[KEY].enabled
    decision = it.decide([task(held_s=0.03), other], 10.04)
    assert decision.shares[KEY].enabled
    assert it.why(KEY) == ""
    assert it.decide([task(held_s=0.03, **capped(30)), other], 10.08).shares[KEY].enabled  # and has a new account


def test_nothing_is_kept_of_groups_that_are_gone() -> None:
    it = layer()
    for step in range(200):
        it.decide([task(step, **capped(30))], 10.0 + step)
    assert len(it._accounts) <= 2


# -- on a GPU --------------------------------------------------------------------------------------


def run(*tenants: Tenant, policy: str = "priority", seconds: float = 10.0) -> TinyGpu:
    gpu = TinyGpu(load_policy(PolicySpec(policy)), tenants)
    gpu.run(seconds)
    assert gpu.notes == []
    return gpu


def percents(gpu: TinyGpu, start: float, end: float) -> list[float]:
    held = shares(gpu, start, end)
    return [100 * held[each.key.pid] for each in gpu.tenants]


@pytest.mark.parametrize("policy", ["priority", "fair"])
@pytest.mark.parametrize("work", [{}, {"burst_s": 0.0125, "wait_s": 50e-6}], ids=["busy", "bursts"])
@pytest.mark.parametrize("percent", [10, 30, 50, 80])
def test_a_capped_job_gets_its_cap(percent: int, work: dict[str, float], policy: str) -> None:
    gpu = run(tenant(1, **capped(percent), **work), policy=policy)
    assert percents(gpu, 0, 10) == pytest.approx([percent], abs=0.5)
    for start in range(0, 90, 7):
        assert percents(gpu, start / 10, start / 10 + 1) == pytest.approx([percent], abs=2)
    assert gpu.decides < 50 * 10


def test_caps_hold_together() -> None:
    gpu = run(tenant(1, **capped(10)), tenant(2, **capped(30)), tenant(3, **capped(50)))
    assert percents(gpu, 0, 10) == pytest.approx([10, 30, 50], abs=0.5)
    for start in range(9):
        assert percents(gpu, start, start + 1) == pytest.approx([10, 30, 50], abs=2)


def test_what_a_cap_leaves_goes_to_the_others_by_weight() -> None:
    """As nearly as slices allow: the capped task is on for less than one round of all three, so that who is cut short
    when it comes and goes decides over some of each period.
    """
    gpu = run(tenant(1, **capped(10)), tenant(2, weight=300), tenant(3, weight=100), seconds=20)
    assert percents(gpu, 1, 20) == pytest.approx([10, 67.5, 22.5], abs=3.5)
    assert sum(percents(gpu, 1, 20)) > 97


def test_a_cap_above_what_a_task_gets_anyway_changes_nothing() -> None:
    gpu = run(tenant(1, **capped(80)), tenant(2), seconds=4)
    assert percents(gpu, 1, 4) == pytest.approx([49.5, 49.5], abs=1.5)
    assert gpu.tenants[0].controls < 5


def test_a_cap_takes_nothing_from_a_task_that_stays_below() -> None:
    """20 % of the GPU in bursts of 10 ms every 50 ms, with a cap of 30 %: never suspended."""
    gpu = run(tenant(1, burst_s=0.01, wait_s=0.04, **capped(30)), tenant(2, start_s=0.0), seconds=5)
    assert percents(gpu, 0, 5)[0] == pytest.approx(20, abs=1)
    assert gpu.tenants[0].controls < 5


@pytest.mark.parametrize(("burst_us", "slowest"), [(30_000, 0.056), (0, 0.125)])
def test_a_burst_lets_a_job_catch_up(burst_us: int, slowest: float) -> None:
    """55 ms of work at the beginning of every fifth period, with a quota of 30 ms."""
    took: list[float] = []
    cap = Cap(30_000, burst_us=burst_us)
    run(
        tenant(
            1, burst_s=0.055, wait_s=0.375 if burst_us == 0 else 0.445, on_burst=lambda _, s: took.append(s), cap=cap
        ),
        seconds=6,
    )
    assert max(took[2:]) == pytest.approx(slowest, abs=0.01)


def test_a_task_that_is_idle_on_the_gpu_loses_nothing_by_it() -> None:
    """Alone it stays on the GPU while it is idle, which first looks like work."""
    gpu = run(tenant(1, burst_s=0.02, wait_s=0.18, **capped(20)), seconds=8)
    assert gpu.tenants[0].worked_s == pytest.approx(8 * 0.1, rel=0.1)


def test_a_capped_latency_task_leaves_the_gpu_to_the_others() -> None:
    gpu = run(tenant(1, LATENCY, **capped(30)), tenant(2), tenant(3), seconds=6)
    got = percents(gpu, 1, 6)
    assert got[0] == pytest.approx(30, abs=1)
    assert got[1] + got[2] > 65


def test_a_group_is_capped_as_one() -> None:
    gpu = run(*(tenant(pid, group="a", **capped(30)) for pid in (1, 2)), tenant(3), seconds=6)
    got = percents(gpu, 0, 6)
    assert got[0] + got[1] == pytest.approx(30, abs=0.5)


@settings(max_examples=5, deadline=None)
@given(st.lists(st.sampled_from([5, 10, 20, 40]), min_size=1, max_size=4).filter(lambda caps: sum(caps) <= 85))
def test_any_caps_together(caps: list[int]) -> None:
    gpu = run(*(tenant(pid, **capped(percent)) for pid, percent in enumerate(caps, 1)), seconds=5)
    assert percents(gpu, 0, 5) == pytest.approx(caps, abs=1)


def test_the_smallest_cap_lets_a_task_run_now_and_then() -> None:
    """1 % of 10 ms is less than suspending a task takes: what is used too much is paid off over many periods."""
    gpu = run(tenant(1, **capped(1, period_us=10_000)), tenant(2), seconds=8)
    assert percents(gpu, 0, 8)[0] == pytest.approx(1, abs=0.3)
