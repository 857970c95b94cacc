"""Requests: who is busy with one, and when the background has to be off for that.

Nobody keeps it off for long, whatever is said: after a while it has a break, and who then did not want the GPU lied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence

from runlist.model import Task, TaskKey, Usage
from runlist.policies.parts.liars import Liars
from runlist.policies.parts.pace import NEVER, reached

FIRST_IDLE_S, MIN_IDLE_S, MAX_IDLE_S = 1.0e-3, 0.7e-3, 4.0e-3
FALSE_END_S = 1.0e-3
"""A request that begins so soon after another one's end was the same."""
IDLE_GROWS, IDLE_SHRINKS, CALM = 1.5, 0.9, 200

MOST_OFF_S, BREAK_S = 0.1, 0.005
"""A request keeps the background off for so long at a time. Then it runs, at tiny slices, for the second."""
ENDLESS_S = 1.0
"""A request that lasts for so long does not end, as far as others are concerned."""
WANTED = 0.2
"""Whoever says that it is busy, and in a break did not want the GPU for that part of it, lied."""


class Requests:
    """Who is busy with a request, and when the background has to be off for that."""

    def __init__(self) -> None:
        self._idle_s: dict[TaskKey, float] = {}
        self._busy: dict[TaskKey, float] = {}  # since when
        self._ended: dict[TaskKey, float] = {}
        self._begun, self._busy_s, self._busy_since = 0, 0.0, -NEVER
        self._calm: Counter[TaskKey] = Counter()
        self._off_since, self._on_since = -NEVER, -NEVER
        self._is_off = False
        self._break_ends = -NEVER
        self._break: dict[TaskKey, Usage] = {}  # of the busy ones, at its beginning
        self._at_off: dict[TaskKey, Usage] = {}  # of all, when the background went off
        self._seen: dict[TaskKey, Usage] = {}  # of all, when it was last asked
        self.endless: frozenset[TaskKey] = frozenset()  # of those for which the background is off
        self._liars = Liars()

    @property
    def any_busy(self) -> bool:
        return bool(self._busy)

    def begins(self, key: TaskKey, now: float) -> None:
        """A request begins, or goes on after a pause that was taken for its end."""
        if not self._busy:
            self._busy_since = now
        self._busy.setdefault(key, now)
        self._begun += 1
        self._calm[key] += 1
        if now - self._ended.get(key, -NEVER) < FALSE_END_S:
            self._idle_s[key], self._calm[key] = min(MAX_IDLE_S, IDLE_GROWS * self.idle_s(key)), 0
        elif self._calm[key] % CALM == 0:
            self._idle_s[key] = max(MIN_IDLE_S, IDLE_SHRINKS * self.idle_s(key))

    def idle_s(self, key: TaskKey) -> float:
        """After how long without work a program counts as idle."""
        return self._idle_s.get(key, FIRST_IDLE_S)

    def ends(self, key: TaskKey, now: float) -> None:
        """The program is idle."""
        self._settle(now)
        self._busy.pop(key, None)
        self._ended[key] = now

    def appears(self, task: Task, now: float) -> None:
        """A task is there."""
        self._liars.appears(task, now)

    def drop(self, key: TaskKey, now: float) -> None:
        """The task is gone. One that goes in the middle of a request, in which it did nothing, lied: else whoever is
        gone before the break never would.
        """
        unwanted = self._is_off and key in self._seen and self._seen[key] == self._at_off.get(key)
        if key in self._busy and (unwanted or key in self._break):
            self._liars.lied(key, now)
        self._liars.drop(key, now)
        self._busy.pop(key, None)
        for each in (self._idle_s, self._calm, self._ended, self._break, self._at_off, self._seen):
            each.pop(key, None)

    def clear(self) -> None:
        """Nobody is watched any more. What was learnt stays."""
        self._busy.clear()
        self._break.clear()
        self._is_off, self._break_ends = False, -NEVER
        self._begun, self._busy_s = 0, 0.0

    def believed(self, telling: Sequence[Task], now: float) -> list[Task]:
        """Those of them whose word counts."""
        self._liars.forgive(now)
        return [task for task in telling if task.key not in self._liars]

    def keep(self, watched: Container[TaskKey]) -> None:
        """Of nobody else will it be told when they are idle."""
        self._busy = {key: since for key, since in self._busy.items() if key in watched}

    def take(self, now: float) -> tuple[int, float]:
        """How many requests began since the last call, and for how many seconds there were any."""
        self._settle(now)
        taken = self._begun, self._busy_s
        self._begun, self._busy_s = 0, 0.0
        return taken

    def _settle(self, now: float) -> None:
        if self._busy:
            self._busy_s += now - self._busy_since
            self._busy_since = now

    def is_liar(self, key: TaskKey) -> bool:
        """Whether a task's word does not count at present."""
        return key in self._liars

    def off_until(
        self, telling: Sequence[Task], foreground: Sequence[Task], asked: Mapping[TaskKey, float], now: float
    ) -> tuple[float | None, float]:
        """Until when the background is off at the latest (None: it is not), and when to ask again: for those of the
        `telling` ones that are busy, and for who `asked` for it before it begins.
        """
        self._end_break(foreground, now)
        self._liars.forgive(now)
        asked = {key: until for key, until in asked.items() if key not in self._liars and not reached(until, now)}
        busy = [task for task in telling if task.key in self._busy and task.key not in self._liars]
        self.endless = frozenset(task.key for task in busy if self.is_endless(task.key, now))
        if not (busy or asked) or not reached(self._break_ends, now):
            self._lets_on(now)
            return None, self._break_ends if busy or asked else NEVER
        if not self._is_off and reached(self._on_since + BREAK_S, now):  # a shorter time does not count as one
            self._off_since = now
            self._at_off = {task.key: task.usage for task in foreground}
        self._seen = {task.key: task.usage for task in foreground}
        self._at_off = {**self._seen, **self._at_off}
        until = self._off_since + MOST_OFF_S
        if not reached(until, now):
            self._is_off = True
            until = until if busy else min(until, max(asked.values()))
            return until, until
        self._lets_on(now)
        self._break_ends = now + BREAK_S
        keys = asked.keys() | {task.key for task in busy}
        self._break = {task.key: task.usage for task in foreground if task.key in keys}
        return None, self._break_ends

    def is_endless(self, key: TaskKey, now: float) -> bool:
        """Whether a task's request lasts for longer than others can wait."""
        return reached(self._busy.get(key, NEVER) + ENDLESS_S, now)

    def in_break(self, now: float) -> bool:
        """Whether the background runs now, although somebody is busy."""
        return not reached(self._break_ends, now)

    def _lets_on(self, now: float) -> None:
        if self._is_off:
            self._is_off, self._on_since = False, now

    def _end_break(self, foreground: Sequence[Task], now: float) -> None:
        """See who did not want the GPU in a break, although it said that it was busy. Whose request ended in the break
        is to have used the GPU before, at least.
        """
        if not self._break or not reached(self._break_ends, now):
            return
        for task in foreground:
            if (before := self._break.get(task.key)) is None:
                continue
            if task.key not in self._busy:
                before = self._at_off.get(task.key, before)
            wanted = task.usage.turns > before.turns or task.usage.held_s - before.held_s > WANTED * BREAK_S
            if wanted:
                self._liars.was_right(task.key)
            else:
                self._liars.lied(task.key, now)
        self._break = {}
