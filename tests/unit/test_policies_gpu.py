"""A small deterministic GPU to try policies on, and tests that it behaves as one.

It runs the enabled tasks that have work in turn, by their slices; a switch costs a gap in which nobody holds the GPU
and a while in which the next one makes no progress; a task that nobody competes with keeps the GPU while it is idle,
which is found out half a second later. Suspending and resuming take effect a little after they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from runlist.model import (
    DEFAULT_SHARE,
    Appear,
    Event,
    Hint,
    Report,
    Segment,
    Share,
    Task,
    TaskClass,
    TaskKey,
    Tick,
    Usage,
    Vanish,
)
from runlist.planes.nvidia.slices import SLICES
from runlist.policies import Policy
from runlist.scheduling.guard import safe_shares

GAP_S, RESTORE_S = 84e-6, 196e-6
SUSPEND_S, RESUME_S, CALL_S = 600e-6, 300e-6, 700e-6
DEFAULT_SLICE_US = 2_048
IDLE_KNOWN_AFTER_S = 0.5
HISTORY_S = 0.01
FOREVER = float("inf")
EPSILON = 1e-12

UUID = "GPU-0"


@dataclass
class Tenant:
    """A task, and its work: bursts of `burst_s` GPU seconds with waits of `wait_s` in between, the first at `start_s`.

    `on_burst(now, took_s)` is told when a burst ends, with how long it took since its work arrived; it may change
    what comes next.
    """

    task: Task
    burst_s: float = FOREVER
    wait_s: float = 0.0
    start_s: float = 0.0
    on_burst: Callable[[float, float], None] | None = None
    share: Share = DEFAULT_SHARE
    enabled: bool = True
    switch_at: float = FOREVER  # when a change of `enabled` takes effect
    left_s: float = 0.0
    arrived: float = 0.0
    wakes: float = 0.0
    held_s: float = 0.0
    worked_s: float = 0.0
    turns: int = 0
    idle_s: float = 0.0
    idle_log: list[tuple[float, float]] = field(default_factory=list)
    controls: int = 0

    def __post_init__(self) -> None:
        self.wakes = self.start_s

    @property
    def key(self) -> TaskKey:
        return self.task.key

    @property
    def ready(self) -> bool:
        return self.enabled and self.left_s > 0

    @property
    def slice_s(self) -> float:
        return (self.share.timeslice_us or DEFAULT_SLICE_US) / 1e6

    def usage(self, now: float) -> Usage:
        known = sum(idle for at, idle in self.idle_log if at <= now - IDLE_KNOWN_AFTER_S)
        self.idle_log = [(at, idle) for at, idle in self.idle_log if at > now - IDLE_KNOWN_AFTER_S]
        self.idle_s += known
        return Usage(self.held_s, self.turns, self.idle_s)


def tenant(pid: int, task_class: TaskClass = TaskClass.BATCH, **values: object) -> Tenant:
    """A tenant; values of the work go to it, the others to its task."""
    work = {name: values.pop(name) for name in ("burst_s", "wait_s", "start_s", "on_burst") if name in values}
    return Tenant(Task(TaskKey(pid, UUID), task_class, f"program{pid}", 1000, 0.0, **values), **work)


class TinyGpu:
    """One GPU under one policy, as the daemon runs it."""

    def __init__(self, policy: Policy, tenants: Sequence[Tenant] = ()) -> None:
        self.policy = policy
        self.now = 0.0
        self.tenants: list[Tenant] = []
        self.resident: Tenant | None = None
        self.since = 0.0  # the resident makes progress from here on
        self.began = 0.0
        self.again_at = FOREVER
        self.decides = 0
        self.notes: list[str] = []
        self.history: list[tuple[float, dict[int, float]]] = []
        self.timed: list[tuple[float, Callable[[], None]]] = []
        for each in tenants:
            self.add(each)

    # -- what the daemon does --

    def add(self, each: Tenant) -> None:
        each.task = replace(each.task, since=self.now)
        each.wakes = max(each.wakes, self.now)
        self.tenants.append(each)
        self.event(Appear(each.task))

    def remove(self, each: Tenant) -> None:
        self.tenants.remove(each)
        if self.resident is each:
            self.resident = None
        self.event(Vanish(each.key, each.usage(self.now)))

    def change(self, each: Tenant, **values: object) -> None:
        each.task = replace(each.task, **values)
        self.event(Appear(each.task))

    def hint(self, each: Tenant, in_s: float) -> None:
        self.event(Hint(each.key, in_s))

    def report(self, each: Tenant, latency_s: float) -> None:
        if self.policy.on_event(Report(each.key, latency_s), self.now):
            self.again_at = self.now

    def segment(self, each: Tenant, priority: int | None) -> None:
        each.task = replace(each.task, segment=priority)
        self.event(Segment(each.key, priority))

    def event(self, event: Event) -> None:
        self.policy.on_event(event, self.now)
        self.again_at = self.now

    def tasks(self) -> list[Task]:
        return [replace(each.task, usage=each.usage(self.now)) for each in self.tenants]

    def decide(self) -> dict[TaskKey, Share]:
        tasks = self.tasks()
        decision = self.policy.decide(tasks, self.now)
        in_force = {each.key: each.share for each in self.tenants}
        shares, notes = safe_shares(tasks, decision.shares, in_force, self.now, SLICES)
        self.decides += 1
        self.notes += notes
        delay = 0.0  # one control after the other: first some go off, then others come on
        for each in sorted(self.tenants, key=lambda one: shares[one.key].enabled):
            share = shares[each.key]
            each.controls += (share.timeslice_us != each.share.timeslice_us) + (share.enabled != each.share.enabled)
            if share.enabled != each.share.enabled:
                each.switch_at = self.now + delay + (RESUME_S if share.enabled else SUSPEND_S)
                delay += CALL_S
            each.share = share
        after = decision.again_after_s
        self.again_at = FOREVER if after is None else self.now + max(0.0005, after)
        return shares

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Do something at a time."""
        self.timed.append((time, action))
        self.timed.sort(key=lambda pair: pair[0])

    def run(self, seconds: float) -> None:
        """Let time pass."""
        end = self.now + seconds
        while self.now < end - EPSILON:
            while self.timed and self.timed[0][0] <= self.now + EPSILON:
                self.timed.pop(0)[1]()
            if self.again_at <= self.now + EPSILON:
                self.again_at = FOREVER
                self.policy.on_event(Tick(), self.now)
                self.decide()
            following = self.timed[0][0] if self.timed else FOREVER
            self._work_until(min(end, self.again_at, following, self.now + HISTORY_S))
            self.history.append((self.now, {each.key.pid: each.held_s for each in self.tenants}))

    # -- what the hardware does --

    def _work_until(self, end: float) -> None:
        while self.now < end - EPSILON:
            self._arrivals()
            resident = self.resident
            if resident is not None and not resident.enabled:
                self.resident = resident = None
            others = [each for each in self.tenants if each is not resident and each.ready]
            step = min([end] + [each.switch_at for each in self.tenants] + [self._wake(each) for each in self.tenants])
            if resident is None:
                if others:
                    self._switch_in(self._next(others), end)
                    continue
                self.now = step
                continue
            if others and (resident.left_s <= 0 or self._expired(resident)):
                self._switch_in(self._next(others), end)
                continue
            starts = max(self.now, self.since)
            step = min(step, starts + resident.left_s if resident.left_s > 0 else self.now + 0.05)
            if others:
                step = min(step, self._slice_end(resident))
            step = max(step, self.now + 1e-9)
            held = step - self.now
            resident.held_s += held
            if resident.left_s > 0:
                worked = max(0.0, step - starts)
                resident.worked_s += worked
                resident.left_s -= worked
                if resident.left_s <= EPSILON:
                    self._burst_ends(resident, step)
            else:
                resident.idle_log.append((step, held))
            self.now = step

    def _burst_ends(self, each: Tenant, at: float) -> None:
        each.left_s = 0.0
        if each.on_burst:
            each.on_burst(at, at - each.arrived)
        each.wakes = at + each.wait_s

    def _wake(self, each: Tenant) -> float:
        return each.wakes if each.left_s <= 0 else FOREVER

    def _arrivals(self) -> None:
        for each in self.tenants:
            if each.switch_at <= self.now + EPSILON:
                each.enabled, each.switch_at = each.share.enabled, FOREVER
            if each.left_s <= 0 and each.wakes <= self.now + EPSILON:
                each.left_s, each.arrived = each.burst_s, self.now

    def _slice_end(self, resident: Tenant) -> float:
        """The end of the slice that runs: a resident that nobody waits for begins another."""
        done = self.now - self.began
        return self.now + resident.slice_s - done % resident.slice_s if resident.slice_s < 60 else FOREVER

    def _expired(self, resident: Tenant) -> bool:
        done = self.now - self.began
        rest = done % resident.slice_s
        return done > EPSILON and (rest < 1e-9 or resident.slice_s - rest < 1e-9 or resident.slice_s < RESTORE_S)

    def _next(self, ready: Sequence[Tenant]) -> Tenant:
        """The next in turn after the last one."""
        order = {each.key: index for index, each in enumerate(self.tenants)}
        last = order.get(self._last, -1)
        return min(ready, key=lambda each: (order[each.key] - last - 1) % len(order))

    _last: TaskKey | None = None

    def _switch_in(self, each: Tenant, end: float) -> None:
        del end
        self.now += GAP_S
        self.resident, self._last = each, each.key
        self.began, self.since = self.now, self.now + RESTORE_S
        each.turns += 1


