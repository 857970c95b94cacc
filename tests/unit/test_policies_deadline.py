"""Deadlines and segments: admission, and tasks with them on a small GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runlist.model import Cap, Deadline, Segment, Share, Task, TaskClass, TaskKey, Usage, Vanish
from runlist.policies import PolicySpec, load_policy
from runlist.policies.deadline import DeadlineLayer
from runlist.policies.priority import Priority
from tests.unit.test_policies_gpu import Tenant, TinyGpu, shares, tenant

DEADLINE, LATENCY, NORMAL, BATCH = TaskClass


def task(pid: int, task_class: TaskClass = DEADLINE, held_s: float = 0.0, **values: object) -> Task:
    return Task(TaskKey(pid, "GPU-0"), task_class, f"program{pid}", 0, 0.0, usage=Usage(held_s), **values)


def every(budget_ms: float, period_ms: float) -> dict[str, Deadline]:
    return {"deadline": Deadline(round(1e3 * budget_ms), round(1e3 * period_ms))}


def layer(**options: str) -> DeadlineLayer:
    return DeadlineLayer(options, Priority({}))


# -- admission -------------------------------------------------------------------------------------


def test_what_fits_is_admitted_up_to_the_whole_gpu() -> None:
    it = layer()
    members = [task(1, **every(5, 20)), task(2, **every(50, 100))]
    assert it.admit(task(3, **every(5, 20)), members) is None
    assert it.admit(task(3, NORMAL), members) is None
    assert it.admit(task(2, **every(75, 100)), members) is None  # its own former part is free


def test_what_does_not_fit_is_refused_with_the_numbers() -> None:
    members = [task(1, **every(5, 20)), task(2, **every(50, 100)), task(4, NORMAL)]
    assert layer().admit(task(3, **every(6, 20)), members) == (
        "6 ms in every 20 ms is 30 % of the GPU, and 25 % of the 100 % for deadlines is left: "
        "1 (program1) 25 %, 2 (program2) 50 %"
    )
    reason = layer(bound="0.5").admit(task(3, **every(12, 20)), [])
    assert reason == "12 ms in every 20 ms is 60 % of the GPU, and 50 % of the 50 % for deadlines is left"


def test_a_deadline_task_needs_a_deadline() -> None:
    assert "say deadline=BUDGET/PERIOD" in (layer().admit(task(1), []) or "")


def test_what_the_policy_below_refuses_is_refused() -> None:
    stack = load_policy(PolicySpec("gpreempt"))
    assert "takes one background task" in (stack.admit(task(1, BATCH), [task(2, BATCH)]) or "")


# -- decisions -------------------------------------------------------------------------------------


def test_without_deadlines_and_segments_the_layer_does_nothing() -> None:
    tasks = [task(1, NORMAL), task(2, BATCH)]
    assert layer().decide(tasks, 10.0) == Priority({}).decide(tasks, 10.0)


def test_one_deadline_task_has_a_long_slice_until_its_budget_is_used() -> None:
    it, other = layer(), task(2, BATCH)
    first = it.decide([task(1, **every(5, 20)), other], 10.0)
    assert [first.shares[TaskKey(pid, "GPU-0")] for pid in (1, 2)] == [Share(1_000_000), Share(1)]
    assert first.again_after_s == pytest.approx(0.005)
    spent = it.decide([task(1, held_s=0.005, **every(5, 20)), other], 10.005)
    assert spent.shares[TaskKey(1, "GPU-0")] == Share(1_000_000, False, pytest.approx(10.02))
    assert spent.shares[TaskKey(2, "GPU-0")].enabled
    assert it.why(TaskKey(1, "GPU-0")) == "budget of 5 ms used: waits 15 ms for its next period"


@pytest.mark.parametrize("vanishes", [False, True])
def test_a_deadline_task_that_comes_again_has_no_other_budget(vanishes: bool) -> None:
    it, other, key = layer(), task(2, BATCH), TaskKey(1, "GPU-0")
    it.decide([task(1, **every(50, 200)), other], 10.0)
    if vanishes:
        it.on_event(Vanish(key, Usage(0.05)), 10.05)
        back = 0.0
    else:
        back = 0.06
        it.decide([task(1, NORMAL, held_s=0.05), other], 10.05)
    share = it.decide([task(1, held_s=back, **every(50, 200)), other], 10.06).shares[key]
    assert (share.enabled, share.until) == (False, pytest.approx(10.2))
    assert it.decide([task(1, held_s=back, **every(50, 200)), other], 10.2).shares[key].enabled
    it.decide([other], 10.21)
    it.decide([other, task(3, **every(5, 20))], 20.0)
    assert it.decide([task(1, **every(50, 200)), other], 20.0).shares[key].enabled


def test_a_crowd_of_short_processes_has_the_budgets_of_one_user() -> None:
    """Each had a whole budget when it came, and so all of them together the whole GPU for a reservation of a part."""
    it, other = layer(), task(2, BATCH)
    it.decide([task(1, **every(50, 200)), other], 10.0)
    it.on_event(Vanish(TaskKey(1, "GPU-0"), Usage(0.05)), 10.05)
    crowd = [replace(task(pid, **every(50, 200)), owned_by=(uid, "")) for pid, uid in ((3, 0), (4, 0), (5, 1000))]
    shares = it.decide([*crowd, other], 10.06).shares
    assert [shares[each.key].enabled for each in crowd] == [False, True, True]  # the second is one more at once
    assert it.decide([*crowd, other], 10.2).shares[crowd[0].key].enabled


def test_the_earliest_deadline_comes_first_and_the_others_have_what_it_leaves() -> None:
    it = layer()
    tasks = [task(1, **every(30, 100)), task(2, **every(5, 25)), task(3, **every(5, 50))]
    decided = it.decide(tasks, 10.0).shares
    assert [decided[each.key].timeslice_us for each in tasks] == [2_000, 1_000_000, 5_000]
    later = it.decide(tasks, 10.051).shares  # the third has begun its next period, the second its third
    assert [later[each.key].timeslice_us for each in tasks] == [5_000, 1_000_000, 2_000]


def test_when_the_first_period_ends_another_may_be_the_first() -> None:
    it = layer()
    tasks = [task(1, **every(5, 20)), task(2, **every(5, 50))]
    assert it.decide(tasks, 10.0).again_after_s == pytest.approx(0.005)
    assert it.decide(tasks, 10.018).again_after_s == pytest.approx(0.002)
    assert it.decide(tasks[:1], 10.019).again_after_s == pytest.approx(0.005)


def test_a_deadline_task_without_a_deadline_is_served_as_a_latency_task() -> None:
    assert layer().decide([task(1), task(2, **every(5, 20))], 10.0).shares[TaskKey(1, "GPU-0")] == Share(2_000)


def test_a_segment_keeps_the_others_off_but_for_deadline_tasks_with_budget() -> None:
    it = layer(max_segment_ms="200")
    tasks = [task(1, NORMAL, segment=3), task(2, NORMAL), task(3, LATENCY), task(4, **every(5, 20))]
    it.on_event(Segment(tasks[0].key, 3), 10.0)
    decided = it.decide(tasks, 10.0).shares
    assert [decided[each.key].enabled for each in tasks] == [True, False, False, True]
    assert decided[tasks[1].key].until == pytest.approx(10.2)
    assert it.why(tasks[1].key) == "waits for a segment of another task"
    after = it.decide(tasks, 10.2).shares
    assert after[tasks[2].key].enabled


def test_the_segment_of_a_capped_task_that_waits_keeps_nobody_off() -> None:
    stack = load_policy(PolicySpec())
    tasks = [task(1, NORMAL, segment=3, cap=Cap(10_000)), task(2, NORMAL)]
    stack.decide(tasks, 10.0)
    used = [task(1, NORMAL, 0.02, segment=3, cap=Cap(10_000)), tasks[1]]
    decided = stack.decide(used, 10.02).shares
    assert [decided[each.key].enabled for each in used] == [False, True]


# -- on a GPU --------------------------------------------------------------------------------------


class Periodic:
    """A task with `work_s` of work in every period; how late each was done is in `late_s`."""

    def __init__(self, pid: int, work_s: float, budget_ms: float, period_ms: float) -> None:
        self.period_s = period_ms / 1e3
        self.released = 0.0
        self.late_s: list[float] = []
        values = every(budget_ms, period_ms)
        self.tenant = tenant(pid, DEADLINE, burst_s=work_s, on_burst=self.done, **values)

    def done(self, now: float, _took_s: float) -> None:
        self.late_s.append(now - self.released - self.period_s)
        self.released += self.period_s
        self.tenant.wait_s = max(0.0, self.released - now)


def run(*tenants: Tenant, seconds: float = 6.0, policy: str = "priority") -> TinyGpu:
    gpu = TinyGpu(load_policy(PolicySpec(policy)), tenants)
    gpu.run(seconds)
    assert gpu.notes == []
    return gpu


@pytest.mark.parametrize("policy", ["priority", "gpreempt"])
def test_one_that_overruns_gets_its_budget_and_no_more(policy: str) -> None:
    gpu = run(tenant(1, DEADLINE, **every(5, 20)), tenant(2), policy=policy)
    held = shares(gpu, 0, 6)
    assert held[1] == pytest.approx(0.25, abs=0.005)
    assert held[2] > 0.7


def test_periodic_work_is_in_time_beside_batch_jobs_and_one_that_overruns() -> None:
    first, second = Periodic(1, 0.005, 5.8, 20), Periodic(2, 0.010, 11.5, 50)
    gpu = run(first.tenant, second.tenant, tenant(3, DEADLINE, **every(40, 100)), tenant(4), tenant(5))
    assert len(first.late_s) >= 299
    assert max(first.late_s) <= 0
    assert max(second.late_s) <= 0
    assert shares(gpu, 0, 6)[3] == pytest.approx(0.4, abs=0.01)
    assert gpu.decides < 300 * 6


def test_a_latency_task_beside_waits_for_a_budget_at_most() -> None:
    took: list[float] = []
    service = tenant(1, LATENCY, burst_s=80e-6, wait_s=0.003, on_burst=lambda _, s: took.append(s))
    run(service, tenant(2, DEADLINE, **every(5, 20)), tenant(3))
    assert max(took) < 0.008


def test_segments_have_the_gpu_for_themselves() -> None:
    gpu = TinyGpu(load_policy(PolicySpec()), [tenant(1, NORMAL), tenant(2, NORMAL), tenant(3)])
    gpu.at(1.0, lambda: gpu.segment(gpu.tenants[0], 5))
    gpu.at(1.5, lambda: gpu.segment(gpu.tenants[0], None))
    gpu.run(3.0)
    assert shares(gpu, 1.01, 1.5)[1] > 0.99
    assert shares(gpu, 2, 3)[1] == pytest.approx(0.5, abs=0.05)


def test_a_tenant_cannot_stop_the_others_for_good() -> None:
    gpu = TinyGpu(load_policy(PolicySpec()), [tenant(1, NORMAL), tenant(2, NORMAL)])
    for step in range(500):
        gpu.at(0.02 * step, lambda: gpu.segment(gpu.tenants[0], 5))
    gpu.run(10.0)
    assert shares(gpu, 0, 10)[2] > 0.08


@pytest.mark.parametrize("task_class", [NORMAL, LATENCY])
@pytest.mark.parametrize(("lasts_s", "every_s"), [(0.02, 0.5), (0.2, 0.5), (0.3, 2.0), (0.01, 0.015), (0.9, 1.8)])
def test_successive_segments_all_count(task_class: TaskClass, lasts_s: float, every_s: float) -> None:
    """As long as all together are less than the documented part of the time."""
    gpu = TinyGpu(load_policy(PolicySpec()), [tenant(1, task_class), tenant(2, task_class), tenant(3)])
    begins = [0.5 + every_s * number for number in range(8)]
    for begun in begins:
        gpu.at(begun, lambda: gpu.segment(gpu.tenants[0], 5))
        gpu.at(begun + lasts_s, lambda: gpu.segment(gpu.tenants[0], None))
    seen: list[frozenset[TaskKey]] = []
    for begun in begins:
        gpu.at(begun + lasts_s / 2, lambda: seen.append(frozenset(e.key for e in gpu.tenants if e.enabled)))
    gpu.run(begins[-1] + every_s)
    assert seen == [{TaskKey(1, "GPU-0")}] * len(begins)


def test_segments_cost_nothing_while_there_is_nobody_to_keep_off() -> None:
    gpu = TinyGpu(load_policy(PolicySpec()), [tenant(1, NORMAL)])
    for step in range(50):
        gpu.at(0.1 * step, lambda: gpu.segment(gpu.tenants[0], 5))
    gpu.at(4.95, lambda: gpu.add(tenant(2, NORMAL)))
    gpu.run(5.5)
    assert shares(gpu, 4.97, 5.4)[1] > 0.95
