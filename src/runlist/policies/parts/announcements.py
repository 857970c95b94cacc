"""Announcements: keeping the GPU free for a task that is about to work, by what the library in it has learnt or what it
says itself. Wrong ones cost the others little: `standing.py` keeps the books of who is listened to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from runlist.model import Announce, Task, TaskKey
from runlist.policies.parts.hints import AHEAD_S, GRACE_S, WAIT_S
from runlist.policies.parts.pace import LATEST_S, reached
from runlist.policies.parts.standing import Standing

AT_ONCE_S = 3e-3
"""Room is made at once for what is announced for no later than this, and AHEAD_S before what comes later. The library
goes by it, too.
"""
FARTHEST_S = 1.0
LOOK_S = 1e-3


class _Pending(msgspec.Struct):
    """Work that was announced for `at`. The others are off from `begins` on; `done` is when they come back, once it was
    right.
    """

    at: float
    begins: float
    cost_from: float | None = None
    done: float | None = None
    seen: tuple[float, ...] | None = None  # what the task had done when it was first looked at

    @property
    def ends(self) -> float:
        return self.at + WAIT_S if self.done is None else self.done

    def took_s(self, now: float) -> float:
        """For how long the others were off."""
        return 0.0 if self.cost_from is None else max(0.0, min(now, self.ends + LATEST_S) - self.cost_from)


class Announcements:
    """Whom the background has to be off for. `budget` is the part of the time that wrong announcements may take, of all
    tasks together in the long run.
    """

    def __init__(self, budget: float) -> None:
        self._standing = Standing(budget)
        self._pending: dict[TaskKey, _Pending] = {}
        self._settled: dict[TaskKey, int] = {}  # the work of each, when its last one was settled
        self._seen_at = 0.0

    def note(self, event: Announce, now: float) -> None:
        """A task announced work. What makes no sense is ignored, and what comes before the last one is settled."""
        if not 0 <= event.in_s <= FARTHEST_S or event.key in self._pending:
            return
        self._standing.pass_time(now)
        if self._standing.speaks(event.key, now):
            ahead = event.in_s if event.in_s <= AT_ONCE_S else AHEAD_S
            self._pending[event.key] = _Pending(now + event.in_s, now + event.in_s - ahead)

    def expects(self, key: TaskKey) -> bool:
        """Whether room is made for a task, or will be."""
        return key in self._pending

    def worked(self, key: TaskKey) -> None:
        """A task began to work, and is given way to for that: what it announced is settled."""
        self._pending.pop(key, None)

    def appears(self, task: Task) -> None:
        """A task is there."""
        self._standing.appears(task)

    def drop(self, key: TaskKey, now: float) -> None:
        """The task is gone."""
        if (one := self._pending.pop(key, None)) is not None and one.done is None:
            self._standing.was_wrong(key, one.took_s(now))
        self._settled.pop(key, None)
        self._standing.drop(key, now)

    def clear(self) -> None:
        """Nobody makes room for anybody now."""
        self._pending.clear()

    def heard(self, tasks: Iterable[TaskKey], now: float) -> frozenset[TaskKey]:
        """Those of the tasks whose announcements count."""
        self._seen_at = now
        self._standing.pass_time(now)
        return frozenset(key for key in tasks if self._standing.counts(key, now))

    def off_until(self, entitled: Mapping[TaskKey, Task], now: float) -> tuple[dict[TaskKey, float], float | None]:
        """For whom the background has to be off, each with until when; and in how many seconds to ask again."""
        wanted: dict[TaskKey, float] = {}
        looks: list[float] = []
        for key, one in list(self._pending.items()):
            task = entitled.get(key)
            if task is not None and one.done is None and _has_begun(one, task, self._settled.get(key, 0)):
                one.done = min(one.ends, now + GRACE_S)
            ends = one.ends
            if reached(ends, now) or task is None:
                del self._pending[key]
                if task is not None and task.activity is not None:
                    self._settled[key] = task.activity.work
                if one.done is None:
                    self._standing.was_wrong(key, one.took_s(now))
            elif reached(one.begins, now):
                one.cost_from = now if one.cost_from is None else one.cost_from
                wanted[key] = ends
                looks.append(min(ends - now, LOOK_S if one.done is None else ends - now))
            else:
                looks.append(one.begins - now)
        self._standing.pass_time(now)
        looks += self._standing.looks(now)
        return wanted, min(looks, default=None)

    def why(self, key: TaskKey) -> str:
        """What came of a task's announcements, in a few words; empty where there is nothing to say."""
        return self._standing.why(key, self._seen_at)


def _has_begun(one: _Pending, task: Task, settled: int) -> bool:
    """Whether work came after an announcement. The task tells what there was before it; where that is older than the
    last announcement, or it tells nothing, what was there at the first look counts.
    """
    activity = task.activity
    if activity is not None and activity.before >= settled:
        return activity.work > activity.before
    seen = (task.usage.turns, task.usage.held_s) if activity is None else (activity.work,)
    one.seen = one.seen or seen
    return seen != one.seen