def shares(gpu: TinyGpu, start: float, end: float) -> dict[int, float]:
    """What part of the time from `start` to `end` each task held."""

    def at(time: float) -> dict[int, float]:
        before: dict[int, float] = {}
        for when, held in gpu.history:
            if when > time + EPSILON:
                break
            before = held
        return before

    first, last = at(start), at(end)
    return {pid: (held - first.get(pid, 0.0)) / (end - start) for pid, held in last.items()}


# -- the GPU itself --------------------------------------------------------------------------------


class Static(Policy):
    """Slices that never change."""

    summary = "for tests"

    def __init__(self, *slices_us: int) -> None:
        super().__init__({})
        self.slices_us = slices_us

    def decide(self, tasks: Sequence[Task], now: float) -> object:
        from runlist.policies import Decision

        return Decision({task.key: Share(us) for task, us in zip(tasks, self.slices_us, strict=True)})


def test_equal_slices_are_equal_shares_and_cost_switches() -> None:
    gpu = TinyGpu(Static(10_000, 10_000), [tenant(1), tenant(2)])
    gpu.run(2.0)
    got = shares(gpu, 0, 2)
    assert got[1] == pytest.approx(0.495, abs=0.01)
    assert got[2] == pytest.approx(0.495, abs=0.01)
    assert sum(each.worked_s for each in gpu.tenants) == pytest.approx(2 * (1 - 280 / 10_084), rel=0.01)


def test_a_job_with_short_bursts_gives_its_slices_away() -> None:
    gpu = TinyGpu(Static(10_000, 10_000), [tenant(1, burst_s=0.003, wait_s=20e-6), tenant(2)])
    gpu.run(2.0)
    assert shares(gpu, 0, 2)[1] == pytest.approx(3.2 / 13.4, abs=0.02)


def test_two_tiny_slices_make_no_progress() -> None:
    gpu = TinyGpu(Static(100, 100), [tenant(1), tenant(2)])
    gpu.again_at = FOREVER  # past the guard
    for each in gpu.tenants:
        each.share = Share(100)
    gpu.run(0.5)
    assert sum(each.worked_s for each in gpu.tenants) == pytest.approx(0.0, abs=1e-6)


def test_an_idle_task_keeps_the_gpu_and_that_is_known_later() -> None:
    gpu = TinyGpu(Static(1_000), [tenant(1, burst_s=0.01, wait_s=FOREVER)])
    gpu.run(2.0)
    usage = gpu.tenants[0].usage(gpu.now)
    assert usage.held_s == pytest.approx(2.0, abs=0.001)
    assert usage.busy_s == pytest.approx(0.01 + IDLE_KNOWN_AFTER_S, abs=0.1)
