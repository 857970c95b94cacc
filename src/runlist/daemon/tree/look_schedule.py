"""When to look at a process: a moment after it opened or closed files.

A half-made context lacks groups, and the slices that CUDA will give them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

from runlist.proc.process import descriptor_count

QUIET_S = 0.05
"""A process whose number of open files has not changed for this long is not making a context now."""

SETTLE_S = 1.5
"""How long to look often after the GPU was opened, and how long to wait for a process that is never quiet."""


class _Descriptors(msgspec.Struct):
    """How many descriptors a process has, since when, and since when a change waits for a look."""

    count: int
    changed_at: float
    unseen_since: float | None


class LookSchedule:
    """The open files of the processes that were asked about, and which of their changes were looked at."""

    def __init__(self) -> None:
        self._known: dict[int, _Descriptors] = {}

    def due(self, pid: int, count: int, *, at_once: bool = False) -> bool:
        """Whether to look now at a process with this many descriptors: their number has changed and come to rest, or
        need not. Counts as a look.
        """
        now = time.monotonic()
        known = self._known.get(pid)
        if known is None or known.count != count:
            since = known.unseen_since if known is not None and known.unseen_since is not None else now
            known = self._known[pid] = _Descriptors(count, changed_at=now, unseen_since=since)
        if count < 0 or known.unseen_since is None:
            return False
        if not at_once and now - known.changed_at < QUIET_S and now - known.unseen_since < SETTLE_S:
            return False
        known.unseen_since = None
        return True

    def looked_at(self, pid: int) -> None:
        """A process was looked at just now."""
        self._known[pid] = _Descriptors(descriptor_count(pid), changed_at=time.monotonic(), unseen_since=None)

    @property
    def settled(self) -> bool:
        """Whether no process has opened or closed files lately."""
        since = time.monotonic() - SETTLE_S
        return all(known.changed_at < since for known in self._known.values())

    def forget(self, pid: int) -> None:
        """Take a process for one that nobody has looked at."""
        self._known.pop(pid, None)

    @property
    def known(self) -> list[int]:
        """Those that were asked about."""
        return list(self._known)

    def forget_gone(self, counts: Mapping[int, int]) -> bool:
        """Forget processes that are gone, or closed to us, by these numbers of descriptors. Whether there were any that
        nobody had looked at: they may have left what they made to others.
        """
        before, self._known = self._known, {pid: one for pid, one in self._known.items() if counts.get(pid, 0) >= 0}
        return any(before[pid].unseen_since is not None for pid in before.keys() - self._known)
