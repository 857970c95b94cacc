"""Where the time of a request went: each instant of it belongs to one part, so that the parts add up to the request.

While a thread waits for the GPU, the GPU's switch log says who had it. Else the thread's own mode counts. Two things
are inferred, and said so where they are told: that a GPU that nobody has is kept from the process, and how much of the
GPU's time went to its own earlier work, which is what the request took longer than such requests do.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median

from runlist.why.functions import KINDS, OUT_OF_MEMORY, Kind
from runlist.why.seen import ENDED_BY_A_THREAD, SLEEPS, Mode, Pause, Seen, Turn, Who
from runlist.why.threads import Span, Thread
from runlist.why.under_way import Call, Request

YIELD_NS = 200_000
"""A thread that waits for the GPU may give its core up in between: for a shorter time that is its wait."""
SWITCH_NS = 1_000_000
"""The GPU goes over to another context in less."""


class Part(StrEnum):
    """Where time can go."""

    HOST = "host"
    CORE = "core"
    THROTTLED = "throttled"
    FILES = "files"
    INTERRUPTS = "interrupts"
    ASLEEP = "asleep"
    MEMORY = "memory"
    HELD = "held"
    QUEUE = "queue"
    BEHIND = "behind"
    SWITCHES = "switches"
    GPU = "gpu"
    UNKNOWN = "unknown"


_GPU = list(Part).index(Part.GPU)
_MODES = {
    Mode.RUNNING: Part.HOST,
    Mode.WAITING: Part.CORE,
    Mode.THROTTLED: Part.THROTTLED,
    Mode.FAULT: Part.FILES,
    Mode.FILE: Part.FILES,
    **dict.fromkeys((Mode.DRIVER, Mode.STOPPED, Mode.RECLAIM, Mode.MAPPING, Mode.KERNEL, *SLEEPS), Part.ASLEEP),
    Mode.UNKNOWN: Part.UNKNOWN,
}


@dataclass(slots=True)
class Parts:
    """The parts of one request, in ns, and for some what or who it was, by how long."""

    request: Request
    spent: dict[Part, int] = field(default_factory=dict)
    cores: dict[Who, int] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)
    behind: dict[int, int] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    wakers: dict[Mode, dict[Who, int]] = field(default_factory=dict)
    modes: dict[Mode, int] = field(default_factory=dict)
    refused: int = 0

    def of(self, part: Part) -> int:
        return self.spent.get(part, 0)

    def add(self, part: Part, length_ns: int) -> None:
        self.spent[part] = self.spent.get(part, 0) + length_ns


class Parting:
    """Parts the requests of a process, one when it is asked for: there may be a million, of which few are told of."""

    def __init__(self, seen: Seen, found: Sequence[Request], threads: Mapping[int, Thread]) -> None:
        self._seen = seen
        self._alone: dict[int, list[Request]] = {}  # of each lane, those that find no earlier work
        for each in found:
            if each.earlier is None:
                self._alone.setdefault(each.lane, []).append(each)
        self._threads = threads
        self._turns = _Turns(seen.turns, seen.pid)
        self._pauses, self._capped = _Pauses(seen.pauses), _Pauses(seen.capped)
        self._longest_pause = max(seen.pauses, key=_length, default=None)
        self._usual: dict[int, float | None] = {}

    def of(self, request: Request) -> Parts:
        """The parts of a request."""
        result = self._parts(request)
        own = result.of(Part.GPU)
        if request.earlier is None or not own:
            return result
        # What went to earlier work, until somebody had waited for it, or what such a request takes longer than those
        # without.
        usual = self._usual_gpu(request.lane)
        if usual is not None:
            queued = max(own - round(usual), 0)
        elif request.earlier_done is not None:
            queued = min(own, max(request.earlier_done - request.start_ns, 0))
        else:
            return result
        result.spent[Part.GPU] = own - queued
        result.add(Part.QUEUE, queued)
        return result

    def spent(self, request: Request) -> Sequence[int]:
        """The same in short: what each part took, in their order."""
        if request.spent is None:
            parts = self.of(request).spent
            request.spent = array("q", [parts.get(part, 0) for part in Part])
        return request.spent

    def _usual_gpu(self, lane: int) -> float | None:
        """What requests of a lane that find no earlier work take on the GPU; None where there are none."""
        if lane not in self._usual:
            alone = self._alone.get(lane)
            self._usual[lane] = median(self.spent(each)[_GPU] for each in alone) if alone else None
        return self._usual[lane]

    def _parts(self, request: Request) -> Parts:
        result = Parts(request)
        memory = [call for call in request.calls if KINDS[call.function] is Kind.MEMORY]
        refused = _refused(request, memory) if memory else ()
        result.refused = sum(call.result == OUT_OF_MEMORY for call in memory)
        for start, end, tid, waits in _stretches(request, self._threads):
            if not refused:
                self._stretch(result, self._threads.get(tid), start, end, waits=waits)
                continue
            left = end - start
            for low, high in _without(start, end, refused):
                self._stretch(result, self._threads.get(tid), low, high, waits=waits)
                left -= high - low
            if left:
                result.add(Part.MEMORY, left)
        return result

    def _stretch(self, result: Parts, thread: Thread | None, start: int, end: int, *, waits: bool) -> None:
        at = start
        for span in thread.between(start, end) if thread is not None else ():
            if span.start_ns > at:
                self._unseen(result, at, span.start_ns, waits=waits)
            at = span.end_ns
            if waits and not _has_own_reason(span, thread):
                self._wait(result, span.start_ns, span.end_ns)
                continue
            length = span.end_ns - span.start_ns
            if span.mode is Mode.RUNNING and thread is not None:
                if thread.interrupts and (stolen := thread.interrupted_ns(span.start_ns, span.end_ns)):
                    result.add(Part.INTERRUPTS, stolen)
                    length -= stolen
            elif waits and span.mode is Mode.WAITING:  # whoever else has the GPU meanwhile is the reason
                for low, high, turn in self._turns.between(span.start_ns, span.end_ns):
                    if turn is not None and turn.pid != self._seen.pid:
                        _behind(result, turn.pid, high - low)
                        length -= high - low
            result.add(_MODES[span.mode], length)
            result.modes[span.mode] = result.modes.get(span.mode, 0) + length
            if span.mode is Mode.WAITING:
                result.cores[span.who] = result.cores.get(span.who, 0) + length
            elif span.mode in (Mode.FAULT, Mode.FILE):
                result.files[span.about] = result.files.get(span.about, 0) + length
            elif span.mode in ENDED_BY_A_THREAD:
                wakers = result.wakers.setdefault(span.mode, {})
                wakers[span.who] = wakers.get(span.who, 0) + length
        if at < end:
            self._unseen(result, at, end, waits=waits)

    def _unseen(self, result: Parts, start: int, end: int, *, waits: bool) -> None:
        """Nothing was told of the thread: it waits, if that is what it does, or it ran all along."""
        if waits:
            self._wait(result, start, end)
        else:
            result.add(Part.UNKNOWN if self._seen.dropped else Part.HOST, end - start)

    def _wait(self, result: Parts, start: int, end: int) -> None:
        """Waiting for the GPU: who has it?"""
        for low, high, turn in self._turns.between(start, end):
            if turn is not None:
                if turn.pid == self._seen.pid:
                    result.add(Part.GPU, high - low)
                else:
                    _behind(result, turn.pid, high - low)
                continue
            gap = self._turns.gap(low)
            if gap is None or not self._turns.ours_follows(low):  # nothing is known, or all of ours is done
                paused = 0
                for pause in self._pauses.between(low, high):
                    paused += _hold(result, pause, low, high)
                result.add(Part.GPU, high - low - paused)
            elif gap <= SWITCH_NS:
                result.add(Part.SWITCHES, high - low)
            else:
                self._nobody(result, low, high)

    def _nobody(self, result: Parts, low: int, high: int) -> None:
        """Nobody has the GPU, and our work is on it only later: it is kept off."""
        told = 0
        for pause in self._pauses.between(low, high):
            told += _hold(result, pause, low, high)
        if high - low > told:
            result.add(Part.HELD, high - low - told)
            likely = max(self._capped.between(low, high), key=_length, default=self._longest_pause)
            why = "" if likely is None else likely.why
            result.held[why] = result.held.get(why, 0) + high - low - told


def _stretches(request: Request, threads: Mapping[int, Thread]) -> Iterator[tuple[int, int, int, bool]]:
    """The request from its beginning to its end: who is to be looked at, and whether it waits for the GPU. That is who
    is in a call; where several are, who waits. Between calls it is who makes the next one, unless it sleeps while who
    made the last one does not.
    """
    at = request.start_ns
    previous: Call | None = None
    for call in request.calls:
        kind = KINDS[call.function]
        if call.end_ns <= at and kind is not Kind.WORK:
            continue
        if call.start_ns > at:
            yield from _between(at, call.start_ns, previous, call, threads)
            at = call.start_ns
        end = min(call.end_ns, request.end_ns)
        if end > at:
            yield at, end, call.tid, kind in (Kind.WAIT, Kind.BOTH)
            at = end
        previous = call
    if at < request.end_ns and previous is not None:
        yield at, request.end_ns, previous.tid, False


def _between(
    start: int, end: int, previous: Call | None, following: Call, threads: Mapping[int, Thread]
) -> Iterator[tuple[int, int, int, bool]]:
    one, other = following.tid, following.tid if previous is None else previous.tid
    if one == other or one not in threads:
        yield start, end, one if one in threads else other, False
        return
    asleep = SLEEPS | {Mode.UNKNOWN}
    at = start
    for span in threads[one].between(start, end):
        if span.start_ns > at:
            yield at, span.start_ns, other, False
        yield span.start_ns, span.end_ns, other if span.mode in asleep else one, False
        at = span.end_ns
    if at < end:
        yield at, end, other, False


def _has_own_reason(span: Span, thread: Thread | None) -> bool:
    """Whether a thread that waits for the GPU is kept by something else. A span may be cut: its length is the whole
    one's.
    """
    if span.mode in (Mode.FAULT, Mode.FILE, Mode.THROTTLED, Mode.STOPPED, Mode.RECLAIM, Mode.MAPPING):
        return True
    if span.mode is not Mode.WAITING or thread is None:
        return False
    whole = thread.at(span.start_ns) or span
    return whole.end_ns - whole.start_ns >= YIELD_NS


def _hold(result: Parts, pause: Pause, low: int, high: int) -> int:
    length = min(high, pause.end_ns) - max(low, pause.start_ns)
    result.add(Part.HELD, length)
    result.held[pause.why] = result.held.get(pause.why, 0) + length
    return length


def _behind(result: Parts, pid: int, length: int) -> None:
    result.add(Part.BEHIND, length)
    result.behind[pid] = result.behind.get(pid, 0) + length


def _refused(request: Request, memory: Sequence[Call]) -> list[tuple[int, int]]:
    """From each call that was refused memory to the end of the one that got it, or to where it was given up."""
    found: list[tuple[int, int]] = []
    begun: int | None = None
    last = request.start_ns
    for call in memory:
        if call.result == OUT_OF_MEMORY:
            begun = call.start_ns if begun is None else begun
            last = call.end_ns
        elif begun is not None and call.name != "cuMemFree" and call.result == 0:
            found.append((begun, min(call.end_ns, request.end_ns)))
            begun = None
    if begun is not None:
        found.append((begun, min(last, request.end_ns)))
    return found


def _without(start: int, end: int, cut: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    at = start
    for low, high in cut:
        if high <= at or low >= end:
            continue
        if low > at:
            yield at, low
        at = max(at, high)
    if at < end:
        yield at, end


def _length(pause: Pause) -> int:
    return pause.end_ns - pause.start_ns


class _Pauses:
    """Pauses in order, which do not overlap."""

    def __init__(self, pauses: Sequence[Pause]) -> None:
        self._pauses = pauses
        self._starts = [pause.start_ns for pause in pauses]

    def between(self, start: int, end: int) -> Iterator[Pause]:
        """Those that have a part there."""
        for place in range(max(bisect_right(self._starts, start) - 1, 0), bisect_left(self._starts, end)):
            if self._pauses[place].end_ns > start:
                yield self._pauses[place]


class _Turns:
    """Who had the GPU when."""

    def __init__(self, turns: Sequence[Turn], pid: int) -> None:
        self._turns = sorted(turns)
        self._starts = [turn.start_ns for turn in self._turns]
        self._own = [turn.start_ns for turn in self._turns if turn.pid == pid]
        self._pid = pid

    def between(self, start: int, end: int) -> Iterator[tuple[int, int, Turn | None]]:
        """The time between two, in stretches: the turn, or None for nobody."""
        at = start
        for place in range(max(bisect_right(self._starts, start) - 1, 0), len(self._turns)):
            turn = self._turns[place]
            if turn.start_ns >= end:
                break
            if turn.end_ns <= at:
                continue
            if turn.start_ns > at:
                yield at, turn.start_ns, None
                at = turn.start_ns
            high = min(turn.end_ns, end)
            yield at, high, turn
            at = high
        if at < end:
            yield at, end, None

    def gap(self, time: int) -> int | None:
        """How long nobody had it around a time; None where no turn is known before or after."""
        place = bisect_right(self._starts, time) - 1
        if place < 0 or place + 1 >= len(self._turns):
            return None
        return self._turns[place + 1].start_ns - self._turns[place].end_ns

    def ours_follows(self, time: int) -> bool:
        """Whether the next turn is ours, or another's and then ours: it was still waited for."""
        place = bisect_right(self._starts, time)
        return place < len(self._turns) and bool(self._own) and self._own[-1] >= time
