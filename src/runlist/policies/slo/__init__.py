"""Service targets: the background gets the most that keeps a task's tail latency under its target.

Tasks with a target (p99) report how long their requests took. Four times a second the p99 of the last second is
compared with the target: when it comes near, all tasks of lower classes that have no target of their own get a smaller
part of the GPU together, at once (times 0.7); while it is well below, a little more (3 % of the GPU). Near a part that
failed the steps are small and rare. Caps keep the part. What the p99 is with a smaller part is in reach: one as good as
that is no reason to give less, and a target out of reach counts as 1.3 times what is. While requests queue, the
background is stopped. Before more than one request in a hundred of a second took too long, it is stopped at once, until
more late requests are affordable.

Good for: a service with a latency target beside batch jobs that should get all that is left.
Fails: a target that cannot be kept even alone is missed by more, a sixth at most. A request that comes while the
background runs waits for one context switch, whatever its part: a target below that is kept only by nearly none.
The p99 of single seconds varies: one that alone comes near the target is missed at times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from runlist.model import Cap, Event, Report, Task, TaskClass, TaskKey, Vanish
from runlist.policies.interface import Decision, Layer, Policy
from runlist.policies.parts.aimd import LOWEST, Aimd
from runlist.policies.parts.brake import Brake
from runlist.policies.parts.floor import Floor
from runlist.policies.parts.options import no_more, number
from runlist.policies.parts.pace import reached
from runlist.policies.parts.pressure import Pressure
from runlist.policies.parts.reach import SETTLES_S, Reach
from runlist.policies.parts.tail import Tail
from runlist.policies.parts.waiting import Waiting, earliest

INTERVAL_S, SILENT_LOOK_S = 0.25, 1.0
SHORTEST_PERIOD_US, LONGEST_PERIOD_US = 25_000, 800_000
LEAST_QUOTA_US, QUOTA_OF_TARGET = 1_500, 0.4
"""A busy service may wait for as long as the background is on, so one turn on is shorter than the target. Small parts
come in long periods; periods below the first cost too many controls.
"""
BRAKED_LOOK_S = 0.05
BREAK_S = 0.005
"""Whatever is reported, the background has LOWEST of the time, so much at a time."""
COMFORT = 2.5
"""The background gets more while the p99 leaves this many times the headroom."""
NEARLY_ALL = 0.98
USES_IT = 0.7
"""A background that uses less than this part of its share gets no more."""

RANK = {task_class: rank for rank, task_class in enumerate(TaskClass)}


class SloLayer(Layer):
    """Service targets over any policy. Options: `step`, what the background gets more at a time (0.001 to 0.5 of the
    GPU, default 0.03); `backoff`, what it keeps when the target is in danger (0.1 to 0.95, default 0.7); `headroom`,
    the part of the target that is kept free (0 to 0.35, default 0.1).
    """

    summary = "layer, always there: service targets (p99) by feedback (options step, backoff, headroom)"

    def __init__(self, options: Mapping[str, str], below: Policy) -> None:
        super().__init__({}, below)
        values = dict(options)
        step = number(values, "step", 0.03, 0.001, 0.5)
        self._aimd = Aimd(step, number(values, "backoff", 0.7, 0.1, 0.95))
        self._headroom = number(values, "headroom", 0.1, 0.0, 0.35)
        no_more(values, "step", "backoff", "headroom")
        self._tails: dict[TaskKey, Tail] = {}
        self._brakes: dict[TaskKey, Brake] = {}
        self._pressures: dict[TaskKey, Pressure] = {}
        self._reaches: dict[TaskKey, Reach] = {}
        self._targets_s: dict[TaskKey, float] = {}
        self._waiting = Waiting(below)
        self._floor = Floor(LOWEST, BREAK_S)
        self._stopped = False
        self._background: frozenset[TaskKey] = frozenset()
        self._held: dict[TaskKey, float] = {}
        self._active = 1  # groups of the background that had the GPU of late
        self._used = 1.0  # the part of it that they had
        self._looked = float("-inf")
        self._lowered = float("-inf")
        self._less_since: float | None = None  # when it was lowered, if it was not raised since
        self._why = ""

    def on_event(self, event: Event, now: float) -> bool | None:
        changes = False
        if isinstance(event, Report):
            if event.key in self._tails and 0 <= event.latency_s < math.inf:
                changes = self._hear(event, now)
        elif isinstance(event, Vanish):
            self._tails.pop(event.key, None)
        return self.below.on_event(event, now) or (changes and bool(self._background))

    def _hear(self, report: Report, now: float) -> bool:
        """Returns whether the background is to be stopped by it, or let go."""
        key, latency_s = report.key, report.latency_s
        target_s = self._reaches[key].target_s(self._targets_s[key])
        self._tails[key].add(latency_s, now)
        late = self._brakes[key].add(latency_s > target_s, now)
        if late:
            self._lower(now)
        tight = self._aimd.share < NEARLY_ALL
        return self._pressures[key].add(latency_s, target_s, now, tight=tight) or late

    def decide(self, tasks: Sequence[Task], now: float) -> Decision:
        targets = [task for task in tasks if task.target_p99_us is not None]
        if not targets:
            if self._tails:
                self._forget()
            return self.below.decide(tasks, now)
        if not self._tails:
            self._lowered = now + INTERVAL_S  # earlier requests suffered from earlier shares
        self._tails = {task.key: self._tails.get(task.key) or Tail() for task in targets}
        self._brakes = {task.key: self._brakes.get(task.key) or Brake(now) for task in targets}
        self._pressures = {task.key: self._pressures.get(task.key) or Pressure() for task in targets}
        self._reaches = {task.key: self._reaches.get(task.key) or Reach() for task in targets}
        self._targets_s = {task.key: (task.target_p99_us or 0.0) / 1e6 for task in targets}
        lowest = min(RANK[task.task_class] for task in targets)
        background = [task for task in tasks if task.target_p99_us is None and RANK[task.task_class] > lowest]
        self._background = frozenset(task.key for task in background)
        if all(tail.silent(now) for tail in self._tails.values()):
            self._aimd.reset()
            self._less_since, self._reaches = None, {key: Reach() for key in self._reaches}
            self._why, self._looked, self._stopped = "", now, False
            return earliest(now, self.below.decide(tasks, now), now + SILENT_LOOK_S)
        if reached(self._looked + INTERVAL_S, now):
            self._measure(background, now)
            self._adjust(targets, now)
            self._looked = now
        look = self._stop_until(now)
        interrupted = self._floor.ends(look is not None, now)
        if interrupted is not None:
            look, background = interrupted, []
        self._stopped = look is not None and interrupted is None
        off = {task.key: look for task in background if look is not None and not task.suspended}
        look = self._looked + INTERVAL_S if look is None else min(look, self._looked + INTERVAL_S)
        return earliest(now, self._waiting.decide(self._capped(tasks), off, now), look)

    def _stop_until(self, now: float) -> float | None:
        """Until when the background is stopped, as far as is known; None: it is not."""
        for brake in self._brakes.values():
            brake.look(now)
        pressed = max((pressure.until for pressure in self._pressures.values()), default=now)
        if any(brake.on for brake in self._brakes.values()):
            pressed = max(pressed, now + BRAKED_LOOK_S)
        return min(pressed, now + BRAKED_LOOK_S) if pressed > now else None

    def why(self, key: TaskKey) -> str:
        concerned = self._why and (key in self._background or key in self._tails)
        stopped = "stopped for a moment" if self._stopped else ""
        return ", ".join(filter(None, (self.below.why(key), *((self._why, stopped) if concerned else ()))))

    def _forget(self) -> None:
        self._tails, self._brakes, self._pressures, self._reaches = {}, {}, {}, {}
        self._held, self._background, self._less_since = {}, frozenset(), None
        self._looked = float("-inf")
        self._why = ""

    def _measure(self, background: Sequence[Task], now: float) -> None:
        """Measure the background's part since the last look."""
        held: dict[str, float] = {}
        for task in background:
            more = task.usage.held_s - self._held.get(task.key, task.usage.held_s)
            held[task.shares_as] = held.get(task.shares_as, 0.0) + max(0.0, more)
        self._held = {task.key: task.usage.held_s for task in background}
        elapsed = now - self._looked
        if 0 < elapsed < 4 * INTERVAL_S:
            self._used += 0.5 * (sum(held.values()) / elapsed - self._used)
        self._active = max(1, sum(seconds > 0 for seconds in held.values()))

    def _adjust(self, targets: Sequence[Task], now: float) -> None:
        """Give the background less or more."""
        worst: tuple[float, float, float] | None = None  # p99 by target, and both
        danger, comfort = False, True
        for task in targets:
            tail, reach, target_s = self._tails[task.key], self._reaches[task.key], self._targets_s[task.key]
            p99_s = tail.p99_s(now)
            if p99_s is None or target_s <= 0:
                continue
            was_in_reach, danger_s = reach.has(target_s), reach.danger_s(target_s, self._headroom)
            settled = self._less_since is not None and tail.all_since(self._less_since + SETTLES_S, now)
            reach.look(p99_s, settled, p99_s > danger_s, now)
            if reach.has(target_s) is not was_in_reach:
                self._brakes[task.key] = Brake(now)  # what was late is another matter now
            worst = max(worst or (0.0, 0.0, 0.0), (p99_s / target_s, p99_s, target_s))
            danger = danger or tail.exceeds(reach.danger_s(target_s, self._headroom), now, self._lowered)
            comfort = comfort and p99_s < reach.comfort_s(target_s, COMFORT * self._headroom)
        if worst is None:
            return
        if danger:
            self._lower(now)
        elif comfort and self._used > USES_IT * self._aimd.share:
            before = self._aimd.share
            self._aimd.raise_(self._load(now), now)
            if self._aimd.share > before:
                self._less_since = None
        p99, target = _ms(worst[1]), _ms(worst[2])
        self._why = f"p99 {p99} of {target}: background at {100 * self._aimd.share:.0f} %"

    def _lower(self, now: float) -> None:
        self._aimd.lower(self._used, self._load(now), now)
        self._lowered = now
        self._less_since = now if self._less_since is None else self._less_since

    def _load(self, now: float) -> float:
        return sum(tail.rate(now) for tail in self._tails.values())

    def _capped(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """The tasks, those of the background with caps that keep its part."""
        share = self._aimd.share
        if share >= NEARLY_ALL:
            return tasks
        cap = _cap(share / self._active, 1e6 * min(self._targets_s.values()))
        return [
            replace(task, cap=cap)
            if task.key in self._background and (task.cap is None or task.cap.fraction > cap.fraction)
            else task
            for task in tasks
        ]


def _ms(seconds: float) -> str:
    """Milliseconds, to three digits that count."""
    return f"{float(f'{1e3 * seconds:.3g}'):g} ms"


def _cap(share: float, target_us: float) -> Cap:
    quota_us = max(LEAST_QUOTA_US, QUOTA_OF_TARGET * target_us)
    if share <= LOWEST:
        quota_us = max(quota_us, 1e6 * BREAK_S)  # lasts a break
    period_us = round(min(LONGEST_PERIOD_US, max(SHORTEST_PERIOD_US, quota_us / share)))
    return Cap(max(math.ceil(period_us / 100), round(period_us * share)), period_us)


POLICY = SloLayer
