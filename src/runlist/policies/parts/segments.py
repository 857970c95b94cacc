"""Segments: while tasks are in segments that they have marked, only those of the highest priority run."""

from __future__ import annotations

from collections.abc import Container, Sequence

import msgspec

from runlist.model import Segment, Task, TaskClass, TaskKey
from runlist.policies.parts.pace import NEVER, SLACK_S, reached
from runlist.policies.parts.savings import Savings

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
    however tasks begin and end them: a tenant must not be able to stop all others for good. The owners who have
    segments have equal parts of that, however many tasks and how high priorities. Where there are no others, nothing is
    spent. Batch tasks cannot keep others off at all. Ask for `foremost` also when the last segment ended.
    """

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._begun: dict[TaskKey, _Begun] = {}
        recovered_s = RECOVERED * longest_s
        rate = LONG_RUN_SHARE / (1 - LONG_RUN_SHARE)
        self._savings = Savings(longest_s, recovered_s, recovered_s - SLACK_S, rate)

    def note(self, event: Segment, now: float) -> None:
        """A task began or ended a segment."""
        if event.priority is None:
            self._begun.pop(event.key, None)
        else:
            self._begun[event.key] = _Begun(event.priority, now)

    def foremost(self, tasks: Sequence[Task], off: Container[TaskKey], now: float) -> Foremost:
        """The segments that count among `tasks`; tasks that are suspended or `off` keep nobody off."""
        self._begun = {task.key: self._begun_by(task, now) for task in tasks if task.segment is not None}
        wanting = {
            task.key: task.owner
            for task in tasks
            if task.segment is not None
            and task.task_class != TaskClass.BATCH
            and not task.suspended
            and task.key not in off
            and not reached(self._expires(task.key), now)
        }
        self._savings.pass_time(set(wanting.values()), now)
        recovering = {owner for owner in wanting.values() if self._savings[owner].empty}
        counting = {key: owner for key, owner in wanting.items() if owner not in recovering}
        look = min((self._savings.enough_at(self._savings[owner], now) for owner in recovering), default=NEVER)
        if not counting:
            return Foremost(look=look)
        ranks = {key: (not self._savings[owner].behind, self._begun[key].priority) for key, owner in counting.items()}
        best = max(ranks.values())
        highest = {key for key, rank in ranks.items() if rank == best}
        others = len(highest) < len(counting) or any(task.key not in counting and not task.suspended for task in tasks)
        until = now
        for owner in {counting[key] for key in highest}:
            account = self._savings[owner]
            last = max(self._expires(key) for key in highest if counting[key] == owner)
            lasts = min(last, now + account.saved_s)
            until, look = max(until, lasts), min(look, now + account.saved_s)
            if len(set(counting.values())) > 1 and not account.behind:
                look = min(look, now + account.saved_s - self._savings.most_s / 2)
            if others:
                account.until = lasts
        first = min(self._expires(key) for key in counting)
        return Foremost(frozenset(highest), until, min(look, first))

    def _expires(self, key: TaskKey) -> float:
        return self._begun[key].at + self._longest_s

    def _begun_by(self, task: Task, now: float) -> _Begun:
        """When a task began its present segment; now, if the event was missed."""
        begun = self._begun.get(task.key)
        if begun is None or begun.priority != task.segment:
            assert task.segment is not None
            begun = _Begun(task.segment, now)
        return begun
