"""What tasks tell of their work by the preloaded library: looked at now and then, and watched where a policy asks.

A watched task sends a message when it begins to work. From then on its counts are read every moment, until they have
stood still for as long as the policy asked. A message that is lost is made up for by the next look. Of one for which
the policy is in no hurry there is no message: its counts are read all the time, and what it announces counts also while
it works.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

import msgspec

from runlist.daemon.tasks.managed import ManagedTask
from runlist.model import Activity, Announce, Busy, Event, Idle, TaskClass, TaskKey

LOOK_S = 0.1
"""How old the activity of a task may be that a policy sees."""

GLANCE_S = 0.2
"""How often one looks whether somebody who is not watched began to work beside others. Where nothing happens usage is
read once a second, and a policy that heard of it so late gave way 1.1 s later than it could have (H200).
"""

REST = 10.0
"""After a look, so many times what it took passes before the next one, however many are watched."""

OPEN_S = 0.05
"""A program that says to be within a request is idle after so long, at the earliest."""

LONGEST_S = 1e9
"""Longer sums are nonsense: a tenant can write anything."""


class _Watched(msgspec.Struct):
    """A watched task. `seen` are its count of work and its time of waiting at `since`; neither grew after that. `ended`
    is how often requests ended, as it was when the task was last idle. An `unhurried` one sends no message.
    """

    idle_s: float
    unhurried: bool
    seen: tuple[int, int]
    since: float
    ended: int
    busy: bool = False


class ActivityWatch:
    """The activity of the tasks of one GPU, in the running event loop. `tell` gets Busy and Idle, and Announce;
    `stirred` is called when somebody else works.
    """

    def __init__(
        self, tasks: Mapping[TaskKey, ManagedTask], tell: Callable[[Event], None], stirred: Callable[[], None]
    ) -> None:
        self._tasks = tasks
        self._tell = tell
        self._stirred = stirred
        self._watched: dict[TaskKey, _Watched] = {}
        self._announcing: AbstractSet[TaskKey] = frozenset()
        self._announced_at: dict[TaskKey, float] = {}
        self._looked_at = 0.0
        self._look_took_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._glancing: asyncio.TimerHandle | None = None

    def refresh(self) -> None:
        """Let policies see what latency tasks tell, watched ones at once and others now and then. Work of which no
        message came is taken up.
        """
        now = time.monotonic()
        wanted = [*self._watched, *(self._announcing - self._watched.keys())]
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            wanted = [key for key, managed in self._tasks.items() if _may_tell(managed)]
            for key in self._announcing:  # a message may have been lost
                self._ask(key)
        missed = []
        for key in wanted:
            if (managed := self._tasks.get(key)) is None:
                continue
            activity = activity_of(managed)
            if activity != managed.task.activity:
                managed.task = replace(managed.task, activity=activity)
            watched = self._watched.get(key)
            if watched is not None and not watched.busy and activity is not None and activity.work != watched.seen[0]:
                missed.append(key)
        for key in missed:
            self.worked(key)

    def watch(
        self,
        wanted: Mapping[TaskKey, float],
        announcing: AbstractSet[TaskKey] = frozenset(),
        unhurried: AbstractSet[TaskKey] = frozenset(),
    ) -> None:
        """Watch these tasks, and no others, each until it was idle for so many seconds, the `unhurried` ones without a
        message of theirs; and hear what is announced by those in `announcing`.
        """
        changed = (announcing ^ self._announcing) | (self._watched.keys() - wanted.keys())
        self._announcing = announcing
        self._announced_at = {key: at for key, at in self._announced_at.items() if key in announcing}
        for key in self._watched.keys() - wanted.keys():
            del self._watched[key]
        for key in changed - wanted.keys():
            self._ask(key)
        for key, idle_s in wanted.items():
            if (watched := self._watched.get(key)) is not None:
                watched.idle_s = idle_s
                if key in changed or watched.unhurried != (key in unhurried):
                    watched.unhurried = key in unhurried
                    self._ask(key)
            elif (managed := self._tasks.get(key)) is not None:
                managed.ask_for_work(asked=key not in unhurried, announced=key in announcing)
                if (told := managed.told()) is not None:
                    seen = told.work, told.waited_ns
                    self._watched[key] = _Watched(idle_s, key in unhurried, seen, time.monotonic(), told.ended)
        self._look_soon()
        self._glance_later()

    @property
    def idle(self) -> list[TaskKey]:
        """The tasks that say when they begin to work, or announce it, and did not yet."""
        saying = (key for key, watched in self._watched.items() if not watched.unhurried)
        heard = {**dict.fromkeys(saying), **dict.fromkeys(self._announcing)}
        return [key for key in heard if not self._is_at_work(key)]

    def worked(self, key: TaskKey) -> bool:
        """A task says that it begins to work. Returns whether that is news."""
        watched = self._watched.get(key)
        if watched is None or watched.busy:
            return False
        watched.busy, watched.since = True, time.monotonic()
        self._look_soon()
        self._tell(Busy(key))
        return True

    def announced(self, key: TaskKey, in_s: float) -> bool:
        """A task says that it will work in so many seconds. Returns whether that is news."""
        if key not in self._announcing or self._is_at_work(key):
            return False
        self._announced_at[key] = time.monotonic()
        self._ask(key)  # it had to take back that it is watched
        self._tell(Announce(key, in_s))
        return True

    def fired(self, key: TaskKey, since: float) -> bool:
        """A task took back that it is watched, which was waited for since some time: it works, or will. Its message may
        have come meanwhile, or be late, or never come. Returns whether that is news.
        """
        if self._announced_at.get(key, -math.inf) > since:
            return False
        watched, managed = self._watched.get(key), self._tasks.get(key)
        told = None if managed is None else managed.told()
        works = watched is not None and not watched.unhurried and (told is None or told.work != watched.seen[0])
        return self.worked(key) if works or key not in self._announcing else self.announced(key, 0.0)

    def close(self) -> None:
        """Watch nobody any more."""
        self.watch({})
        for timer in (self._timer, self._glancing):
            if timer is not None:
                timer.cancel()

    def _is_at_work(self, key: TaskKey) -> bool:
        """Whether others may be off for a task's work now: then it has nothing to say before it is idle."""
        watched = self._watched.get(key)
        return watched is not None and watched.busy and not watched.unhurried

    def _unwatched(self) -> list[ManagedTask]:
        """Those who tell something, and not by themselves when they begin."""
        return [
            managed
            for key, managed in self._tasks.items()
            if key not in self._watched and managed.task.activity is not None
        ]

    def _glance_later(self) -> None:
        if self._glancing is None and len(self._tasks) > 1 and self._unwatched():
            self._glancing = asyncio.get_running_loop().call_later(GLANCE_S, self._glance)

    def _glance(self) -> None:
        self._glancing = None
        if any(activity_of(managed) != managed.task.activity for managed in self._unwatched()):
            self._stirred()
        self._glance_later()

    def _ask(self, key: TaskKey) -> None:
        """Have a task tell of what it is watched for. One that said that it works is asked when it is idle."""
        managed, watched = self._tasks.get(key), self._watched.get(key)
        if managed is not None and not self._is_at_work(key):
            asked = watched is not None and not watched.unhurried
            managed.ask_for_work(asked=asked, announced=key in self._announcing)

    def _look_soon(self) -> None:
        looked_at = [watched.idle_s for watched in self._watched.values() if watched.busy or watched.unhurried]
        if looked_at and self._timer is None:
            after = max(min(looked_at) / 2, REST * self._look_took_s)
            self._timer = asyncio.get_running_loop().call_later(after, self._look)

    def _look(self) -> None:
        self._timer = None
        now = time.monotonic()
        idle = [key for key, watched in self._watched.items() if watched.busy and self._is_idle(key, watched, now)]
        for key in idle:
            self._watched[key].busy = False
        begun = [key for key, watched in self._watched.items() if watched.unhurried and self._has_begun(key, watched)]
        self._look_took_s = time.monotonic() - now
        self._look_soon()
        for key in idle:
            self._tell(Idle(key))
        for key in begun:
            self.worked(key)

    def _is_idle(self, key: TaskKey, watched: _Watched, now: float) -> bool:
        managed = self._tasks.get(key)
        told = None if managed is None else managed.told()
        if managed is None or told is None:  # it ended, or its region is of no more use
            return True
        seen = told.work, told.waited_ns
        over = told.ended != watched.ended and not told.open  # it says so itself
        if told.waiting or (seen != watched.seen and not over):
            watched.seen, watched.since = seen, now
            return False
        if not over and now - watched.since < (max(OPEN_S, watched.idle_s) if told.open else watched.idle_s):
            return False
        watched.seen, watched.since, watched.ended = seen, now, told.ended
        managed.ask_for_work(asked=not watched.unhurried, announced=key in self._announcing)
        again = managed.told()  # it may have begun just before we asked
        return again is None or again.work == seen[0]

    def _has_begun(self, key: TaskKey, watched: _Watched) -> bool:
        managed = self._tasks.get(key)
        told = None if watched.busy or managed is None else managed.told()
        return told is not None and told.work != watched.seen[0]


def activity_of(managed: ManagedTask) -> Activity | None:
    """What the library in a task tells now, as policies and people see it; None where it tells nothing."""
    told = managed.told()
    if told is None:
        return None
    return Activity(told.work, _seconds(told.waited_ns), _seconds(told.launching_ns), told.before, told.waits)


def _may_tell(managed: ManagedTask) -> bool:
    return managed.task.task_class == TaskClass.LATENCY or managed.task.activity is not None


def _seconds(nanoseconds: int) -> float:
    return min(nanoseconds / 1e9, LONGEST_S)
