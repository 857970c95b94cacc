"""What each thread did, and when: of what the kernel told, in the order of time, with what is missing left open."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from runlist.protocol.why_autogen import RUNNABLE_PREEMPTED, What
from runlist.why.seen import NO_STACK, Event, Mode, Seen, Who

IDLE = Who(0, "nobody")
STOPPED, TRACED = 4, 8
"""States of threads that a signal, or a debugger, has stopped."""
AGAIN_NS = 200_000
"""A thread that waits for the same once more does so sooner."""
THROTTLE_NS = 1_000_000
"""A thread that could go on for so long while its core idles is kept from it."""


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
    """What one thread did: spans without gaps from the first event to the end, in order."""

    def __init__(self, spans: Sequence[Span], interrupts: Sequence[Interrupt]) -> None:
        self.spans = spans
        self.interrupts = interrupts
        self._starts = [span.start_ns for span in spans]
        self._interrupted = [each.start_ns for each in interrupts]

    def at(self, time_ns: int) -> Span | None:
        """What it did at a time, if that was seen."""
        place = bisect_right(self._starts, time_ns) - 1
        if place < 0 or self.spans[place].end_ns <= time_ns:
            return None
        return self.spans[place]

    def between(self, start_ns: int, end_ns: int) -> Iterator[Span]:
        """The spans that have a part there, cut to it."""
        for place in range(max(bisect_right(self._starts, start_ns) - 1, 0), len(self.spans)):
            span = self.spans[place]
            if span.start_ns >= end_ns:
                return
            if span.end_ns > start_ns:
                yield span._replace(start_ns=max(span.start_ns, start_ns), end_ns=min(span.end_ns, end_ns))

    def interrupts_between(self, start_ns: int, end_ns: int) -> Iterator[Interrupt]:
        """The same of interrupts, which do not overlap."""
        for place in range(max(bisect_right(self._interrupted, start_ns) - 1, 0), len(self.interrupts)):
            each = self.interrupts[place]
            if each.start_ns >= end_ns:
                return
            if each.end_ns > start_ns:
                yield Interrupt(max(each.start_ns, start_ns), min(each.end_ns, end_ns))


def threads(seen: Seen) -> dict[int, Thread]:
    """Every thread that anything was told of."""
    events: dict[int, list[Event]] = {}
    cores: dict[int, list[Event]] = {}
    for event in sorted(seen.events, key=lambda event: event.time_ns):
        if event.what is What.RUNS:
            cores.setdefault(event.core, []).append(event)
        else:
            events.setdefault(event.tid, []).append(event)
    names = {event.other: event.name for event in seen.events if event.name}
    known = {tid: Who(tid, names.get(tid, "")) for tid in events}
    return {tid: _thread(own, seen, cores, known) for tid, own in events.items()}


def _thread(
    events: Sequence[Event], seen: Seen, cores: Mapping[int, Sequence[Event]], known: Mapping[int, Who]
) -> Thread:
    building = _Building(seen, cores, known)
    for event in events:
        building.take(event)
    building.go_to(seen.end_ns)
    interrupts = sorted(
        Interrupt(event.time_ns - event.value, event.time_ns) for event in events if event.what is What.INTERRUPT
    )
    return Thread(building.spans, list(_apart(interrupts)))


def _apart(interrupts: Iterable[Interrupt]) -> Iterator[Interrupt]:
    """Interrupts of interrupts are within them: each time counts once."""
    until = 0
    for each in interrupts:
        start = max(each.start_ns, until)
        if start < each.end_ns:
            yield Interrupt(start, each.end_ns)
            until = each.end_ns


class _Building:
    """The spans of one thread, under way."""

    def __init__(self, seen: Seen, cores: Mapping[int, Sequence[Event]], known: Mapping[int, Who]) -> None:
        self.spans: list[Span] = []
        self._seen = seen
        self._cores = cores
        self._threads = known
        self._core = 0
        self._since = seen.start_ns
        self._mode: Mode | None = None  # nothing was told yet
        self._who = IDLE
        self._about = ""

    def take(self, event: Event) -> None:
        """Go on with the next event."""
        steps: dict[What, Callable[[Event], None]] = {
            What.OUT: self._out, What.IN: self._in, What.WAKE: self._wake,
            What.CALL: self._ran, What.RETURN: self._ran, What.INTERRUPT: self._ran,
        }  # fmt: skip
        steps[event.what](event)

    def go_to(self, end_ns: int) -> None:
        """Nothing more was told until then."""
        if self._mode is not None:
            self._end(end_ns, self._mode)

    def _out(self, event: Event) -> None:
        # Where it was not on a core as far as we know, it got there unseen. One that slept did so until shortly before:
        # who runs for long is interrupted.
        unseen = Mode.UNKNOWN if self._mode is Mode.WAITING else self._mode
        self._end(event.time_ns, unseen or Mode.RUNNING)
        if event.state in (0, RUNNABLE_PREEMPTED):
            self._core = event.core
            self._begin(Mode.WAITING, Who(event.other, event.name))
        else:
            mode = Mode.ASLEEP if event.detail == NO_STACK else self._seen.mode_of(event.detail)
            mode = Mode.STOPPED if event.state & (STOPPED | TRACED) else mode
            file = self._seen.file_of(event.value) if mode is Mode.FAULT and event.value else ""
            self._begin(mode, IDLE, file)

    def _let_go(self, waker: Who) -> None:
        """A thread of the process let go of a lock. Who waits for one by a timer, again and again, as Python's threads
        do for the interpreter, waited for that all the time.
        """
        for place in range(len(self.spans) - 2, -1, -1):
            span = self.spans[place]
            if span.mode is Mode.LOCK and span.who.tid == 0:
                self.spans[place] = span._replace(who=waker)
            elif span.mode not in (Mode.RUNNING, Mode.WAITING) or span.end_ns - span.start_ns >= AGAIN_NS:
                return

    def _in(self, event: Event) -> None:
        # Where it ran already, it left its core unseen; where it slept, its waking was not seen.
        self._end(event.time_ns, Mode.UNKNOWN if self._mode in (None, Mode.RUNNING) else self._mode or Mode.UNKNOWN)
        self._begin(Mode.RUNNING, IDLE)

    def _wake(self, event: Event) -> None:
        if self._mode in (Mode.RUNNING, Mode.WAITING):  # before it could sleep; or again
            return
        waker = self._threads.get(event.value, IDLE) if self._mode is Mode.LOCK else IDLE
        self._who = waker
        self._end(event.time_ns, self._mode or Mode.ASLEEP)
        if waker.tid:
            self._let_go(waker)
        self._core = event.core
        self._begin(Mode.WAITING, Who(event.other, event.name))

    def _ran(self, event: Event) -> None:
        """It must be on a core to call anything, or to be interrupted."""
        if self._mode is Mode.RUNNING:
            return
        began = event.time_ns - (event.value if event.what is What.INTERRUPT else 0)
        # That it got its core was not seen. Who runs is interrupted often, or calls something: it was not long ago.
        self._end(max(began, self._since), self._mode or Mode.RUNNING)
        self._begin(Mode.RUNNING, IDLE)

    def _begin(self, mode: Mode, who: Who, about: str = "") -> None:
        self._mode, self._who, self._about = mode, who, about

    def _wait(self, end_ns: int) -> None:
        """A wait for a core is over, in parts by who had it. A core that idled meanwhile was not what it waited for,
        and no more is another thread's, where its cgroup's quota says that it was kept off cores for most of that time.
        """
        waits: list[Span] = []
        at, who = self._since, self._who
        told = self._cores.get(self._core, ())
        # Who has it when the wait begins may have had it for a while.
        for event in told[max(bisect_right(told, at, key=lambda event: event.time_ns) - 1, 0) :]:
            if event.time_ns >= end_ns:
                break
            if event.time_ns + event.value <= at:
                continue
            if event.time_ns > at:
                waits.append(Span(at, event.time_ns, Mode.WAITING, who))
                at = event.time_ns
            who = Who(event.other, event.name)
        waits.append(Span(at, end_ns, Mode.WAITING, who))
        length = end_ns - self._since
        idle = sum(wait.end_ns - wait.start_ns for wait in waits if wait.who.tid == 0)
        lost = sum(
            each.lost_ns for each in self._seen.throttles if each.start_ns <= end_ns and each.end_ns >= self._since
        )
        wholly = length >= THROTTLE_NS and 2 * lost >= length
        for wait in waits:
            throttled = wholly or (idle >= THROTTLE_NS and wait.who.tid == 0)
            self.spans.append(wait._replace(mode=Mode.THROTTLED) if throttled else wait)

    def _end(self, end_ns: int, mode: Mode) -> None:
        if end_ns <= self._since:
            return
        if mode is Mode.WAITING:
            self._wait(end_ns)
        else:
            self.spans.append(Span(self._since, end_ns, mode, self._who, self._about))
        self._since = end_ns
