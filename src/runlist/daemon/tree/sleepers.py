"""Processes that have slept since one looked at them last: a sleeper has closed no file and changed no slice.

To see that takes a µs, by the processor time of all of its threads together; to look takes a request to the driver, or
a comparison for each file. What others do to a sleeper's files and slices, as a child that it left them to, is found
at the look that comes to all of them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from runlist.daemon.tasks.managed import ManagedProcess
from runlist.proc.process import processor_ns

ALL_EVERY_S = 12.0
"""How often those are looked at, too, that slept."""


class Sleepers:
    """Leaves them out of one kind of look."""

    def __init__(self) -> None:
        self._ran_ns: dict[int, int] = {}
        self._all_at = 0.0

    def left_out(self, processes: Sequence[ManagedProcess], now: float | None = None) -> list[ManagedProcess]:
        """The others, which have run since the last call, or are new, or have left their files to another process."""
        now = time.monotonic() if now is None else now
        before, self._ran_ns = self._ran_ns, {process.pid: processor_ns(process.pid) for process in processes}
        if now - self._all_at >= ALL_EVERY_S:
            self._all_at = now
            return list(processes)
        return [
            process
            for process in processes
            if process.holder != process.pid or not 0 <= self._ran_ns[process.pid] == before.get(process.pid)
        ]
