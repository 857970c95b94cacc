"""Room on one GPU for a latency-critical task that is about to come: who goes off for it before it can be managed.

A program goes on making its context for tens of ms after its first channel group. To find what it has, and to decide
with it, takes some twenty requests, each of which waits for the driver's lock behind the program's own. So the others
go off first, by one request, and what is decided once the task is there says how they go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Mapping

from runlist.daemon.tasks.managed import ManagedTask
from runlist.errors import RunlistError
from runlist.model import TaskKey

LONGEST_S = 0.1
"""For who does not come they are off so long."""
REST = 10
"""Then they go off for nobody for so many times as long as they were: processes may come on and on."""


class Room:
    """`on_end` is called when it has lasted for the longest time."""

    def __init__(self, tasks: Mapping[TaskKey, ManagedTask], on_end: Callable[[], None]) -> None:
        self.off: Collection[TaskKey] = ()  # who is to go off
        self._tasks = tasks
        self._on_end = on_end
        self._since = 0.0
        self._not_before = float("-inf")
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_made(self) -> bool:
        """Whether they are off for it now."""
        return self._timer is not None

    def make(self) -> list[ManagedTask]:
        """Have them off now; returns who is, nobody where that may not be or failed."""
        now = time.monotonic()
        if self.is_made or now < self._not_before:
            return []
        tasks = [self._tasks[key] for key in sorted(self.off) if key in self._tasks]
        for managed in tasks:
            managed.settle()  # first: some may be off by then
        tasks = [managed for managed in tasks if managed.share.enabled]
        contexts = [each for managed in tasks if managed.carrier is None for each in managed.contexts.values()]
        if not contexts:
            return []
        try:
            contexts[0].suspend_at_once(contexts[1:])
        except (RunlistError, OSError):
            for managed in tasks:
                with contextlib.suppress(RunlistError, OSError):  # it is lost where it is controlled next
                    managed.assert_enabled()
            self._not_before = now + REST * LONGEST_S
            return []
        for managed in tasks:
            managed.was_suspended()
        self._since = now
        self._timer = asyncio.get_running_loop().call_later(LONGEST_S, self._ends)
        return tasks

    def end(self) -> None:
        """What is decided from now on is in force; nothing comes on by this."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            now = time.monotonic()
            self._not_before = now + REST * (now - self._since)

    def _ends(self) -> None:
        self.end()
        self._on_end()
