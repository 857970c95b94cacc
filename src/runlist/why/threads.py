"""What each thread did, and when: of what the kernel told, in the order of time, with what is missing left open."""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from runlist.protocol.why_autogen import RUNNABLE_PREEMPTED, What
from runlist.why.seen import ENDED_BY_A_THREAD, NO_STACK, Mode, Row, Seen, Who, text

IDLE = Who(0, "nobody")
STOPPED, TRACED = 4, 8
"""States of threads that a signal, or a debugger, has stopped."""
AGAIN_NS = 200_000
"""A thread that waits for the same once more does so sooner."""
THROTTLE_NS = 1_000_000
"""A thread that could go on for so long while its core idles is kept from it."""
_OUT, _IN, _WAKE, _INTERRUPT = map(int, (What.OUT, What.IN, What.WAKE, What.INTERRUPT))  # much quicker to compare


class Span(NamedTuple):
    """A thread in one mode. `who` has the core that it waits for, or is another thread of the process that ended its
    wait; `about` is a file that it waits for.
    """

    start_ns: int
    end_ns: int
    mode: Mode
    who: Who = IDLE
    about: str = ""


class Interrupt(NamedTuple):
    """A time in which a thread's core did something else."""

    start_ns: int
    end_ns: int


class Thread:
    """What one thread did: spans without gaps from the first event to the end, in order. There may be millions: each is
    made as it is asked for.
    """

    def __init__(self) -> None:
        self.interrupts: Sequence[Interrupt] = ()
        self._starts = array("q")
        self._end_ns = 0
        self._modes: list[Mode] = []
        self._who: dict[int, Who] = {}  # of some spans, by their places
        self._about: dict[int, str] = {}
        self._interrupted: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self._modes)

    @property
    def spans(self) -> Iterator[Span]:
        """All of them."""
        return map(self._span, range(len(self._modes)))

    def at(self, time_ns: int) -> Span | None:
        """What it did at a time, if that was seen."""
        place = bisect_right(self._starts, time_ns) - 1
        return None if place < 0 or self._end_ns <= time_ns else self._span(place)

    def between(self, start_ns: int, end_ns: int) -> Iterator[Span]:
        """The spans that have a part there, cut to it."""
        starts, modes, who, about = self._starts, self._modes, self._who, self._about
        until = min(end_ns, self._end_ns)
        place = max(bisect_right(starts, start_ns) - 1, 0)
        last = len(modes) - 1
        while place <= last and (start := starts[place]) < until:
            end = min(starts[place + 1], until) if place < last else until
            yield Span(max(start, start_ns), end, modes[place], who.get(place, IDLE), about.get(place, ""))
            place += 1

    def time_in(self, start_ns: int, end_ns: int, modes: Container[Mode]) -> int:
        """How long it was in one of these modes there."""
        return sum(end - start for start, end, mode, _, _ in self.between(start_ns, end_ns) if mode in modes)

    def interrupted_ns(self, start_ns: int, end_ns: int) -> int:
        """How long interrupts, which do not overlap, took there."""
        taken = 0
        for place in range(max(bisect_right(self._interrupted, start_ns) - 1, 0), len(self.interrupts)):
            each = self.interrupts[place]
            if each.start_ns >= end_ns:
                break
            taken += max(min(each.end_ns, end_ns) - max(each.start_ns, start_ns), 0)
        return taken

    def add(self, start_ns: int, end_ns: int, mode: Mode, who: Who = IDLE, about: str = "") -> None:
        """One more span, which begins where the last one ends."""
        if who is not IDLE:
            self._who[len(self._modes)] = who
        if about:
            self._about[len(self._modes)] = about
        self._starts.append(start_ns)
        self._modes.append(mode)
        self._end_ns = end_ns

    def interrupt(self, interrupts: Iterable[Interrupt]) -> None:
        """All of its interrupts."""
        self.interrupts = list(_apart(sorted(interrupts)))
        self._interrupted = array("q", (each.start_ns for each in self.interrupts))

    def let_go(self, waker: Who) -> None:
        """A thread of the process let go of a lock. Who waits for one by a timer, again and again, as Python's threads
        do for the interpreter, waited for that all the time.
        """
        for place in range(len(self._modes) - 2, -1, -1):
            mode = self._modes[place]
            if mode is Mode.LOCK and self._who.get(place, IDLE).tid == 0:
                self._who[place] = waker
            elif mode not in (Mode.RUNNING, Mode.WAITING) or self._starts[place + 1] - self._starts[place] >= AGAIN_NS:
                return

    def _span(self, place: int) -> Span:
        end = self._starts[place + 1] if place + 1 < len(self._modes) else self._end_ns
        return Span(
            self._starts[place], end, self._modes[place], self._who.get(place, IDLE), self._about.get(place, "")
        )


