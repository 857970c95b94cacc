"""How long requests are, by when watched tasks begin to work and when they are idle."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from runlist.model import Busy, Event, Idle, TaskKey, Vanish
from runlist.statistics import percentile

NEWEST = 15
"""The middle one of so many is how long they are: what loads and warms up at first is one of them, and may be long."""


class RequestLengths:
    """The length of each task's requests of late, in `seconds`, once there were two."""

    def __init__(self) -> None:
        self.seconds: dict[TaskKey, float] = {}
        self._began: dict[TaskKey, float] = {}
        self._newest: dict[TaskKey, deque[float]] = {}

    def on_event(self, event: Event, now: float, idle_s: Mapping[TaskKey, float]) -> None:
        """`idle_s` is after how long without work each of them counts as idle: no part of a request."""
        if isinstance(event, Busy):
            self._began[event.key] = now
        elif isinstance(event, Idle):
            began = self._began.pop(event.key, None)
            if began is not None:
                newest = self._newest.setdefault(event.key, deque(maxlen=NEWEST))
                newest.append(max(0.0, now - began - idle_s.get(event.key, 0.0)))
                if len(newest) > 1:
                    self.seconds[event.key] = percentile(sorted(newest), 50)
        elif isinstance(event, Vanish):
            for each in (self._began, self._newest, self.seconds):
                each.pop(event.key, None)
