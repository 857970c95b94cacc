"""Accounts of policies over time: beside tasks that pause, are kept off again and again, and come back."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runlist.model import Cap, Hint, Segment, Task, TaskClass, TaskKey, Vanish
from runlist.policies import PolicySpec, load_policy
from runlist.policies.parts.requests import Requests
from tests.fixtures.effort import TIMES
from tests.unit.test_policies_gpu import FOREVER, Tenant, TinyGpu, shares, tenant

LATENCY, NORMAL, BATCH = TaskClass.LATENCY, TaskClass.NORMAL, TaskClass.BATCH
HOUR_S = 3600.0


def task(pid: int, task_class: TaskClass, **values: object) -> Task:
    return Task(TaskKey(pid, "GPU-0"), task_class, "x", 1000, 0.0, **values)


# -- turns by weight, of a background that is kept off again and again -------------------------------


def every(gpu: TinyGpu, seconds: float, *actions: tuple[float, Callable[[], None]]) -> None:
    """Do these things again and again, each so long after the one before."""

    def do(index: int) -> None:
        actions[index][1]()
        following = (index + 1) % len(actions)
        gpu.at(gpu.now + actions[following][0], lambda: do(following))

    gpu.at(gpu.now + seconds, lambda: do(0))


@pytest.mark.parametrize("every_s", [0.015, 0.045, 0.2])
@pytest.mark.parametrize("stop", ["segment", "hint", "suspend"])
def test_turns_go_by_weight_however_often_the_background_is_kept_off(every_s: float, stop: str) -> None:
    service = tenant(1, LATENCY, start_s=FOREVER)
    light, heavy = tenant(2, weight=100), tenant(3, weight=400)
    gpu = TinyGpu(load_policy(PolicySpec()), [service, light, heavy])

    def suspend(suspended: bool) -> None:
        for each in (light, heavy):
            gpu.change(each, suspended=suspended)

    stops = {
        "segment": [(every_s, lambda: gpu.segment(service, 1)), (0.005, lambda: gpu.segment(service, None))],
        "hint": [(every_s, lambda: gpu.hint(service, 0.0))],
        "suspend": [(every_s, lambda: suspend(True)), (0.005, lambda: suspend(False))],
    }
    every(gpu, 0.1, *stops[stop])
    gpu.run(12)
    held = shares(gpu, 1, 12)
    assert held[3] / held[2] == pytest.approx(4, rel=0.15)


@pytest.mark.parametrize(("percent", "period_us"), [(15, 500_000), (40, 200_000), (45, 200_000), (60, 100_000)])
def test_a_cap_above_its_part_gives_a_task_no_more_than_its_weight(percent: int, period_us: int) -> None:
    capped = tenant(2, weight=100, cap=Cap.of_percent(percent, period_us))
    gpu = TinyGpu(load_policy(PolicySpec()), [tenant(1, LATENCY, start_s=FOREVER), capped, tenant(3, weight=900)])
    gpu.run(12)
    held = shares(gpu, 1, 12)
    assert held[2] / (held[2] + held[3]) == pytest.approx(0.1, abs=0.01)


# -- what a stop of the others costs -----------------------------------------------------------------


@pytest.mark.parametrize("pause_s", [30.0, HOUR_S, 24 * HOUR_S])
def test_hints_of_who_was_alone_are_heard_when_others_come(pause_s: float) -> None:
    service, batch = task(1, LATENCY), task(2, BATCH)
    policy = load_policy(PolicySpec())
    policy.decide([service], 100.0)
    for now in (100.0, 100.0 + pause_s):
        policy.on_event(Hint(service.key, 0.0), now)
        policy.decide([service], now)
    now = 101.0 + pause_s
    policy.on_event(Hint(service.key, 0.0), now)
    assert not policy.decide([service, batch], now).shares[batch.key].enabled


@pytest.mark.parametrize("pause_s", [30.0, HOUR_S, 24 * HOUR_S])
@pytest.mark.parametrize("word", ["hint", "segment"])
def test_nothing_is_paid_for_a_time_in_which_all_were_gone(word: str, pause_s: float) -> None:
    """All of a job ends at once: nobody is asked before the next one comes."""
    policy = load_policy(PolicySpec())

    def is_kept_off(pid: int, now: float) -> bool:
        service = task(pid, LATENCY, segment=1 if word == "segment" else None)
        batch = task(pid + 1, BATCH)
        policy.decide([service, batch], now)
        policy.on_event(Hint(service.key, 0.0) if word == "hint" else Segment(service.key, 1), now)
        kept = not policy.decide([service, batch], now).shares[batch.key].enabled
        for each in (service, batch):
            policy.on_event(Vanish(each.key), now)
        return kept

    assert [is_kept_off(pid, 100.0 + pid * pause_s) for pid in (1, 3)] == [True, True]


def test_who_said_what_is_not_so_is_believed_again_after_a_minute_also_when_it_only_asks() -> None:
    requests, asks = Requests(), task(1, LATENCY)

    def off_until(now: float) -> float | None:
        return requests.off_until([], [asks], {asks.key: now + 0.05}, now)[0]

    now = 100.0
    while not requests.is_liar(asks.key):
        off_until(now)
        now += 0.001
    assert off_until(now + 59) is None
    assert off_until(now + 60) is not None


# -- jobs of programs that are short -----------------------------------------------------------------


class Job:
    """One short program after the other, in a job of its own."""

    def __init__(self, gpu: TinyGpu, lasts_s: float, **values: object) -> None:
        self.gpu, self.lasts_s, self.values = gpu, lasts_s, values
        self.pid, self.held_s = 100, 0.0
        self.starts()

    def starts(self) -> None:
        self.pid += 1
        self.program = tenant(self.pid, group="job", **self.values)
        self.gpu.add(self.program)
        self.gpu.at(self.gpu.now + self.lasts_s, self.ends)

    def ends(self) -> None:
        self.held_s += self.program.held_s
        self.gpu.remove(self.program)
        self.gpu.at(self.gpu.now + 0.001, self.starts)


@pytest.mark.parametrize("lasts_s", [0.01, 0.1, 0.14, 0.4])
def test_a_cap_holds_for_a_job_of_short_programs(lasts_s: float) -> None:
    gpu = TinyGpu(load_policy(PolicySpec()))
    job = Job(gpu, lasts_s, cap=Cap.of_percent(30, 500_000))
    gpu.run(10)
    assert job.held_s / 10 < 0.33


@pytest.mark.parametrize("lasts_s", [0.009, 0.03, 0.2])
def test_a_job_of_short_programs_has_its_part_of_the_turns_and_no_more(lasts_s: float) -> None:
    other = tenant(2, weight=300)
    gpu = TinyGpu(load_policy(PolicySpec()), [tenant(1, LATENCY, start_s=FOREVER), other])
    job = Job(gpu, lasts_s)
    gpu.run(10)
    assert job.held_s / (job.held_s + other.held_s) < 0.28


@given(seed=st.integers(0, 2**32))
@settings(max_examples=8 * TIMES, deadline=None)
def test_a_cap_holds_in_every_stretch_of_time_whoever_of_its_group_comes_pauses_and_goes(seed: int) -> None:
    random = Random(seed)
    period_us = random.choice([50_000, 100_000, 500_000])
    cap = Cap.of_percent(random.choice([10, 30, 80]), period_us)
    gpu = TinyGpu(load_policy(PolicySpec(random.choice(["priority", "fair"]))))
    gpu.add(tenant(1, random.choice([LATENCY, NORMAL, BATCH]), burst_s=0.001, wait_s=0.002))
    there: list[Tenant] = []
    pids = count(10)
    used, stretches = 0.0, []

    def come() -> None:
        # None of them is idle for long while it has the GPU: that becomes known late, and is given back then.
        work = {"burst_s": random.choice([0.03, FOREVER]), "wait_s": 0.0}
        there.append(tenant(next(pids), random.choice([BATCH, NORMAL]), group="g", cap=cap, **work))
        gpu.add(there[-1])

    def act() -> None:
        nonlocal used
        one = random.choice(there) if there else None
        what = random.choice(["come", "go", "pause", "weigh", "class"])
        if one is None or (what == "come" and len(there) < 4):
            come()
        elif what == "go":
            there.remove(one)
            used += one.held_s
            gpu.remove(one)
        elif what == "pause":
            gpu.change(one, suspended=not one.task.suspended)
        elif what == "weigh":
            gpu.change(one, weight=random.choice([1, 100, 5000]))
        elif what == "class":
            gpu.change(one, task_class=random.choice([BATCH, NORMAL, LATENCY]))
        gpu.at(gpu.now + random.choice([0.001, 0.02, 0.1, 1.0]), act)

    act()
    step_s = period_us / 1e6
    for _ in range(round(12 / step_s)):
        gpu.run(step_s)
        stretches.append(used + sum(each.held_s for each in there))
    for periods in (1, 3, 10):
        for before, after in zip(stretches, stretches[periods:], strict=False):
            assert after - before <= (periods + 1) * cap.quota_us / 1e6 + 0.015
