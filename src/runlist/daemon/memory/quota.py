"""The memory limit of a tree of processes, and the region by which they share it."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

import structlog

from runlist.daemon.memory.ceiling import Ceiling
from runlist.errors import NotSupportedError
from runlist.planes.process.region import (
    Activity,
    Operations,
    Region,
    RegionError,
    Snapshot,
    Words,
    cap_words,
    gpu_key,
    memory_words,
    unseen_words,
)
from runlist.rate import Rate

_log = structlog.get_logger()

_KEPT_S = 0.05
_THEIRS = -1.0
"""Stands for caps in the region that the daemon did not write."""


def _smaller(one: int | None, other: int | None) -> int | None:
    """The smaller of two limits; None is none."""
    return min((each for each in (one, other) if each is not None), default=None)


class DriverGroup(Protocol):
    """The tree as a driver knows it that limits memory itself."""

    def set(self, limit: int | None) -> None:
        """Set its limit on each GPU, in bytes. Raises NotSupportedError."""

    def members(self) -> Collection[int]:
        """Its processes, for which the driver keeps the limit."""

    def close(self) -> None:
        """Undo it."""


class RegionKeeper(Protocol):
    """Who puts regions back when the daemon dies."""

    def guard_region(self, region: Region, words: Words, key: int | None = None) -> int:
        """Have these words written then, in place of those of `key`; the key for `unguard`."""

    def unguard(self, key: int) -> None:
        """Have nothing written any more."""


class Quota:
    """The limits of one tree. Owns the region, where there is one. `group` makes the tree known to a driver with memory
    limits of its own; it returns None for other drivers.

    `reads` is the rate of its user, in slots read. `keeper` undoes what is for the time of the daemon alone.

    `limit` is in bytes on each GPU, None for no limit; a region may have other limits for single GPUs. A bad region is
    dropped, and `trouble` says why: then only the daemon keeps the limit, from outside. What the region says is a hint:
    the limit that counts is the daemon's own, unless the tree brought its own along and nobody set another.
    """

    def __init__(
        self,
        region: Region | None = None,
        group: Callable[[], DriverGroup | None] = lambda: None,
        reads: Rate | None = None,
        keeper: RegionKeeper | None = None,
    ) -> None:
        self.limit: int | None = None
        self.trouble = ""
        self._region = region
        self._make_group = group
        self._keeper = keeper
        self._kept: tuple[int, Words] | None = None  # what the keeper has to write, with its key
        self._reads = Rate() if reads is None else reads
        self._group: DriverGroup | None = None
        self._snapshot: Snapshot | None = None
        self._read_at = 0.0
        self._brought = False  # the limit is from the tree's own region
        self._ruled: int | None = None  # the limit of the rules
        self._own: int | None = None  # what the tree brought along, before there was one of the rules
        self._left = False  # somebody with work on a GPU is not in the driver's group
        self._allowed = False  # its group leaves it less than its limit
        self._cap: float | None = _THEIRS
        self._ceilings: dict[str, Ceiling] = {}  # by GPU
        self._first_most: float = math.inf  # of a GPU at which nobody has looked yet
        self._unseen: dict[str, int] = {}  # what the region says of it, by GPU
        self._charged: set[int] = set()  # the GPUs' places in the region at which it says so
        self._refused: dict[int, int] = {}  # the most refusals that the region ever told, by the GPU's key

    def _may_read(self, before: Snapshot) -> bool:
        """Whether there is time to read the region again: each of its slots costs its user some."""
        if self._reads.left <= 0:
            return False
        self._reads.spend(len(before.slots))
        return True

    @property
    def by_driver(self) -> bool:
        """Whether the driver keeps the limit, for all that is on a GPU."""
        return self._group is not None and not self._left

    def see_who_left(self, pids: Collection[int]) -> None:
        """These processes of the tree are on GPUs. Where the driver does not limit one, the daemon does all."""
        self._left = self._group is not None and bool(frozenset(pids).difference(self._group.members()))

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
        elif self._ruled is not None and self._own is None:
            self._own = self._least(self.look())

    @staticmethod
    def _least(snapshot: Snapshot | None) -> int | None:
        """The smallest limit in a region, of those for all GPUs and for single ones."""
        limits = [] if snapshot is None else [snapshot.memory, *(each.limit for each in snapshot.devices.values())]
        return min((each for each in limits if each is not None), default=None)

    def look(self, kept_s: float = _KEPT_S) -> Snapshot | None:
        """The region's content, at most `kept_s` old; None without a region."""
        now = time.monotonic()
        if self._region is None:
            return None
        if self._snapshot is None or (now - self._read_at >= kept_s and self._may_read(self._snapshot)):
            try:
                self._snapshot, self._read_at = self._region.read(), now
            except RegionError as error:
                self._drop(error)
            else:
                for key, device in self._snapshot.devices.items():
                    self._refused[key] = max(self._refused.get(key, 0), device.refusals)
        return self._snapshot

    @property
    def read_at(self) -> float:
        """When the region was last read, by the monotonic clock."""
        return self._read_at

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

    # -- what the tree holds -----------------------------------------------------------------------

    @property
    def firm(self) -> int | None:
        """The limit that the daemon keeps, in bytes on each GPU; None where the driver does, or nobody set one."""
        return None if self._brought or self.by_driver else self.limit

    def breaks(self, gpu: str, held: int) -> bool:
        """Whether the tree would be over its limit now, by these bytes, and was not before."""
        ceiling = self._ceiling(gpu)
        return not ceiling.over and ceiling.is_broken(self.firm, held)

    def breaks_often(self, gpu: str, held: int) -> bool:
        """The same for the first of several looks; whether the tree is over from now on for having been so often."""
        return self._ceiling(gpu).is_often_broken(self.firm, held)

    def take_note(self, gpu: str, held: int, *, sure: bool = True) -> bool:
        """Whether the tree is over its limit on a GPU, now that it holds so much."""
        return self._ceiling(gpu).look(self.firm, held, sure=sure)

    def is_over(self, gpu: str) -> bool:
        """Whether it was at the last look."""
        return gpu in self._ceilings and self._ceilings[gpu].over

    def charge_unseen(self, gpu: str, octets: int) -> None:
        """Have the library count bytes that the tree holds and no process' library tells."""
        snapshot = self.look()
        device = None if snapshot is None else snapshot.device(gpu)
        if self._region is None or device is None or octets == self._unseen.get(gpu, 0) == device.unseen:
            return
        if octets:
            self._charged.add(device.index)
            self._keep()
        try:
            self._region.set_unseen(device.index, octets)
        except RegionError as error:
            self._drop(error)
        self._unseen[gpu] = octets

    def _ceiling(self, gpu: str) -> Ceiling:
        if gpu not in self._ceilings:
            self._ceilings[gpu] = Ceiling(self._first_most)
        return self._ceilings[gpu]

    def _change_ceilings(self, limit: int | None, *, keeps: bool) -> None:
        if not keeps:
            self._first_most = math.inf if limit is None else limit
        for ceiling in self._ceilings.values():
            ceiling.change(limit, keeps=keeps)

    # -- what its processes do ---------------------------------------------------------------------

    def activity(self, pid: int) -> Activity | None:
        """What the library of a process tells of its work, now; None where it tells nothing."""
        try:
            return None if self._region is None else self._region.activity(pid)
        except RegionError as error:
            self._drop(error)
            return None

    def operations(self, pid: int) -> Operations | None:
        """What the library of a process tells of its clients, lately; None where it tells nothing."""
        try:
            return None if self._region is None else self._region.operations(pid)
        except RegionError as error:
            self._drop(error)
            return None

    def ask_for_work(self, pid: int, *, asked: bool, announced: bool = False) -> None:
        """Have the library of a process send a message when it next submits work, or announces some, or none."""
        try:
            if self._region is not None:
                self._region.watch(pid, asked, announced)
        except RegionError as error:
            self._drop(error)

    def watched_at(self, pid: int) -> tuple[Region, int] | None:
        """The file, and the place in it, where the library of a process looks whether to send one."""
        try:
            at = None if self._region is None else self._region.watched_at(pid)
        except RegionError as error:
            self._drop(error)
            return None
        return None if self._region is None or at is None else (self._region, at)

    # -- limits ------------------------------------------------------------------------------------

    def put_back(self) -> None:
        """Write the limit again where a process of the tree wrote a larger one over it."""
        snapshot = self.look()
        if self.limit is None or self._brought or snapshot is None:
            return
        written = [snapshot.memory, *(device.limit for device in snapshot.devices.values())]
        if any(limit is None or limit > self.limit for limit in written):
            _log.warning("a tree had changed its own memory limit; put back", limit=self.limit)
            with contextlib.suppress(NotSupportedError):
                self._write(self.limit)

    def set_limit(self, limit: int | None, *, keeps: bool = True) -> None:
        """Change the limit of all processes of the tree at once. With `keeps` the tree keeps what it holds beyond it.
        Raises NotSupportedError where neither the driver nor the library can keep it.
        """
        self._write(limit)
        self._change_ceilings(limit, keeps=keeps)

    def _write(self, limit: int | None) -> None:
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
        if self._allowed:
            self._keep()
        self._snapshot = None

    def follow(self, limit: int | None, *, keeps: bool = False) -> None:
        """Take the limit of the rules, None for none any more. Where the tree brought a smaller one along, that counts.
        Without a region only the daemon keeps it. `keeps` as in `set_limit`.
        """
        if limit == self._ruled:
            return
        if self._ruled is None and not (self._brought and self._allowed):  # else `allow` has noted it
            self._own = self._least(self.look()) if self._brought else self.limit
        self._ruled = limit
        wanted = min((each for each in (limit, self._own) if each is not None), default=None)
        self.limit = wanted
        self._change_ceilings(wanted, keeps=keeps)
        with contextlib.suppress(NotSupportedError):
            self._write(wanted)
        self._brought = self.has_region and limit is None

    def allow(self, most: int | None, by_gpu: Mapping[str, int]) -> None:
        """Have the library refuse what goes beyond these bytes, `most` on GPUs that are not named, though the tree's
        own limit is larger; with None there is only that one again.
        """
        if most is None and not self._allowed:
            return
        if self._brought and not self._allowed:
            self._own = self._least(self.look())
        self._allowed = most is not None
        if self._allowed:
            self._keep()
        own = self._own if self._brought else self.limit
        snapshot = self.look()
        if self._region is None or snapshot is None:
            return
        try:
            base = _smaller(own, most)
            if most is None or snapshot.memory != base:
                self._region.set_memory(base)
                self._snapshot = None
            for gpu, octets in by_gpu.items():
                device = snapshot.device(gpu)
                if device is not None and (self._snapshot is None or device.limit != _smaller(own, octets)):
                    self._region.set_memory_on(device.index, _smaller(own, octets))
                    self._read_at = 0.0
        except RegionError as error:
            self._drop(error)

    @property
    def own_limit(self) -> int | None:
        """The limit of the tree itself, whatever its group leaves to it."""
        return self._own if self._brought and self._allowed else self.limit

    def set_cap(self, fraction: float | None, *, asked: bool) -> None:
        """Have the library keep a cap (0 to 1) on every GPU, or none. Caps that somebody else wrote stay until there is
        one to keep, or until one was `asked` for.
        """
        untouched = self._cap == _THEIRS and fraction is None and not asked
        if self._region is None or untouched or fraction == self._cap:
            return
        self._cap = fraction
        if fraction is not None:
            self._keep()
        try:
            self._region.set_cap(fraction)
        except RegionError as error:
            self._drop(error)
        self._snapshot = None

    def _keep(self) -> None:
        """Have the keeper know what in the region is for the time of the daemon alone, before it is written."""
        words: Words = []
        if self._allowed:
            words += memory_words(self.own_limit)
        if self._cap is not None and self._cap != _THEIRS:
            words += cap_words(None)
        for index in sorted(self._charged):
            words += unseen_words(index, 0)
        if self._keeper is None or self._region is None or (self._kept is not None and words == self._kept[1]):
            return
        key = None if self._kept is None else self._kept[0]
        self._kept = self._keeper.guard_region(self._region, words, key), words

    def _let_go(self) -> None:
        """Close the region."""
        if self._kept is not None and self._keeper is not None:
            self._keeper.unguard(self._kept[0])
        if self._region is not None:
            self._region.close()
        self._region = self._snapshot = self._kept = None

    def close(self) -> None:
        """Let go of the region, and of the driver's limit."""
        if self._group is not None:
            self._group.close()
            self._group = None
        self._snapshot = None
        self.allow(None, {})
        for gpu in self._unseen:
            self.charge_unseen(gpu, 0)  # nobody will look any more
        if self._cap != _THEIRS:
            self.set_cap(None, asked=True)
        self.look()  # for the latest refusals
        self._let_go()

    def _drop(self, error: RegionError) -> None:
        self.trouble = str(error)
        _log.warning("a memory region is of no more use", reason=self.trouble)
        self._let_go()
