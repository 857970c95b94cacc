"""What was seen of a process, as plain data. All times are CLOCK_MONOTONIC, in ns."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from operator import le
from typing import NamedTuple

from runlist.protocol.why_autogen import NAME_BYTES, STRUCTS, What
from runlist.structure import Structure

NO_STACK = 0xFFFFFFFF
_EVENT = Structure(STRUCTS["EVENT"])
_KINDS = frozenset(map(int, What))
_RETURN, _RUNS = int(What.RETURN), int(What.RUNS)
_HEAD = struct.Struct("<IIII")  # what, tid, core and other
_WHAT_AT, _NAME_AT = _EVENT.offsets["what"], _EVENT.offsets["name"]
_NAME_ENDS = _NAME_AT + NAME_BYTES
_WORDS = _EVENT.size // 8

Row = tuple[int, int, int, int, int, int, int, int, bytes, int]
"""An event: its time in ns, what, tid, core, other, value, detail, state, the name of the other and nothing, as
protocol/why.toml has them.
"""


class Events:
    """What the kernel's programs told, by thread, as they wrote it: there may be millions."""

    def __init__(self) -> None:
        self.names: dict[int, bytes] = {}
        """Of all threads that were named, as they were at last."""
        self.ends = 0
        """How many calls came back."""
        self._number = 0
        self._threads: dict[int, bytearray] = {}
        self._cores: dict[int, bytearray] = {}

    def __len__(self) -> int:
        return self._number

    def add(self, record: bytes) -> None:
        """Take an event. One of a kind that is not known, or of another length, is nothing."""
        if len(record) != _EVENT.size:
            return
        what, tid, core, other = _HEAD.unpack_from(record, _WHAT_AT)
        if what not in _KINDS:
            return
        self._number += 1
        self.ends += what == _RETURN
        where, which = (self._cores, core) if what == _RUNS else (self._threads, tid)
        if (told := where.get(which)) is None:
            told = where[which] = bytearray()
        told += record
        if record[_NAME_AT]:
            self.names[other] = record[_NAME_AT:_NAME_ENDS]

    def threads(self) -> Collection[int]:
        """Those of the process of which anything was told."""
        return self._threads.keys()

    def of_thread(self, tid: int) -> Iterator[Row]:
        """What was told of a thread, in the order of time."""
        return _in_order(self._threads[tid])

    def of_cores(self) -> dict[int, list[Row]]:
        """Who had the cores that threads waited for, by core, in the order of time."""
        return {core: list(_in_order(told)) for core, told in self._cores.items()}


def _times(told: bytearray) -> memoryview:
    return memoryview(told).cast("Q")[::_WORDS]


def _in_order(told: bytearray) -> Iterator[Row]:
    times = _times(told).tolist()
    if all(map(le, times, islice(times, 1, None))):  # what comes late is rare
        del times
        yield from _EVENT.struct.iter_unpack(told)
        return
    for place in sorted(range(len(times)), key=times.__getitem__):
        yield _EVENT.struct.unpack_from(told, place * _EVENT.size)


def text(name: bytes) -> str:
    """A name as the kernel has it, for people."""
    return name.split(b"\0", 1)[0].decode("utf-8", "replace")


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
    MAPPING = "waiting for its memory map"
    ANSWER = "waiting for what comes by a socket or a pipe"
    READER = "waiting for who reads its socket or pipe"
    CHILD = "waiting for a child"
    POLL = "waiting for any of several things"
    TIMER = "asleep for a while"
    FILE_LOCK = "waiting for a lock on a file"
    SEMAPHORE = "waiting for a semaphore"
    KERNEL = "waiting in the kernel"
    STOPPED = "stopped"
    RECLAIM = "kept back for its memory"
    ASLEEP = "asleep"
    UNKNOWN = "not seen"


SLEEPS = frozenset(
    {
        Mode.LOCK, Mode.ANSWER, Mode.READER, Mode.CHILD, Mode.POLL, Mode.TIMER, Mode.FILE_LOCK, Mode.SEMAPHORE,
        Mode.ASLEEP,
    }
)  # fmt: skip
"""Until something happens, or it is time."""
ENDED_BY_A_THREAD = frozenset({Mode.LOCK, Mode.MAPPING})
"""Of the process, perhaps."""
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
    events: Events
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
