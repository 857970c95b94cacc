"""Service targets: decisions, and a service beside batch jobs on a small GPU."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runlist.model import Cap, Report, Task, TaskClass, TaskKey, Usage
from runlist.policies import PolicySpec, load_policy
from runlist.policies.interface import Decision, Policy
from runlist.policies.parts.brake import FOLLOW_S, WINDOW_S
from runlist.policies.slo import SloLayer
from runlist.statistics import percentile
from tests.unit.test_policies_gpu import TinyGpu, shares, tenant

# As they are to be: taken from the code they would hold whatever it says.
BRAKED_LOOK_S = 0.05
LEAST_QUOTA_US = 1500
OLDEST_S = 5.0
SHORTEST_PERIOD_US = 25000
SILENT_LOOK_S = 1.0

LATENCY, NORMAL, BATCH = TaskClass.LATENCY, TaskClass.NORMAL, TaskClass.BATCH


class Below(Policy):
    """Remembers what it saw."""

    summary = "for tests"

    def decide(self, tasks: object, now: float) -> Decision:
        self.seen = {task.key.pid: task for task in tasks}  # type: ignore[attr-defined]
        return Decision({})

    def why(self, key: TaskKey) -> str:
        return "as below"


def task(pid: int, task_class: TaskClass = BATCH, **values: object) -> Task:
    return Task(TaskKey(pid, "GPU-0"), task_class, "x", 0, 0.0, **values)


class Loop:
    """A service with a target of 10 ms over some tasks, reporting what a test says; the first task is the service."""

    def __init__(self, *others: Task, requests: int = 50) -> None:
        self.requests = requests
        self.below = Below({})
        self.layer = SloLayer({}, self.below)
        self.tasks = [task(1, LATENCY, target_p99_us=10_000.0), *others]
        self.now = 10.0

    def pass_quarters(self, quarters: int, latency_ms: float, used: float = 0.0) -> dict[int, float | None]:
        """Quarters of a second with some requests each, in which each other task held `used` of the GPU. Returns what
        part of the GPU each task may have, None without a cap.
        """
        for _ in range(quarters):
            self.layer.decide(self.tasks, self.now)
            for _ in range(self.requests):
                self.now += 0.25 / self.requests
                self.layer.on_event(Report(self.tasks[0].key, latency_ms / 1e3), self.now)
            self.tasks[1:] = [replace(each, usage=Usage(each.usage.held_s + 0.25 * used)) for each in self.tasks[1:]]
        decision = self.layer.decide(self.tasks, self.now)
        self.again = decision.again_after_s
        return {pid: seen.cap.fraction if seen.cap else None for pid, seen in self.below.seen.items()}


def test_without_targets_the_layer_does_nothing() -> None:
    loop = Loop(task(2))
    loop.tasks[0] = replace(loop.tasks[0], target_p99_us=None)
    assert loop.pass_quarters(2, 50) == {1: None, 2: None}
    assert loop.again is None
    assert loop.layer.why(TaskKey(2, "GPU-0")) == "as below"


def test_while_the_target_is_kept_nobody_is_capped() -> None:
    assert Loop(task(2)).pass_quarters(10, 5, used=0.9) == {1: None, 2: None}


def test_when_it_is_in_danger_the_background_gets_less_at_once() -> None:
    loop = Loop(task(2), task(3, NORMAL))
    loop.pass_quarters(8, 5, used=0.4)
    got = loop.pass_quarters(1, 9.5, used=0.4)
    assert got[1] is None
    assert got[2] == got[3] == pytest.approx(0.8 * 0.7 / 2, abs=0.03)
    loop.layer.on_event(Report(loop.tasks[0].key, 0.005), loop.now)  # nothing queues any more
    assert loop.layer.decide(loop.tasks, loop.now).again_after_s == pytest.approx(0.25)
    assert loop.layer.why(TaskKey(2, "GPU-0")) == "as below, p99 9.5 ms of 10 ms: background at 56 %"


def test_what_was_acted_on_is_not_acted_on_again() -> None:
    loop = Loop(task(2))
    loop.pass_quarters(8, 5, used=0.8)
    first = loop.pass_quarters(1, 9.5, used=0.8)
    assert loop.pass_quarters(2, 5, used=0.5) == first


def test_it_goes_on_while_that_helps_down_to_one_percent() -> None:
    loop = Loop(task(2))
    parts = [loop.pass_quarters(1, 20 + 180 * 0.7**quarter, used=0.01)[2] for quarter in range(16)]
    assert min(part for part in parts if part is not None) == pytest.approx(0.01)


def test_after_a_silence_the_background_begins_with_all_of_it() -> None:
    loop = Loop(task(2))
    loop.pass_quarters(8, 5, used=0.8)
    assert loop.pass_quarters(4, 9.5, used=0.8)[2] is not None
    loop.now += OLDEST_S
    assert loop.layer.decide(loop.tasks, loop.now).again_after_s == pytest.approx(SILENT_LOOK_S)
    assert loop.below.seen[2].cap is None
    assert loop.pass_quarters(2, 5, used=0.8) == {1: None, 2: None}


def test_a_target_that_is_set_anew_begins_with_all_of_it() -> None:
    loop = Loop(task(2))
    loop.pass_quarters(8, 5, used=0.8)
    assert loop.pass_quarters(4, 9.5, used=0.8)[2] is not None
    service = loop.tasks[0]
    loop.tasks[0] = replace(service, target_p99_us=None)
    assert loop.layer.decide(loop.tasks, loop.now).again_after_s is None
    loop.tasks[0] = service
    assert loop.pass_quarters(2, 5, used=0.8) == {1: None, 2: None}


def test_with_room_the_background_gets_more_again() -> None:
    loop = Loop(task(2))
    loop.pass_quarters(8, 5, used=0.8)
    low = loop.pass_quarters(1, 9.5, used=0.8)[2]
    assert low is not None
    later = loop.pass_quarters(8, 5, used=0.8)[2]
    assert later is not None
    assert later == pytest.approx(low + 4 * 0.03, abs=0.04)


def test_a_background_that_does_not_use_what_it_may_gets_no_more() -> None:
    loop = Loop(task(2))
    loop.pass_quarters(8, 5, used=0.8)
    low = loop.pass_quarters(1, 9.5, used=0.8)[2]
    assert loop.pass_quarters(20, 5, used=0.05)[2] == low


def test_between_the_two_bounds_it_has_more_only_while_that_makes_nothing_slower() -> None:
    for later_ms, has_more in ((8.5, True), (8.95, False)):
        loop = Loop(task(2))
        loop.pass_quarters(8, 5, used=0.8)
        low = loop.pass_quarters(1, 9.5, used=0.8)
        assert loop.pass_quarters(7, 8.5, used=0.5) == low  # it is not known yet what is in reach
        first = loop.pass_quarters(1, 8.5, used=0.5)
        assert (loop.pass_quarters(20, later_ms, used=0.5) != first) is has_more


def test_what_was_slow_before_it_could_do_anything_is_no_reason() -> None:
    for first_s, keeps_all in ((0.0, True), (0.2, False)):
        loop = Loop(task(2))
        loop.layer.decide(loop.tasks, loop.now)
        for number in range(20):
            loop.layer.on_event(Report(loop.tasks[0].key, 0.02), loop.now + first_s + number / 100)
        loop.now += first_s + 0.2
        assert (loop.pass_quarters(4, 5, used=0.8)[2] is None) is keeps_all


def test_while_requests_queue_the_background_is_off_and_then_comes_back() -> None:
    """Long before any is late, and without a smaller part."""
    loop = Loop(task(2), task(3, NORMAL), task(4, LATENCY))
    loop.pass_quarters(8, 3, used=0.3)
    service = loop.tasks[0].key

    def off() -> set[int]:
        shares_now = loop.layer.decide(loop.tasks, loop.now).shares
        return {key.pid for key, share in shares_now.items() if not share.enabled}

    assert off() == set()
    assert loop.layer.on_event(Report(service, 0.006), loop.now)
    assert off() == {2, 3}
    assert "stopped for a moment" in loop.layer.why(TaskKey(2, "GPU-0"))
    assert not loop.layer.on_event(Report(service, 0.006), loop.now + 0.001)
    assert loop.layer.on_event(Report(service, 0.003), loop.now + 0.002)
    loop.now += 0.002
    assert off() == set()
    assert loop.pass_quarters(4, 3, used=0.3)[2] is None


def test_when_the_reports_stop_in_a_queue_the_background_comes_back() -> None:
    loop = Loop(task(2))
    loop.pass_quarters(8, 3, used=0.3)
    loop.layer.on_event(Report(loop.tasks[0].key, 0.006), loop.now)
    again = loop.layer.decide(loop.tasks, loop.now)
    assert not again.shares[loop.tasks[1].key].enabled
    assert again.again_after_s == pytest.approx(0.04)
    loop.now += 0.041
    assert loop.tasks[1].key not in loop.layer.decide(loop.tasks, loop.now).shares


def test_nonsense_is_not_heard() -> None:
    loop = Loop(task(2))
    loop.pass_quarters(8, 3, used=0.3)
    for latency_s in (float("inf"), float("nan"), -1.0):
        assert not loop.layer.on_event(Report(loop.tasks[0].key, latency_s), loop.now)
        assert loop.tasks[1].key not in loop.layer.decide(loop.tasks, loop.now).shares


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([5, 50, 400]), st.floats(0.0, 0.05))
def test_whoever_lies_stops_lower_classes_alone_and_leaves_them_a_least_part(
    seed: int, per_s: int, longest_s: float
) -> None:
    """Random latencies, at random times."""
    rnd = random.Random(seed)
    loop = Loop(task(2), task(3, NORMAL), task(4, LATENCY))
    on_s, off, asked = 0.0, False, loop.now
    while loop.now < 22.0:
        report_at = loop.now + rnd.expovariate(per_s)
        while asked < report_at:
            on_s += (asked - loop.now) * (not off) * (loop.now > 12.0)
            loop.now = asked
            decision = loop.layer.decide(loop.tasks, loop.now)
            assert all(decision.shares.get(loop.tasks[at].key) is None for at in (0, 3))
            off = loop.tasks[1].key in decision.shares
            cap = loop.below.seen[2].cap
            assert cap is None or cap.fraction >= 0.01
            asked = loop.now + max(1e-3, min(0.25, decision.again_after_s or 0.25))
        on_s += (report_at - loop.now) * (not off) * (loop.now > 12.0)
        loop.now = report_at
        if loop.layer.on_event(Report(loop.tasks[0].key, rnd.uniform(0, longest_s)), loop.now):
            asked = loop.now
    assert on_s >= 0.008 * 10


def test_a_single_slow_request_of_hundreds_is_no_reason() -> None:
    loop = Loop(task(2), requests=500)
    loop.pass_quarters(4, 5, used=0.8)
    loop.layer.on_event(Report(loop.tasks[0].key, 1.0), loop.now)
    assert loop.pass_quarters(2, 5, used=0.8)[2] is None


def test_without_reports_the_background_is_free_again() -> None:
    loop = Loop(task(2))
    loop.pass_quarters(8, 20, used=0.8)
    loop.now += 5.1
    loop.layer.decide(loop.tasks, loop.now)
    assert loop.below.seen[2].cap is None


def test_after_a_silence_the_background_begins_with_all() -> None:
    """What the service could bear before says nothing of what it does now."""
    loop = Loop(task(2))
    capped = loop.pass_quarters(12, 9.5, used=0.4)[2]
    assert capped is not None
    loop.now += 60.0
    loop.layer.decide(loop.tasks, loop.now)
    assert loop.pass_quarters(1, 5, used=0.4) == {1: None, 2: None}


def test_a_smaller_cap_of_ones_own_holds_and_groups_and_idle_tasks_count_once() -> None:
    loop = Loop(task(2, cap=Cap(5_000)), task(3, group="a"), task(4, group="a"))
    loop.pass_quarters(8, 5, used=0.3)
    got = loop.pass_quarters(1, 9.5, used=0.3)
    assert got[2] == pytest.approx(0.05)
    assert got[3] == got[4] == pytest.approx(0.9 * 0.7 / 2, abs=0.03)


def test_small_parts_come_in_long_periods() -> None:
    """Each time that the background comes on, requests are hit."""
    loop = Loop(task(2))
    loop.pass_quarters(60, 20, used=0.02)
    cap = loop.below.seen[2].cap
    assert cap is not None
    assert cap.quota_us >= LEAST_QUOTA_US
    assert cap.period_us > SHORTEST_PERIOD_US


def test_the_background_is_stopped_at_once_and_comes_back_when_there_is_room_for_more() -> None:
    loop = Loop(task(2))
    loop.pass_quarters(8, 5, used=0.3)
    service, background = (each.key for each in loop.tasks)
    assert not loop.layer.on_event(Report(service, 0.005), loop.now)
    assert loop.layer.on_event(Report(service, 0.02), loop.now)  # decide at once
    assert not loop.layer.on_event(Report(service, 0.02), loop.now)  # that was asked for already
    stopped, off = loop.now, True
    while off:
        decision = loop.layer.decide(loop.tasks, loop.now)
        share = decision.shares.get(background)  # the policy below gives none
        off = share is not None
        if share is not None:
            assert not share.enabled
            assert share.until == pytest.approx(loop.now + BRAKED_LOOK_S)
            assert decision.again_after_s == pytest.approx(BRAKED_LOOK_S)
            assert "stopped for a moment" in loop.layer.why(background)
            assert service not in decision.shares
            assert loop.now - stopped < WINDOW_S + 2 * BRAKED_LOOK_S
            loop.layer.on_event(Report(service, 0.005), loop.now)
            loop.now += BRAKED_LOOK_S
    assert loop.now - stopped > FOLLOW_S
    assert "stopped for a moment" not in loop.layer.why(background)
    loop.pass_quarters(8, 5, used=0.3)
    assert background not in loop.layer.decide(loop.tasks, loop.now).shares


def test_one_service_of_several_that_is_late_stops_the_background() -> None:
    loop = Loop(task(2), task(3, LATENCY, target_p99_us=10_000.0))
    loop.pass_quarters(8, 5, used=0.3)
    loop.layer.on_event(Report(loop.tasks[0].key, 0.02), loop.now)
    decision = loop.layer.decide(loop.tasks, loop.now)
    assert [key.pid for key, share in decision.shares.items() if not share.enabled] == [2]
    assert "stopped" in loop.layer.why(TaskKey(2, "GPU-0"))


def test_a_target_that_is_set_anew_is_not_judged_by_what_was_reported_before() -> None:
    loop = Loop(task(2))
    loop.pass_quarters(8, 20, used=0.8)
    assert loop.below.seen[2].cap is not None
    with_target = loop.tasks[0]
    loop.tasks[0] = replace(with_target, target_p99_us=None)
    loop.layer.decide(loop.tasks, loop.now)
    assert loop.below.seen[2].cap is None
    loop.tasks[0] = with_target
    loop.now += 0.01
    decision = loop.layer.decide(loop.tasks, loop.now)
    assert loop.below.seen[2].cap is None
    assert all(share.enabled for share in decision.shares.values())


def test_with_nobody_to_stop_a_late_request_is_no_reason_to_decide() -> None:
    loop = Loop()
    loop.pass_quarters(8, 5)
    assert not loop.layer.on_event(Report(loop.tasks[0].key, 0.02), loop.now)


# -- on a GPU --------------------------------------------------------------------------------------


def serve(
    target_us: float, loads: list[float], *, kernels: int = 10, batch: int = 1
) -> tuple[TinyGpu, list[list[float]]]:
    """Requests of several kernels at random, at a load that steps every 8 s; returns latencies by second."""
    rnd = random.Random(7)
    by_second: list[list[float]] = [[] for _ in range(8 * len(loads))]
    state = {"kernel": 0, "began": 0.0}

    def kernel_done(now: float, took_s: float) -> None:
        if state["kernel"] == 0:
            state["began"] = now - took_s
        state["kernel"] += 1
        service.wait_s = 20e-6
        if state["kernel"] == kernels:
            state["kernel"] = 0
            latency_s = now - state["began"]
            by_second[min(int(now), len(by_second) - 1)].append(latency_s)
            gpu.report(service, latency_s)
            alone_s = kernels * 90e-6
            service.wait_s = rnd.expovariate(1 / (alone_s / loads[min(int(now / 8), len(loads) - 1)] - alone_s))

    service = tenant(1, LATENCY, burst_s=70e-6, wait_s=20e-6, on_burst=kernel_done, target_p99_us=target_us)
    gpu = TinyGpu(load_policy(PolicySpec()), [service, *(tenant(2 + each) for each in range(batch))])
    gpu.run(8.0 * len(loads))
    assert gpu.notes == []
    return gpu, by_second


def kept(by_second: list[list[float]], target_us: float) -> float:
    """Part of the seconds in which the target was kept."""
    good = [percentile(sorted(each), 99) <= target_us / 1e6 for each in by_second if each]
    return sum(good) / len(good)


def test_a_target_that_can_be_kept_beside_all_costs_the_background_nothing() -> None:
    gpu, by_second = serve(8_000, [0.1, 0.4])
    assert kept(by_second, 8_000) == 1.0
    assert gpu.tenants[1].controls <= 2


def test_a_target_that_can_be_kept_by_little_background_is_kept() -> None:
    """Beside a batch job a request takes three times as long as alone: only one in a hundred may meet it."""
    gpu, by_second = serve(2_000, [0.1, 0.3, 0.5])
    assert kept(by_second[3:], 2_000) > 0.7
    assert shares(gpu, 4, 24)[2] < 0.1
