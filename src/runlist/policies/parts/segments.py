"""Segments: while tasks are in segments that they have marked, only those of the highest priority run."""

from __future__ import annotations

from collections.abc import Container, Sequence

import msgspec

from runlist.model import Owner, Segment, Task, TaskClass, TaskKey
from runlist.policies.parts.pace import LATEST_S, NEVER, reached

LONG_RUN_SHARE = 0.8
"""Segments keep the others off at most this part of the time in the long run."""
RECOVERED = 0.25
"""When segments have used their part up, they count again once this part of the longest segment is saved up."""
REMEMBERED_S = 10.0
"""So long who has no segment any more has a part of what there is: others may come between two of its own."""


class _Begun(msgspec.Struct):
    priority: int
    at: float


class _Account(msgspec.Struct):
    """What an owner's segments may take: `credit` seconds in which they may still keep others off. Who has used half of
    that comes behind who has not, until all is saved up again.
    """

    credit: float
    seen: float
    behind: bool = False
    recovering: bool = False
    counted_until: float = 0.0


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
        self._accounts: dict[Owner, _Account] = {}  # of those who have segments, or had some lately
        self._at = 0.0

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
        self._pass_time(set(wanting.values()), now)
        recovering = {owner for owner in wanting.values() if self._accounts[owner].recovering}
        counting = {key: owner for key, owner in wanting.items() if owner not in recovering}
        look = min((now + self._recovers_in(self._accounts[owner]) for owner in recovering), default=NEVER)
        if not counting:
            return Foremost(look=look)
        ranks = {key: (not self._accounts[owner].behind, self._begun[key].priority) for key, owner in counting.items()}
        best = max(ranks.values())
        highest = {key for key, rank in ranks.items() if rank == best}
        others = len(highest) < len(counting) or any(task.key not in counting and not task.suspended for task in tasks)
        until = now
        for owner in {counting[key] for key in highest}:
            account = self._accounts[owner]
            last = max(self._expires(key) for key in highest if counting[key] == owner)
            lasts = min(last, now + account.credit)
            until, look = max(until, lasts), min(look, now + account.credit)
            if len(set(counting.values())) > 1 and not account.behind:
                look = min(look, now + account.credit - self._most / 2)
            if others:
                account.counted_until = lasts
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

    @property
    def _most(self) -> float:
        """What an owner may save up: what all save together is no more than the longest segment takes, or a little."""
        return self._longest_s * max(RECOVERED, 1 / max(1, len(self._accounts)))

    def _recovers_in(self, account: _Account) -> float:
        missing_s = RECOVERED * self._longest_s - account.credit
        return missing_s * len(self._accounts) * (1 - LONG_RUN_SHARE) / LONG_RUN_SHARE

    def _pass_time(self, wanting: set[Owner], now: float) -> None:
        """Spend the credit of those whose segments keep others off, and earn it back while nobody's do."""
        for owner in wanting:
            self._accounts.setdefault(owner, _Account(self._longest_s, now)).seen = now
        spent = {owner: self._spent(account, now) for owner, account in self._accounts.items()}
        free = max(0.0, now - self._at - max(spent.values(), default=0.0))
        earned = free * LONG_RUN_SHARE / (1 - LONG_RUN_SHARE) / max(1, len(self._accounts))
        for owner, account in self._accounts.items():
            account.credit -= spent[owner]
            account.recovering |= reached(0.0, -account.credit)
            account.behind |= reached(account.credit, self._most / 2)
            account.credit = min(self._most, account.credit + earned)
            account.recovering &= not reached(RECOVERED * self._longest_s, account.credit)
            account.behind &= not reached(self._most, account.credit)
            account.counted_until = now
        self._at = now
        self._accounts = {
            owner: account
            for owner, account in self._accounts.items()
            if account.credit < self._most or not reached(account.seen + REMEMBERED_S, now)
        }

    def _spent(self, account: _Account, now: float) -> float:
        if account.counted_until <= self._at:
            return 0.0
        return max(0.0, min(now, account.counted_until + LATEST_S) - self._at)
