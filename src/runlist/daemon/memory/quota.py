"""The memory limit of a tree of processes, and the region by which they share it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Protocol

import structlog

from runlist.daemon.memory.budget import Budget
from runlist.errors import NotSupportedError
from runlist.planes.process.region import CROWD, Region, RegionError, Snapshot, gpu_key

_log = structlog.get_logger()

_KEPT_S = 0.05
_THEIRS = -1.0
"""Stands for caps in the region that the daemon did not write."""


class DriverGroup(Protocol):
    """The tree as a driver knows it that limits memory itself."""

    def set(self, limit: int | None) -> None:
        """Set its limit on each GPU, in bytes. Raises NotSupportedError."""

    def close(self) -> None:
        """Undo it."""


class Quota:
    """The limits of one tree. Owns the region, where there is one. `group` makes the tree known to a driver with memory
    limits of its own; it returns None for other drivers.

    `budget` is that of its user, in slots read.

    `limit` is in bytes on each GPU, None for no limit; a region may have other limits for single GPUs. A bad region is
    dropped, and `trouble` says why: then only the daemon keeps the limit, from outside.
    """

    def __init__(
        self,
        region: Region | None = None,
        group: Callable[[], DriverGroup | None] = lambda: None,
        budget: Budget | None = None,
    ) -> None:
        self.limit: int | None = None
        self.trouble = ""
        self._region = region
        self._make_group = group
        self._budget = Budget() if budget is None else budget
        self._group: DriverGroup | None = None
        self._snapshot: Snapshot | None = None
        self._read_at = 0.0
        self._brought = False  # the limit is from the tree's own region
        self._cap: float | None = _THEIRS
        self._refused: dict[int, int] = {}  # the most refusals that the region ever told, by the GPU's key

    def _may_read(self, before: Snapshot) -> bool:
        """Whether there is time to read the region again: that of a crowd costs its user some."""
        crowd = len(before.slots) > CROWD
        if crowd and not self._budget.is_left:
            return False
        self._budget.spend(len(before.slots) if crowd else 0)
        return True

    @property
    def by_driver(self) -> bool:
        """Whether the driver keeps the limit."""
        return self._group is not None

    @property
    def has_region(self) -> bool:
        """Whether the tree's processes can be limited from inside."""
        return self._region is not None

    def take(self, region: Region) -> None:
        """Use the region that a process sent; the tree has none."""
        assert self._region is None
        self._region = region
        if self.limit is None and (snapshot := self.look()) is not None:
            self.limit, self._brought = snapshot.memory, True

    def look(self) -> Snapshot | None:
        """The region's content, at most 50 ms old; None without a region."""
        now = time.monotonic()
        if self._region is None:
            return None
        if self._snapshot is None or (now - self._read_at >= _KEPT_S and self._may_read(self._snapshot)):
            try:
                self._snapshot, self._read_at = self._region.read(), now
            except RegionError as error:
                self._drop(error)
            else:
                for key, device in self._snapshot.devices.items():
                    self._refused[key] = max(self._refused.get(key, 0), device.refusals)
        return self._snapshot

    def refused(self, gpu: str) -> int:
        """How many allocations on a GPU the library refused, as it says itself. Stays after the end; never shrinks."""
        self.look()
        return self._refused.get(gpu_key(gpu), 0)

    def limit_on(self, gpu: str) -> int | None:
        """The limit in force on a GPU, in bytes. A tree may give itself a smaller one; a larger one counts only where
        nobody else set any.
        """
        snapshot = self.look()
        if snapshot is not None and self._brought:
            return snapshot.limit(gpu)
        limits = [self.limit, None if snapshot is None else snapshot.limit(gpu)]
        return min((limit for limit in limits if limit is not None), default=None)

    def put_back(self) -> None:
        """Write the limit again where a process of the tree wrote a larger one over it."""
        snapshot = self.look()
        if self.limit is None or self._brought or snapshot is None:
            return
        written = [snapshot.memory, *(device.limit for device in snapshot.devices.values())]
        if any(limit is None or limit > self.limit for limit in written):
            _log.warning("a tree had changed its own memory limit; put back", limit=self.limit)
            with contextlib.suppress(NotSupportedError):
                self.set_limit(self.limit)

    def set_limit(self, limit: int | None) -> None:
        """Change the limit of all processes of the tree at once. Raises NotSupportedError where neither the driver nor
        the library can keep it.
        """
        self._group = self._group or self._make_group()
        if self._group is not None:
            self._group.set(limit)
        elif self._region is None:
            raise NotSupportedError(
                f"its memory region is of no more use ({self.trouble})"
                if self.trouble
                else "its memory cannot be limited from outside: start it with `runlist run --memory` "
                "(one that was detached since keeps the limit that it had)"
            )
        if self._region is not None:
            try:
                self._region.set_memory(limit)
            except RegionError as error:
                self._drop(error)
                raise NotSupportedError(f"its memory region is of no more use ({error})") from None
        self.limit, self._brought = limit, False
        self._snapshot = None

    def tighten(self, limit: int | None) -> None:
        """Take a limit of the rules where it is smaller than the present one and than the tree's own for single GPUs.
        Without a region only the daemon keeps it.
        """
        if limit is None or (self.limit is not None and self.limit <= limit and not self._brought):
            return
        snapshot = self.look() if self._brought else None
        theirs = () if snapshot is None else (device.limit for device in snapshot.devices.values())
        self.limit = min(each for each in (limit, self.limit, *theirs) if each is not None)
        with contextlib.suppress(NotSupportedError):
            self.set_limit(self.limit)

    def set_cap(self, fraction: float | None, *, asked: bool = False) -> None:
        """Have the library keep a cap (0 to 1) on every GPU, or none. Caps that somebody else wrote stay until there is
        one to keep, or until one was `asked` for.
        """
        untouched = self._cap == _THEIRS and fraction is None and not asked
        if self._region is None or untouched or fraction == self._cap:
            return
        try:
            self._region.set_cap(fraction)
        except RegionError as error:
            self._drop(error)
        self._cap = fraction
        self._snapshot = None

    def close(self) -> None:
        """Let go of the region, and of the driver's limit."""
        if self._group is not None:
            self._group.close()
            self._group = None
        self._snapshot = None
        self.look()  # for the latest refusals
        if self._region is not None:
            self._region.close()
            self._region = self._snapshot = None

    def _drop(self, error: RegionError) -> None:
        self.trouble = str(error)
        _log.warning("a memory region is of no more use", reason=self.trouble)
        if self._region is not None:
            self._region.close()
            self._region = self._snapshot = None
