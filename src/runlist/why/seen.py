"""What was seen of a process, as plain data. All times are CLOCK_MONOTONIC, in ns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from runlist.protocol.why_autogen import Source, What

NO_STACK = 0xFFFFFFFF
_WHAT = {int(what): what for what in What}


class Event(NamedTuple):
    """An event of the kernel's programs, as protocol/why.toml has it."""

    time_ns: int
    what: What
    tid: int
    core: int = 0
    other: int = 0
    value: int = 0
    detail: int = 0
    state: int = 0
    name: str = ""


def event(fields: Sequence[object]) -> Event | None:
    """An event of the fields of EVENT; None for one of a kind that is not known."""
    time_ns, what, tid, core, other, value, detail, state, name = fields[:9]
    known = _WHAT.get(what)  # type: ignore[call-overload]
    if known is None:
        return None
    text = name.split(b"\0", 1)[0].decode("utf-8", "replace")  # type: ignore[attr-defined]
    return Event(time_ns, known, tid, core, other, value, detail, state, text)  # type: ignore[arg-type]


class Who(NamedTuple):
    """A thread of whichever process; 0 is a core's idling."""

    tid: int
    name: str

    def __str__(self) -> str:
        return f"{self.name or 'a thread'} [{self.tid}]"


class Mode(StrEnum):
    """What a thread does."""

    RUNNING = "running"
    WAITING = "waiting for a core"
    THROTTLED = "throttled"  # it may go on, and its core idles
    FAULT = "in a page fault"
    FILE = "reading or writing a file"
    DRIVER = "asleep in the GPU's driver"
    LOCK = "waiting for another thread"
    ANSWER = "waiting for what comes by a socket or a pipe"
    READER = "waiting for who reads its socket or pipe"
    CHILD = "waiting for a child"
    POLL = "waiting for any of several things"
    TIMER = "asleep for a while"
    STOPPED = "stopped"
    RECLAIM = "kept back for its memory"
    ASLEEP = "asleep"
    UNKNOWN = "not seen"


SLEEPS = frozenset({Mode.LOCK, Mode.ANSWER, Mode.READER, Mode.CHILD, Mode.POLL, Mode.TIMER, Mode.ASLEEP})
"""Until something happens, or it is time."""
VOLUNTARY = SLEEPS | {Mode.RUNNING, Mode.DRIVER}
"""What a thread does of its own accord: time in the other modes is taken from it."""


class Turn(NamedTuple):
    """A process on a GPU; process id 0 is another user's."""

    start_ns: int
    end_ns: int
    pid: int


class Pause(NamedTuple):
    """A time in which Runlist kept the process off a GPU, and why, in words."""

    start_ns: int
    end_ns: int
    why: str


class Times:
    """Times in which something was so, from look to look, and why."""

    def __init__(self) -> None:
        self.over: list[Pause] = []
        self._since = 0
        self._why = ""

    def take(self, now_ns: int, why: str) -> None:
        """It is so now, for a reason; or it is not."""
        if bool(why) == bool(self._why):
            return
        if self._why:
            self.over.append(Pause(self._since, now_ns, self._why))
        self._since, self._why = now_ns, why

    def until(self, now_ns: int) -> list[Pause]:
        """These times, the one that lasts until now among them."""
        return [*self.over, Pause(self._since, now_ns, self._why)] if self._why else self.over


class Throttle(NamedTuple):
    """Between two looks, the quota of processor time of the process' cgroup had kept it off cores for so long. That is
    counted when it ends.
    """

    start_ns: int
    end_ns: int
    lost_ns: int


def nothing(_: int) -> str:
    """Where nothing is known of a number."""
    return ""


def asleep(_: int) -> Mode:
    """Where nothing is known of a stack."""
    return Mode.ASLEEP


@dataclass
class Seen:
    """All that was seen of process `pid` between two times. `mode_of` says what a stack in the kernel means, `file_of`
    which file is at an address, `process` who a process is; launches were watched to the end, or until then; in
    `capped` it had a cap, which may have kept it off without a pause that was seen; `refusals` are those of a memory
    quota, by when the daemon told of them.
    """

    pid: int
    start_ns: int
    end_ns: int
    events: Sequence[Event]
    turns: Sequence[Turn] = ()
    pauses: Sequence[Pause] = ()
    capped: Sequence[Pause] = ()
    refusals: int = 0
    quota: bool = False
    throttles: Sequence[Throttle] = ()
    dropped: int = 0
    launches_until: int | None = None
    mode_of: Callable[[int], Mode] = asleep
    file_of: Callable[[int], str] = nothing
    process: Callable[[int], str] = nothing
    names: Mapping[int, str] = field(default_factory=dict)


__all__ = ["Event", "Mode", "Pause", "Seen", "Source", "Turn", "What", "Who", "event"]
