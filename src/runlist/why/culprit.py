"""Which part of a slow request is to blame, in plain words: the one that took longer than it usually does."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from statistics import median
from typing import NamedTuple, TypeVar

from runlist.why.parts import Part, Parting, Parts
from runlist.why.seen import Mode, Seen, Who
from runlist.why.under_way import Request

Key = TypeVar("Key")

_CHANGES = "(mmap, munmap, mprotect, fork),"
_SLEEPS = {
    Mode.LOCK: ("waited for a lock of another thread, or process (futex),", ""),
    Mode.MAPPING: (f"waited for its memory map, which another thread changed or looked at {_CHANGES}", ""),
    Mode.ANSWER: ("waited for what comes by a socket or a pipe", ""),
    Mode.READER: ("waited", " for whoever reads its socket or pipe to take more"),
    Mode.CHILD: ("waited for a child process", ""),
    Mode.POLL: ("waited in poll, select or epoll", ", for a socket, a pipe or a timer"),
    Mode.TIMER: ("slept of its own accord", ""),
    Mode.FILE_LOCK: ("waited for a lock on a file, which another one has (flock, fcntl),", ""),
    Mode.SEMAPHORE: ("waited for a semaphore (semop)", ""),
    Mode.KERNEL: ("waited in the kernel", ", for a lock there, or until what it asked for was done"),
    Mode.DRIVER: ("slept in the GPU's driver", ""),
    Mode.STOPPED: ("was stopped", ", by a signal, a debugger or its cgroup's freezer"),
    Mode.RECLAIM: (
        "was kept back",
        ": its cgroup has all the memory it may (memory.high), or none is left",
    ),
    Mode.ASLEEP: ("slept of its own accord, or waited for a pipe, a socket or a timer", ""),
}
"""What it did, for so long, and why."""


_ALIKE = 1.25
_ENOUGH = 4
"""So many requests tell what is usual."""
_NEARLY = 0.5
_MOST = 2_000
"""So many are looked at for that, of all alike."""


class Usual:
    """What each part takes usually: in the quicker half of the requests with about as many launches, or, where there
    are few of those, in all that are not slow. 0 where there are none, and for a request that is no longer than those.
    `slow` are the beginnings of those that are.
    """

    def __init__(self, every: Sequence[Request], slow: Collection[int], parting: Parting) -> None:
        self._lanes: dict[int, list[Request]] = {}
        for each in sorted(every, key=_launches_of):
            self._lanes.setdefault(each.lane, []).append(each)
        self._every, self._slow = every, slow
        self._parting = parting
        self._others: _Group | None = None
        self._groups: dict[tuple[int, int], _Group] = {}  # by lane and launches

    def beside(self, one: Request) -> Mapping[Part, float]:
        """Of a request like this one."""
        which = one.lane, one.launches
        if which not in self._groups:
            self._groups[which] = self._find(*which)
        group = self._groups[which]
        return {} if one.length_ns <= _ALIKE * group.length_ns else group.parts

    def _find(self, lane: int, launches: int) -> _Group:
        alike = self._lanes.get(lane, [])
        first = bisect_left(alike, launches / _ALIKE, key=_launches_of)
        same = alike[first : bisect_right(alike, launches * _ALIKE, key=_launches_of)]
        if len(same) < _ENOUGH:
            if self._others is None:
                others = [each for each in self._every if each.start_ns not in self._slow]
                self._others = _Group.of(others, self._parting)
            return self._others
        same = same[:: len(same) // _MOST + 1]
        return _Group.of(sorted(same, key=lambda each: each.length_ns)[: len(same) // 2], self._parting)


class _Group(NamedTuple):
    """How long requests are, and what their parts take, at the median; longer than any where there are none."""

    length_ns: float
    parts: Mapping[Part, float]

    @classmethod
    def of(cls, same: Sequence[Request], parting: Parting) -> _Group:
        if not same:
            return cls(math.inf, {})
        taken = zip(*map(parting.spent, same), strict=True)
        return cls(median(each.length_ns for each in same), dict(zip(Part, map(median, taken), strict=True)))


def _launches_of(one: Request) -> int:
    return one.launches


def blamed(one: Parts, others: Mapping[Part, float]) -> list[Part]:
    """The part that took the longest beyond what it usually takes, and others that did for nearly as long."""

    def beyond(part: Part) -> float:
        return one.of(part) - others.get(part, 0.0)

    first, *rest = sorted(Part, key=lambda part: (beyond(part), one.of(part)), reverse=True)
    return [first, *(part for part in rest if beyond(part) >= max(_NEARLY * beyond(first), 1))]


def words(seen: Seen, one: Parts, part: Part, others: Mapping[Part, float]) -> str:
    """What is said of it."""
    took = milliseconds(one.of(part))
    usually = others.get(part, 0.0)
    beyond = f" (usually {milliseconds(usually)})" if usually >= 1e4 else ""
    return {
        Part.HOST: lambda: f"its own code ran for {took}{beyond}",
        Part.CORE: lambda: f"it waited {took} for a core{_had(_most(one.cores))}",
        Part.THROTTLED: lambda: _throttled(seen, took),
        Part.FILES: lambda: f"it waited {took} for {_file(one)}",
        Part.INTERRUPTS: lambda: f"interrupts took its core for {took}{beyond}",
        Part.ASLEEP: lambda: _slept(one, f"for {took}{beyond}"),
        Part.MEMORY: lambda: _refused(seen, one, took),
        Part.HELD: lambda: f"it was kept off the GPU for {took}: {_kept(one)}",
        Part.QUEUE: lambda: f"its own earlier work had the GPU for {took}{_earlier(one)}",
        Part.BEHIND: lambda: f"{_process(seen, _most(one.behind))} had the GPU for {took}",
        Part.SWITCHES: lambda: f"the GPU went over between contexts for {took}{beyond}",
        Part.GPU: lambda: f"its own work took {took} on the GPU{beyond}",
        Part.UNKNOWN: lambda: f"what it did for {took} was not seen: {seen.dropped} events were lost",
    }[part]()


def milliseconds(ns: float) -> str:
    """A time for people."""
    return f"{ns / 1e6:.1f} ms" if ns >= 1e6 else f"{ns / 1e3:.0f} µs"


def _most(by: Mapping[Key, int]) -> Key | None:
    return max(by, key=lambda key: by[key], default=None)


def _had(who: Who | None) -> str:
    if who is None or who.tid == 0:
        return ""
    return f", which {who} had"


def _throttled(seen: Seen, took: str) -> str:
    if seen.throttles:
        return f"its cgroup's quota of processor time (cpu.max) kept it from a free core for {took}"
    return f"it was kept from a free core for {took}"


def _file(one: Parts) -> str:
    if (name := _most(one.files)) and not name.startswith("["):  # [heap], [stack]
        return f"{name} to be read (page fault)"
    if one.modes.get(Mode.FAULT, 0) > one.modes.get(Mode.FILE, 0):
        return "memory of its own (page fault, as where that was swapped out)"
    return "a file to be read or written"


def _kept(one: Parts) -> str:
    why: str | None = _most(one.held)
    return why or "nobody had it, and it is not known why"


def _slept(one: Parts, how_long: str) -> str:
    mode = max(_SLEEPS, key=lambda mode: one.modes.get(mode, 0))
    what, why = _SLEEPS[mode]
    if (waker := _most(one.wakers.get(mode, {}))) is not None and waker.tid:
        what = (
            f"waited for another of its threads, {waker} (futex),"
            if mode is Mode.LOCK
            else f"waited for its memory map, which another of its threads, {waker}, changed {_CHANGES}"
        )
    return f"it {what} {how_long}{why}"


def _refused(seen: Seen, one: Parts, took: str) -> str:
    times = "once" if one.refused == 1 else f"{one.refused} times"
    what = "its memory quota" if seen.quota else "the full GPU"
    return f"{what} refused it memory {times}, and it took {took} until it went on"


def _earlier(one: Parts) -> str:
    if one.request.earlier is None:
        return ""
    return (
        f" (launched up to {milliseconds(one.request.start_ns - one.request.earlier)} before, and waited for by nobody)"
    )


def _process(seen: Seen, pid: int | None) -> str:
    if not pid:
        return "another user's process"
    return seen.process(pid) or f"process {pid}"