def threads(seen: Seen) -> dict[int, Thread]:
    """Every thread that anything was told of."""
    names = {tid: text(name) for tid, name in seen.events.names.items()}
    known = {tid: Who(tid, names.get(tid, "")) for tid in seen.events.threads()}
    cores = {core: _Core(told) for core, told in seen.events.of_cores().items()}
    throttling = _Throttling(seen)
    return {tid: _Building(seen, cores, known, throttling).build(tid) for tid in known}


def _apart(interrupts: Iterable[Interrupt]) -> Iterator[Interrupt]:
    """Interrupts of interrupts are within them: each time counts once."""
    until = 0
    for each in interrupts:
        start = max(each.start_ns, until)
        if start < each.end_ns:
            yield Interrupt(start, each.end_ns)
            until = each.end_ns


class _Core:
    """Who had a core while threads waited for it."""

    def __init__(self, told: Sequence[Row]) -> None:
        self.told = told
        self.times = [row[0] for row in told]


class _Throttling:
    """How long the quota of processor time kept the process off cores."""

    def __init__(self, seen: Seen) -> None:
        by_start = sorted((each.start_ns, each.lost_ns) for each in seen.throttles)
        by_end = sorted((each.end_ns, each.lost_ns) for each in seen.throttles)
        self._starts, self._ends = ([time for time, _ in each] for each in (by_start, by_end))
        self._begun, self._over = ([0, *itertools.accumulate(lost for _, lost in each)] for each in (by_start, by_end))

    def lost_ns(self, start_ns: int, end_ns: int) -> int:
        """In all looks that have a part of that time."""
        return self._begun[bisect_right(self._starts, end_ns)] - self._over[bisect_left(self._ends, start_ns)]


