"""Deadlines: a budget of GPU time in every period, before its end; and segments, which mark what is urgent in a task.

Deadline tasks are served earliest deadline first, each from a budget that is refilled every period (EDF over hard
constant-bandwidth servers, as Linux's SCHED_DEADLINE): one that overruns waits for its next period and takes nothing
from the others. Among those with budget left the one whose period ends first has a long slice; the others share the
rest in short slices. A task is refused when the budgets of all would not fit.

While a task is in a segment, only the tasks in segments of the highest priority run (as in GCAPS), beside deadline
tasks with budget left.

Good for: periodic work that must be done in time beside anything else.
Fails: for periods below 10 ms, which are refused: suspending and resuming takes about 1 ms. Among three and more tasks
those behind the first share the rest, rather than take it in order. Each switch costs budget (about 280 µs). Over
a policy that does not put class deadline first, as `fair`, a budget is only a limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import repeat

from runlist.model import ROUNDING, Event, Segment, Task, TaskClass, TaskKey, Vanish
from runlist.policies.interface import Decision, Layer, Policy
from runlist.policies.parts.options import no_more, number
from runlist.policies.parts.pace import NEVER, Pace, reached
from runlist.policies.parts.reservation import Reservation
from runlist.policies.parts.segments import Segments
from runlist.policies.parts.waiting import Waiting, earliest

SHORTEST_LOOK_S = 0.001
MIN_BEHIND_US, MAX_BEHIND_US = 2_000, 20_000
LOOKS_PER_S = 170.0


class DeadlineLayer(Layer):
    """Deadlines and segments over any policy. Options: `bound`, how much of a GPU deadline tasks may have together
    (0.05 to 1, default 1), and `max_segment_ms`, how long a segment counts at most (10 to 9000, default 1000).
    """

    summary = "layer, always there: deadlines (BUDGET in every PERIOD) and segments (options bound, max_segment_ms)"

    def __init__(self, options: Mapping[str, str], below: Policy) -> None:
        super().__init__({}, below)
        values = dict(options)
        self._bound = number(values, "bound", 1.0, 0.05, 1.0)
        self._segments = Segments(number(values, "max_segment_ms", 1_000.0, 10.0, 9_000.0, ms=True) / 1e3)
        no_more(values, "bound", "max_segment_ms")
        self._reservations: dict[TaskKey, Reservation] = {}
        self._left: dict[TaskKey, Reservation] = {}  # by those that have none now, until there were a budget again
        self._waiting = Waiting(below)
        self._pace = Pace(LOOKS_PER_S)
        self._order: list[TaskKey] = []  # of the deadline tasks with budget left
        self._off: dict[TaskKey, float] = {}
        self._now = 0.0

    def admit(self, task: Task, tasks: Sequence[Task]) -> str | None:
        return self._refusal(task, tasks) or self.below.admit(task, tasks)

    def on_event(self, event: Event, now: float) -> bool | None:
        if isinstance(event, Segment):
            self._segments.note(event, now)
        elif isinstance(event, Vanish) and (reservation := self._reservations.pop(event.key, None)) is not None:
            reservation.settle(event.usage, now)
            self._left[event.key] = reservation
        return self.below.on_event(event, now)

    def decide(self, tasks: Sequence[Task], now: float) -> Decision:
        if not self._reservations and not any(_reserves(task) or task.segment is not None for task in tasks):
            self._segments.foremost(tasks, (), now)  # the last one may have ended just now: its account must know
            self._off.clear()
            return self.below.decide(tasks, now)
        self._now = now
        self._settle(tasks, now)
        off, look = self._edf(tasks, now)
        chosen = self._reservations.keys() - off.keys()
        foremost = self._segments.foremost(tasks, off, now)
        if foremost.tasks:
            for task in tasks:
                if not (task.suspended or task.key in foremost.tasks or task.key in chosen):
                    off.setdefault(task.key, foremost.until)
        self._off = off
        decision = self._in_order(self._waiting.decide([_as_known_below(task) for task in tasks], off, now))
        decision = replace(decision, segments=foremost.tasks)
        look = min(look, foremost.look)
        return earliest(now, decision, look if look == NEVER else now + self._pace.after(look, now))

    def why(self, key: TaskKey) -> str:
        if key not in self._off:
            return self.below.why(key)
        reservation = self._reservations.get(key)
        if reservation is None or not reservation.spent:
            return "waits for a segment of another task"
        wait_ms = 1e3 * max(0.0, reservation.until - self._now)
        return f"budget of {_text(reservation.deadline.budget_us)} used: waits {wait_ms:.0f} ms for its next period"

    def _refusal(self, task: Task, tasks: Sequence[Task]) -> str | None:
        if task.task_class != TaskClass.DEADLINE:
            return None
        if task.deadline is None:
            return "class deadline takes a budget and a period: say deadline=BUDGET/PERIOD, as 5ms/20ms"
        asked = f"{_text(task.deadline.budget_us)} in every {_text(task.deadline.period_us)}"
        taken = {
            other: other.deadline.fraction
            for other in tasks
            if other.key != task.key and other.deadline and other.task_class == TaskClass.DEADLINE
        }
        if sum(taken.values()) + task.deadline.fraction <= self._bound + ROUNDING:
            return None
        others = ", ".join(f"{other.key.pid} ({other.command}) {_percent(part)}" for other, part in taken.items())
        left = max(0.0, self._bound - sum(taken.values()))
        return (
            f"{asked} is {_percent(task.deadline.fraction)} of the GPU, and {_percent(left)} of the "
            f"{_percent(self._bound)} for deadlines is left" + (f": {others}" if others else "")
        )

    def _settle(self, tasks: Sequence[Task], now: float) -> None:
        """Bring all reservations up to date, open new ones, and drop those of tasks that have none any more. Who has
        one again within its period has the rest, and who comes after it has that of its owner's: else whoever goes and
        comes, or has a crowd of short processes, would have a budget each time.
        """
        present: dict[TaskKey, Reservation] = {}
        for task in tasks:
            reservation = self._reservations.get(task.key)
            if task.deadline is None or not _reserves(task):
                if reservation is not None:
                    reservation.settle(task.usage, now)
                continue
            if reservation is None and (whose := self._left_by(task)) is not None:
                reservation = self._left.pop(whose)
                reservation.resume(task.usage)
            reservation = reservation or Reservation(task.deadline, task.usage, now, task.owner)
            reservation.change(task.deadline, now)
            reservation.settle(task.usage, now)
            present[task.key] = reservation
        left = {**self._left, **{key: one for key, one in self._reservations.items() if key not in present}}
        self._left = {key: one for key, one in left.items() if not reached(one.until, now)}
        self._reservations = present

    def _left_by(self, task: Task) -> TaskKey | None:
        """Whose reservation a task goes on with: its own, else of those that others of its owner left the one with
        least.
        """
        if task.key in self._left:
            return task.key
        theirs = [key for key, one in self._left.items() if one.owner == task.owner]
        return min(theirs, key=lambda key: self._left[key].left, default=None)

    def _edf(self, tasks: Sequence[Task], now: float) -> tuple[dict[TaskKey, float], float]:
        """The deadline tasks that have to wait, with until when, and the time to look again (NEVER: on change)."""
        runnable = {task.key for task in tasks if not task.suspended}
        off: dict[TaskKey, float] = {}
        looks = []
        ready: list[tuple[float, TaskKey]] = []
        for key, reservation in self._reservations.items():
            if key in runnable and reservation.spent:
                off[key] = reservation.until
                looks.append(reservation.until)
            elif key in runnable:
                ready.append((reservation.ends, key))
        ready.sort()
        self._order = [key for _, key in ready]
        if ready:
            # No running task can use its budget up before this.
            least = min(self._reservations[key].left for key in self._order)
            looks.append(now + max(least, SHORTEST_LOOK_S))
        if len(ready) > 1:
            looks.append(ready[0][0])  # then another is the first
        return off, min(looks, default=NEVER)

    def _in_order(self, decision: Decision) -> Decision:
        """Short slices for those behind the first deadline task: when it gets work, it waits for the second for at most
        a quarter of its slack.
        """
        if len(self._order) < 2:
            return decision
        first = self._reservations[self._order[0]].deadline
        second_us = min(MAX_BEHIND_US, max(MIN_BEHIND_US, (first.period_us - first.budget_us) // 4))
        shares = dict(decision.shares)
        for key, us in zip(self._order[1:], (second_us, *repeat(MIN_BEHIND_US, len(self._order))), strict=False):
            if key in shares and shares[key].enabled and (shares[key].timeslice_us or 0) > us:
                shares[key] = replace(shares[key], timeslice_us=us)
        return replace(decision, shares=shares)


def _reserves(task: Task) -> bool:
    return task.task_class == TaskClass.DEADLINE and task.deadline is not None


def _as_known_below(task: Task) -> Task:
    """A deadline task without a deadline counts as a latency task."""
    if task.task_class == TaskClass.DEADLINE and task.deadline is None:
        return replace(task, task_class=TaskClass.LATENCY)
    return task


def _text(us: int) -> str:
    return f"{us / 1e3:g} ms"


def _percent(part: float) -> str:
    return f"{100 * part:.4g} %"


POLICY = DeadlineLayer
