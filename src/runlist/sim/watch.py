"""Watching tenants: when one that was idle begins to work, and when it is idle again.

The daemon hears of the first work by a message of the tenant. From then on it looks, every half of the time for which a
tenant has to be quiet, until it was: it hears of that up to so much later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from runlist.model import Announce, Busy, Event, Idle, TaskKey
from runlist.sim.engine import Engine
from runlist.sim.telling import Telling
from runlist.sim.timing import SECOND, WORK_MESSAGE


@dataclass(slots=True, eq=False)
class _Watched:
    """A tenant that has to be quiet for `idle` ns. A look of an older `version` does not count."""

    key: TaskKey
    telling: Telling
    idle: int
    busy: bool = False
    looks_from: int = 0
    version: int = 0


class Watch:
    """The watched tenants of one GPU. `tell` gets Busy and Idle, and Announce."""

    def __init__(self, engine: Engine, tell: Callable[[Event], None]) -> None:
        self._engine = engine
        self._tell = tell
        self._watched: dict[TaskKey, _Watched] = {}
        self._announcing: dict[TaskKey, Telling] = {}
        self._unhurried: AbstractSet[TaskKey] = frozenset()

    def set(
        self, wanted: Mapping[TaskKey, tuple[Telling, float]], unhurried: AbstractSet[TaskKey] = frozenset()
    ) -> None:
        """Watch these, each with the seconds that it has to be quiet, and no others. Who is watched already stays busy
        or idle; who is not counts as idle. Of the `unhurried` ones Busy comes as soon as of all others.
        """
        self._unhurried = unhurried
        for key in [key for key in self._watched if key not in wanted]:
            self._unwatch(key)
        for key, (telling, idle_s) in wanted.items():
            idle = round(idle_s * SECOND)
            watched = self._watched.get(key)
            if watched is None:
                watched = self._watched[key] = _Watched(key, telling, idle)
                self._wait_for_work(watched)
            elif watched.idle != idle:
                watched.idle = idle
                if watched.busy:
                    self._begin_looking(watched)

    def hear(self, announcing: Mapping[TaskKey, Telling]) -> None:
        """Hear what these announce while they are not busy, or watched without hurry, and no others."""
        for key in self._announcing.keys() - announcing.keys():
            self._announcing.pop(key).on_announcement = None
        for key in announcing.keys() - self._announcing.keys():
            self._announcing[key] = announcing[key]
            self._listen(key, announcing[key])

    def _listen(self, key: TaskKey, telling: Telling) -> None:
        def announced(lead: int) -> None:
            self._engine.at(self._engine.now + WORK_MESSAGE, self._on_announcement, (key, telling, lead))

        telling.on_announcement = announced

    def _on_announcement(self, announced: tuple[TaskKey, Telling, int]) -> None:
        key, telling, lead = announced
        watched = self._watched.get(key)
        heard = watched is None or not watched.busy or key in self._unhurried
        if self._announcing.get(key) is telling and heard:
            self._tell(Announce(key, lead / SECOND))
        else:
            self._engine.stale += 1

    def drop(self, key: TaskKey) -> None:
        """Watch this one no more."""
        if (telling := self._announcing.pop(key, None)) is not None:
            telling.on_announcement = None
        self._unwatch(key)

    def _unwatch(self, key: TaskKey) -> None:
        if (watched := self._watched.pop(key, None)) is not None:
            watched.telling.on_work = None

    def _wait_for_work(self, watched: _Watched) -> None:
        def on_work() -> None:
            self._engine.at(self._engine.now + WORK_MESSAGE, self._on_message, watched)

        watched.telling.on_work = on_work

    def _on_message(self, watched: _Watched) -> None:
        if self._watched.get(watched.key) is not watched:
            self._engine.stale += 1
            return
        watched.busy = True
        self._begin_looking(watched)
        self._tell(Busy(watched.key))

    def _begin_looking(self, watched: _Watched) -> None:
        watched.looks_from = self._engine.now
        watched.version += 1
        self._look_again(watched)

    def _look_again(self, watched: _Watched) -> None:
        """At the first look at which it can have been quiet for long enough: what the others would see is known."""
        half = watched.idle // 2
        looks = -(-(_quiet_since(watched.telling, self._engine.now) + watched.idle - watched.looks_from) // half)
        self._engine.at(watched.looks_from + max(0, looks) * half, self._look, (watched, watched.version))

    def _look(self, looked: tuple[_Watched, int]) -> None:
        watched, version = looked
        now = self._engine.now
        if self._watched.get(watched.key) is not watched or watched.version != version:
            self._engine.stale += 1
        elif now - _quiet_since(watched.telling, now) < watched.idle:
            self._look_again(watched)
        else:
            watched.busy = False
            watched.version += 1
            self._wait_for_work(watched)
            self._tell(Idle(watched.key))


def _quiet_since(telling: Telling, now: int) -> int:
    return telling.quiet_since if telling.waits_since is None else now
