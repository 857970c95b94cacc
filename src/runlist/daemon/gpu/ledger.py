"""What each workload used of one GPU, also when all its tasks have ended: who looks rarely misses nothing.

A workload is who its tasks are: by their rule's labels, else by their container, else by their user.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

import msgspec

from runlist.daemon.tasks.managed import Count, ManagedTask
from runlist.model import NO_USAGE, TaskKey, Usage

MOST_ENDED = 1000
"""Workloads without tasks that are kept apart: of those who have most the oldest are given up."""

SETTLED_S = 2.0
"""A task is charged to nobody until it is so old, as who it is may be told later than it comes; and its account stays
open so long after its end, as its last records come later, and idle time by up to 1.3 s.
"""

MOST_NAMED = 4096
"""Containers whose labels are known from a task of theirs."""

ENDED = "tasks_ended"

_Counts = defaultdict[str, float]


class Refuses(Protocol):
    """The memory limit of a tree of processes."""

    def refused(self, gpu: str) -> int:
        """How many allocations it refused on a GPU; never shrinks."""


class Who(NamedTuple):
    """Whose a task is. `labels` are in order; `user` is who has that number."""

    uid: int
    container: str
    labels: tuple[tuple[str, str], ...]
    user: int

    @property
    def owner(self) -> str:
        """Who may make many such: whoever has most that ended loses the oldest first. A user may have many numbers, and
        call cgroups of their own as they like.
        """
        told = dict(self.labels)
        known = (told.get(name) for name in ("namespace", "container"))
        user, _, container = self.container.rpartition(":")
        return next(filter(None, known), user or container) or str(self.user)


class Workload(NamedTuple):
    """What was counted of a workload, by the names of `Usage`, `Count` and ENDED; `who` is None for the oldest that
    ended, which are one.
    """

    who: Who | None
    counts: Mapping[str, float]


class _Line(msgspec.Struct):
    """A task, and what it used since it was first seen; `charged` is the part that its workload has."""

    managed: ManagedTask
    began: float
    usage: Usage
    worked_s: float
    counts: Counter[Count] = msgspec.field(default_factory=Counter)
    charged: Mapping[str, float] = {}
    ended: float | None = None
    has_tree: bool = True

    def add(self, usage: Usage) -> None:
        self.usage += usage
        self.worked_s = max(self.worked_s, self.usage.busy_s)

    def totals(self) -> dict[str, float]:
        usage = self.usage
        own = self.managed.counts if self.ended is None else self.counts
        return {
            "held_s": usage.held_s,
            "idle_s": usage.idle_s,
            "worked_s": self.worked_s,
            "turns": usage.turns,
            Count.SUSPENSIONS: own[Count.SUSPENSIONS],
            Count.SLICES_PUT_BACK: own[Count.SLICES_PUT_BACK],
            Count.SUSPENDED_AGAIN: own[Count.SUSPENDED_AGAIN],
            Count.ROUSED: own[Count.ROUSED],
            ENDED: self.ended is not None,
        }


class Ledger:
    """The workloads of one GPU. What is charged to one stays there, also when its task becomes another's."""

    def __init__(self, gpu: str) -> None:
        self._gpu = gpu
        self._lines: dict[int, _Line] = {}  # by process id
        self._workloads: dict[Who, _Counts] = {}  # those whose tasks ended last are last
        self._folded: _Counts = defaultdict(float)
        self._named: dict[str, tuple[tuple[str, str], ...]] = {}  # labels by container
        self._refusals: dict[Refuses, tuple[Who, int]] = {}  # who was charged last with those of a tree, and how many

    def begin(self, managed: ManagedTask, before: Usage) -> None:
        """A task comes. `before` is what it used just before it was found."""
        pid = managed.task.key.pid
        if (old := self._lines.pop(pid, None)) is not None:
            self._charge(old)
            before = NO_USAGE  # that one has it
        self._lines[pid] = _Line(managed, time.monotonic(), before, max(0.0, before.busy_s))

    def used(self, usage: Mapping[int, Usage]) -> None:
        """A reading."""
        for pid, more in usage.items():
            if (line := self._lines.get(pid)) is not None:
                line.add(more)

    def end(self, key: TaskKey) -> None:
        """A task goes; what of it is read later counts as well."""
        line = self._lines.get(key.pid)
        if line is not None and line.ended is None:
            line.counts.update(line.managed.counts)  # the task may come back with new ones
            line.ended = time.monotonic()
            self._name(line)
            self._settle()  # here, lest they pile up while nobody looks

    def tree_ended(self, quota: Refuses) -> None:
        """A tree is gone: its last refusals count for whoever was charged with them last."""
        for line in self._lines.values():
            if line.managed.root is not None and line.managed.root.quota is quota:
                self._refusals.setdefault(quota, (self._who(line.managed), 0))
                line.has_tree = False
        if quota in self._refusals:
            who, charged = self._refusals.pop(quota)
            if (more := quota.refused(self._gpu) - charged) > 0:
                self._of(who)[Count.MEMORY_REFUSALS] += more

    def workloads(self) -> Iterator[Workload]:
        """All of them, with usage as of the last reading."""
        self._settle()
        for who, counts in self._workloads.items():
            yield Workload(who, counts)
        if self._folded:
            yield Workload(None, self._folded)

    # -- charging ----------------------------------------------------------------------------------

    def _settle(self) -> None:
        now = time.monotonic()
        for pid, line in list(self._lines.items()):
            if line.ended is not None and now - line.ended >= SETTLED_S:
                del self._lines[pid]
                self._charge(line)
            elif line.ended is None and now - line.began >= SETTLED_S:
                self._charge(line)
        self._fold()

    def _charge(self, line: _Line) -> None:
        """What is new of a task goes to its workload."""
        self._name(line)
        who = self._who(line.managed)
        totals = line.totals()
        counts = self._of(who)
        if line.ended is not None:
            self._workloads[who] = self._workloads.pop(who)  # it is the last
        for name, value in totals.items():
            counts[name] += value - line.charged.get(name, 0)
        line.charged = totals
        if line.has_tree and line.managed.root is not None:
            quota = line.managed.root.quota
            _, charged = self._refusals.get(quota, (who, 0))
            refused = quota.refused(self._gpu)
            counts[Count.MEMORY_REFUSALS] += refused - charged
            self._refusals[quota] = (who, refused)

    def _of(self, who: Who) -> _Counts:
        return self._workloads.setdefault(who, defaultdict(float))

    def _name(self, line: _Line) -> None:
        managed = line.managed
        if managed.container and managed.labels:
            self._named.pop(managed.container, None)
            self._named[managed.container] = tuple(sorted(managed.labels.items()))
            if len(self._named) > MOST_NAMED:
                del self._named[next(iter(self._named))]

    def _who(self, managed: ManagedTask) -> Who:
        """Labels come a moment after a container's first process, which may have ended by then."""
        labels = tuple(sorted(managed.labels.items())) or self._named.get(managed.container, ())
        return Who(managed.task.uid, "" if labels else managed.container, labels, managed.user)

    def _fold(self) -> None:
        if len(self._workloads) <= MOST_ENDED:
            return
        there = {self._who(line.managed) for line in self._lines.values()}
        ended: defaultdict[str, deque[Who]] = defaultdict(deque)
        for who in self._workloads:
            if who not in there:
                ended[who.owner].append(who)
        for _ in range(sum(map(len, ended.values())) - MOST_ENDED):
            most = max(ended.values(), key=len)
            for name, value in self._workloads.pop(most.popleft()).items():
                self._folded[name] += value