class _Building:
    """The spans of one thread, under way."""

    def __init__(
        self, seen: Seen, cores: Mapping[int, _Core], known: Mapping[int, Who], throttling: _Throttling
    ) -> None:
        self._thread = Thread()
        self._seen = seen
        self._cores = cores
        self._threads = known
        self._throttling = throttling
        self._core = 0
        self._since = seen.start_ns
        self._mode: Mode | None = None  # nothing was told yet
        self._who = IDLE
        self._about = ""
        self._others: dict[tuple[int, bytes], Who] = {}

    def build(self, tid: int) -> Thread:
        """Go through all that was told of it."""
        interrupts = []
        for row in self._seen.events.of_thread(tid):
            time, what, _, core, other, value, detail, state, name, _ = row
            if what == _OUT:
                self._out(time, core, other, value, detail, state, name)
            elif what == _IN:
                self._in(time)
            elif what == _WAKE:
                self._wake(time, core, other, value, name)
            else:
                if what == _INTERRUPT:
                    interrupts.append(Interrupt(time - value, time))
                if self._mode is not Mode.RUNNING:
                    self._ran(time - value if what == _INTERRUPT else time)
        if self._mode is not None:  # nothing more was told until then
            self._end(self._seen.end_ns, self._mode)
        self._thread.interrupt(interrupts)
        return self._thread

    def _out(self, time: int, core: int, other: int, fault: int, stack: int, state: int, name: bytes) -> None:
        # Where it was not on a core as far as we know, it got there unseen. One that slept did so until shortly before:
        # who runs for long is interrupted.
        unseen = Mode.UNKNOWN if self._mode is Mode.WAITING else self._mode
        self._end(time, unseen or Mode.RUNNING)
        if state in (0, RUNNABLE_PREEMPTED):
            self._core = core
            self._begin(Mode.WAITING, self._other(other, name))
        else:
            mode = Mode.ASLEEP if stack == NO_STACK else self._seen.mode_of(stack)
            mode = Mode.STOPPED if state & (STOPPED | TRACED) else mode
            self._begin(mode, IDLE, self._seen.file_of(fault) if mode is Mode.FAULT and fault else "")

    def _in(self, time: int) -> None:
        # Where it ran already, it left its core unseen; where it slept, its waking was not seen.
        self._end(time, Mode.UNKNOWN if self._mode in (None, Mode.RUNNING) else self._mode or Mode.UNKNOWN)
        self._begin(Mode.RUNNING, IDLE)

    def _wake(self, time: int, core: int, other: int, by: int, name: bytes) -> None:
        if self._mode in (Mode.RUNNING, Mode.WAITING):  # before it could sleep; or again
            return
        waker = self._threads.get(by, IDLE) if self._mode in ENDED_BY_A_THREAD else IDLE
        self._who = waker
        self._end(time, self._mode or Mode.ASLEEP)
        if waker.tid and self._mode is Mode.LOCK:
            self._thread.let_go(waker)
        self._core = core
        self._begin(Mode.WAITING, self._other(other, name))

    def _ran(self, began: int) -> None:
        """It must be on a core to call anything, or to be interrupted."""
        # That it got its core was not seen. Who runs is interrupted often, or calls something: it was not long ago.
        self._end(max(began, self._since), self._mode or Mode.RUNNING)
        self._begin(Mode.RUNNING, IDLE)

    def _begin(self, mode: Mode, who: Who, about: str = "") -> None:
        self._mode, self._who, self._about = mode, who, about

    def _other(self, tid: int, name: bytes) -> Who:
        if (known := self._others.get((tid, name))) is None:
            known = self._others[tid, name] = Who(tid, text(name))
        return known

    def _wait(self, end_ns: int) -> None:
        """A wait for a core is over, in parts by who had it. A core that idled meanwhile was not what it waited for,
        and no more is another thread's, where its cgroup's quota says that it was kept off cores for most of that time.
        """
        waits: list[tuple[int, int, Who]] = []
        at, who = self._since, self._who
        if (core := self._cores.get(self._core)) is not None:
            # Who has it when the wait begins may have had it for a while.
            first = max(bisect_right(core.times, at) - 1, 0)
            for place in range(first, bisect_left(core.times, end_ns, first)):
                time, _, _, _, other, length, _, _, name, _ = core.told[place]
                if time + length <= at:
                    continue
                if time > at:
                    waits.append((at, time, who))
                    at = time
                who = self._other(other, name)
        waits.append((at, end_ns, who))
        length = end_ns - self._since
        idle = sum(end - start for start, end, who in waits if who.tid == 0)
        wholly = length >= THROTTLE_NS and 2 * self._throttling.lost_ns(self._since, end_ns) >= length
        for start, end, who in waits:
            throttled = wholly or (idle >= THROTTLE_NS and who.tid == 0)
            self._thread.add(start, end, Mode.THROTTLED if throttled else Mode.WAITING, who)

    def _end(self, end_ns: int, mode: Mode) -> None:
        if end_ns <= self._since:
            return
        if mode is Mode.WAITING:
            self._wait(end_ns)
        else:
            self._thread.add(self._since, end_ns, mode, self._who, self._about)
        self._since = end_ns
