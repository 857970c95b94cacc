"""Calls of the driver and the requests that they make, and which work was under way when a request began."""

from __future__ import annotations

import heapq
import itertools
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


class Waits:
    """Waits for the GPU by what they are for, and by whom they are: each with the earliest end of all from there on."""

    def __init__(self, made: Sequence[Call]) -> None:
        waits: dict[tuple[str, int], list[Call]] = {}
        for call in made:
            if call.kind not in (Kind.WAIT, Kind.BOTH):
                continue
            stream = _ALL if call.name == "cuCtxSynchronize" else call.argument
            for what in (("by", call.tid), ("for", stream), *([("what was recorded by", call.tid)] * (stream == 0))):
                waits.setdefault(what, []).append(call)
        self._starts = {what: [call.start_ns for call in calls] for what, calls in waits.items()}
        self._ends = {
            what: list(itertools.accumulate((call.end_ns for call in reversed(calls)), min))
            for what, calls in waits.items()
        }

    def done(self, tid: int, stream: int, launched_ns: int) -> int | None:
        """When somebody had waited for all that a thread had launched on a stream until then."""
        own = ("by", tid) if stream in SHARED else ("what was recorded by", tid)
        every = [own, ("for", _ALL), *([] if stream in SHARED else [("for", stream)])]
        ends = [self._end(what, launched_ns) for what in every]
        return min((end for end in ends if end is not None), default=None)

    def _end(self, what: tuple[str, int], time_ns: int) -> int | None:
        """When the first of these that began from then on ended."""
        starts = self._starts.get(what, [])
        place = bisect_left(starts, time_ns)
        return self._ends[what][len(starts) - 1 - place] if place < len(starts) else None
