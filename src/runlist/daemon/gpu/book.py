"""Usage by the daemon's own book of who was allowed to run, for machines without a better source."""

from __future__ import annotations

import time
from collections.abc import Callable

from runlist.model import Usage
from runlist.planes.usage import Reading


class BookUsage:
    """Each task that is enabled counts as holding an equal part of the GPU, whether it has work or not."""

    name = "book"

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._enabled: set[int] = set()
        self._since = clock()
        self._reading = Reading(until=0.0)

    def set_enabled(self, pid: int, enabled: bool) -> None:
        """Note that a task may run from now on, or may not (also when it is gone)."""
        if enabled == (pid in self._enabled):
            return
        self._settle()
        if enabled:
            self._enabled.add(pid)
            self._reading.add(pid, Usage(turns=1))
        else:
            self._enabled.remove(pid)

    def read(self) -> Reading:
        self._settle()
        reading, self._reading = self._reading, Reading(until=0.0)
        reading.until = time.time()
        return reading

    def close(self) -> None:
        self._enabled.clear()

    def _settle(self) -> None:
        """Book the time since the last change."""
        now = self._clock()
        elapsed, self._since = now - self._since, now
        for pid in self._enabled:
            self._reading.add(pid, Usage(elapsed / len(self._enabled)))
