"""Calls of the driver and the requests that they make, and which work was under way when a request began."""

from __future__ import annotations

import heapq
import itertools
import sys
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

from runlist.why.functions import KINDS, NAMES, Kind

SHARED = (0, 1, 2)
"""Streams that mean another one in each thread or context."""
_ALL = -1
"""In place of a stream: all of them."""


class Call(NamedTuple):
    """A call of a thread, not within another one. A launch has no end of its own. `folded` launches came soon after it
    on its stream.
    """

    start_ns: int
    end_ns: int
    tid: int
    function: int
    argument: int = 0
    result: int = 0
    folded: int = 0

    @property
    def kind(self) -> Kind:
        return KINDS[self.function]

    @property
    def name(self) -> str:
        return NAMES[self.function]


@dataclass(slots=True)
class Request:
    """A request, its calls in order and the threads that made them. `earlier` is when work was launched that was still
    under way at its beginning, as far as it was seen: nobody had waited for it; `earlier_done` when somebody had,
    within the request. One that `goes_on` had no end yet when the recording ended. `spent` is what its parts took, once
    that was asked.
    """

    start_ns: int
    end_ns: int
    calls: Sequence[Call]
    lane: int
    tids: Sequence[int] = ()
    earlier: int | None = None
    earlier_done: int | None = None
    launches: int = 0
    goes_on: bool = False
    spent: Sequence[int] | None = None

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.start_ns


def find_earlier_work(found: Sequence[Request], made: Sequence[Call]) -> None:
    """For each request, work of the process that nobody had waited for when it began."""
    under_way = _UnderWay(Waits(made))
    launches = (call for call in made if KINDS[call.function] is Kind.WORK)
    following = next(launches, None)
    for request in found:
        while following is not None and following.start_ns < request.start_ns:
            under_way.launch(following)
            following = next(launches, None)
        under_way.go_to(request.start_ns)
        request.earlier, request.earlier_done = under_way.beside(request)


class _UnderWay:
    """The last launches of threads, by stream, of those that nobody has waited for by now."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._new: dict[tuple[int, int], int] = {}  # by thread and stream, when: not looked at yet
        self._last: dict[tuple[int, int], int] = {}
        self._by_last: list[tuple[int, tuple[int, int]]] = []  # a heap, of which some are over
        self._by_done: list[tuple[int, tuple[int, int], int]] = []  # when each is waited for: those that will be

    def launch(self, call: Call) -> None:
        """Later than what came before."""
        self._new[call.tid, call.argument] = call.start_ns

    def go_to(self, now_ns: int) -> None:
        """What was waited for by now is over."""
        for which, last in self._new.items():
            done = self._waits.done(*which, last)
            self._last[which] = last
            heapq.heappush(self._by_last, (last, which))
            if done is not None:
                insort(self._by_done, (done, which, last))
        self._new.clear()
        over = bisect_right(self._by_done, now_ns, key=itemgetter(0))
        for _, which, last in self._by_done[:over]:
            if self._last.get(which) == last:
                del self._last[which]
        del self._by_done[:over]
        while self._by_last and self._last.get(self._by_last[0][1]) != self._by_last[0][0]:
            heapq.heappop(self._by_last)

    def beside(self, request: Request) -> tuple[int | None, int | None]:
        """When the first of them was launched, and when other threads' work was waited for within a request; None
        where there is none.
        """
        earlier = self._by_last[0][0] if self._by_last else None
        within = bisect_left(self._by_done, request.end_ns, key=itemgetter(0))
        for done, which, last in reversed(self._by_done[:within]):
            if self._last.get(which) == last and which[0] not in request.tids:
                return earlier, done
        return earlier, None


class _FirstEnds:
    """Of waits in order, when the first ended of those that began from a time on."""

    def __init__(self, waits: Sequence[Call]) -> None:
        self._starts = [call.start_ns for call in waits]
        self._ends = list(itertools.accumulate((call.end_ns for call in reversed(waits)), min))
        self._ends.reverse()
        self._ends.append(_NEVER)

    def since(self, time_ns: int) -> int:
        """That time, or never."""
        return self._ends[bisect_left(self._starts, time_ns)]


_NEVER = sys.maxsize
_NONE = _FirstEnds(())


class Waits:
    """Waits for the GPU by what they are for, and by whom they are: each with the earliest end of all from there on."""

    def __init__(self, made: Sequence[Call]) -> None:
        by: dict[int, list[Call]] = {}
        recorded: dict[int, list[Call]] = {}
        for_: dict[int, list[Call]] = {}
        for call in made:
            if KINDS[call.function] not in (Kind.WAIT, Kind.BOTH):
                continue
            stream = _ALL if call.name == "cuCtxSynchronize" else call.argument
            by.setdefault(call.tid, []).append(call)
            for_.setdefault(stream, []).append(call)
            if stream == 0:
                recorded.setdefault(call.tid, []).append(call)
        self._by, self._for, self._recorded = (
            {which: _FirstEnds(calls) for which, calls in waits.items()} for waits in (by, for_, recorded)
        )
        self._all = self._for.get(_ALL, _NONE)

    def done(self, tid: int, stream: int, launched_ns: int) -> int | None:
        """When somebody had waited for all that a thread had launched on a stream until then."""
        first = self._all.since(launched_ns)
        if stream in SHARED:
            first = min(first, self._by.get(tid, _NONE).since(launched_ns))
        else:
            first = min(first, self._recorded.get(tid, _NONE).since(launched_ns))
            first = min(first, self._for.get(stream, _NONE).since(launched_ns))
        return first if first < _NEVER else None
