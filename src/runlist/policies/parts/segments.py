"""Segments: while tasks are in segments that they have marked, only those of the highest priority run."""

from __future__ import annotations

from collections.abc import Container, Sequence

import msgspec

from runlist.model import Segment, Task, TaskClass, TaskKey
from runlist.policies.parts.pace import LATEST_S, NEVER, reached

LONG_RUN_SHARE = 0.8
"""Segments keep the others off at most this part of the time in the long run."""
RECOVERED = 0.25
"""When segments have used their part up, they count again once this part of the longest segment is saved up."""


class _Begun(msgspec.Struct):
    priority: int
    at: float


class Foremost(msgspec.Struct, frozen=True):
    """The `tasks` whose segments count and have the highest priority (none: no segment counts), `until` when segments
    may keep the others off, and the time to `look` again (infinity: on change).
    """

    tasks: frozenset[TaskKey] = frozenset()
    until: float = 0.0
    look: float = NEVER


class Segments:
    """Which segments count.

    A segment stops counting after `longest_s`. All together keep the others off for at most LONG_RUN_SHARE of the time,
    however tasks begin and end them: a tenant must not be able to stop all others for good. Where there are no others,
    nothing is spent. Batch tasks cannot keep others off at all. Ask for `foremost` also when the last segment ended.
    """

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._begun: dict[TaskKey, _Begun] = {}
        self._credit = longest_s  # seconds that segments may still keep others off
        self._recovering = False
        self._counted_until = 0.0
        self._at = 0.0

    def note(self, event: Segment, now: float) -> None:
        """A task began or ended a segment."""
        if event.priority is None:
            self._begun.pop(event.key, None)
        else:
            self._begun[event.key] = _Begun(event.priority, now)

    def foremost(self, tasks: Sequence[Task], off: Container[TaskKey], now: float) -> Foremost:
        """The segments that count among `tasks`; tasks that are suspended or `off` keep nobody off."""
        self._pass_time(now)
        self._begun = {task.key: self._begun_by(task, now) for task in tasks if task.segment is not None}
        counting = {
            task.key: self._begun[task.key].priority
            for task in tasks
            if task.segment is not None
            and task.task_class != TaskClass.BATCH
            and not task.suspended
            and task.key not in off
            and not reached(self._expires(task.key), now)
        }
        others = any(task.key not in counting and not task.suspended for task in tasks)
        self._counted_until = now
        if not counting:
            return Foremost()
        if self._recovering:
            missing_s = RECOVERED * self._longest_s - self._credit
            return Foremost(look=now + missing_s * (1 - LONG_RUN_SHARE) / LONG_RUN_SHARE)
        highest = max(counting.values())
        first, last = (choose(self._expires(key) for key in counting) for choose in (min, max))
        until = min(last, now + self._credit)
        if others or len(set(counting.values())) > 1:
            self._counted_until = until
        return Foremost(
            frozenset(key for key, priority in counting.items() if priority == highest),
            until,
            min(first, now + self._credit),
        )

    def _expires(self, key: TaskKey) -> float:
        return self._begun[key].at + self._longest_s

    def _begun_by(self, task: Task, now: float) -> _Begun:
        """When a task began its present segment; now, if the event was missed."""
        begun = self._begun.get(task.key)
        if begun is None or begun.priority != task.segment:
            assert task.segment is not None
            begun = _Begun(task.segment, now)
        return begun

    def _pass_time(self, now: float) -> None:
        """Spend the credit while segments keep others off, and earn it back while they do not."""
        counted = self._counted_until > self._at
        spent = max(0.0, min(now, self._counted_until + LATEST_S) - self._at) if counted else 0.0
        self._credit -= spent
        if reached(0.0, -self._credit):
            self._recovering = True
        earned = max(0.0, now - self._at - spent) * LONG_RUN_SHARE / (1 - LONG_RUN_SHARE)
        self._at, self._credit = now, min(self._longest_s, self._credit + earned)
        if reached(RECOVERED * self._longest_s, self._credit):
            self._recovering = False
