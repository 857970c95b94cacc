"""How long requests are, by when watched tasks begin to work and when they are idle."""

from __future__ import annotations

from collections.abc import Mapping

from runlist.model import Busy, Event, Idle, TaskKey, Vanish

KEPT = 0.8
"""The part of what is known that stays when another request ended."""


class RequestLengths:
    """The length of each task's requests of late, in `seconds`."""

    def __init__(self) -> None:
        self.seconds: dict[TaskKey, float] = {}
        self._began: dict[TaskKey, float] = {}

    def on_event(self, event: Event, now: float, idle_s: Mapping[TaskKey, float]) -> None:
        """`idle_s` is after how long without work each of them counts as idle: no part of a request."""
        if isinstance(event, Busy):
            self._began[event.key] = now
        elif isinstance(event, Idle):
            began = self._began.pop(event.key, None)
            if began is not None:
                lasted = max(0.0, now - began - idle_s.get(event.key, 0.0))
                self.seconds[event.key] = lasted + KEPT * (self.seconds.get(event.key, lasted) - lasted)
        elif isinstance(event, Vanish):
            self._began.pop(event.key, None)
            self.seconds.pop(event.key, None)
