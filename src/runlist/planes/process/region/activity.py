"""What the processes of a region say that they do. They can write anything: numbers are bounded, and nothing else is
concluded from them.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Callable
from functools import lru_cache

import msgspec

from runlist.planes.process.region.format import ACTIVITY, HEADER, SLOT, SLOTS, SLOTS_AT, TAKEN
from runlist.proc.process import names_of, start_of

MAX_COUNT = (1 << 63) - 1
"""The largest number; a larger one in a file is nonsense, and is shown as this."""

LOOK_AGAIN_S = 1.0
"""How long it is believed which slot is a process', or that none is."""

MOST_MOVES = 3
"""How often in that time a process may move to another slot. Then it has none: to look for it is to read them all."""


class Activity(msgspec.Struct, frozen=True):
    """What a process says that it does on the GPUs: `work` it submitted so far, threads `waiting` for a GPU now, how
    long threads waited, and how long they were at work from the first submission after a wait until the next one (ns).
    Requests that it said to be `open` now, how often the last of them `ended`, the `work` that was there `before` it
    last announced some, and how often its `waits` were for something submitted since the one before.
    """

    work: int = 0
    waiting: int = 0
    waited_ns: int = 0
    launching_ns: int = 0
    open: int = 0
    ended: int = 0
    before: int = 0
    waits: int = 0


class _Place(msgspec.Struct, frozen=True):
    """For how long it is believed where a process' slot is (-1: it has none), whose it is there, by identity and start
    time, and how often it moved meanwhile.
    """

    until: float
    at: int = -1
    owner: tuple[int, ...] = ()
    moves: int = 0


class Activities:
    """Finds the slots of processes, and keeps where they are. `read` takes an offset and a size; what it raises goes to
    the caller.
    """

    def __init__(self, read: Callable[[int, int], bytes]) -> None:
        self._read = read
        self._places: dict[int, _Place] = {}

    def of(self, pid: int) -> Activity | None:
        """What a process does; None when it has no slot."""
        place = self._place(pid)
        while place.at >= 0:
            identity, start_time, *numbers = _OWN_LINES.unpack(self._read(place.at, _OWN_LINES.size))
            if (identity, start_time) == place.owner:
                if max(numbers) > MAX_COUNT:
                    numbers = [min(number, MAX_COUNT) for number in numbers]
                return Activity(*numbers)
            # It was taken back: it has another one, or none.
            moves = place.moves + 1
            found = self._find(pid, None, place.until) if moves <= MOST_MOVES else _Place(place.until)
            place = self._places[pid] = msgspec.structs.replace(found, moves=moves)
        return None

    def clients_of(self, pid: int) -> tuple[int, int]:
        """Where in the file's order a process' slot is, and the bits of its clients; (-1, 0) when it has no slot."""
        place = self._place(pid)
        if place.at < 0:
            return -1, 0
        identity, start_time, clients = _CLIENTS.unpack(self._read(place.at, _CLIENTS.size))
        if (identity, start_time) != place.owner:
            return -1, 0
        return (place.at - SLOTS_AT) // SLOT.size, clients

    def watch_at(self, pid: int) -> int | None:
        """Where it is written that a process is watched; None when it has no slot."""
        place = self._place(pid)
        return None if place.at < 0 else place.at + _WATCH_AT

    def _place(self, pid: int) -> _Place:
        now = time.monotonic()
        place = self._places.get(pid)
        if place is None or now >= place.until:
            if len(self._places) >= SLOTS:
                self._places.clear()
            place = self._places[pid] = self._find(pid, place, now + LOOK_AGAIN_S)
        return place

    def _find(self, pid: int, before: _Place | None, until: float) -> _Place:
        """Where the slot of a process is; where it was `before` if it is there still."""
        started = start_of(pid)
        if started is None:
            return _Place(until)
        if before is not None and before.at >= 0:
            owner = _OWNER.unpack(self._read(before.at, _OWNER.size))
            if owner == before.owner and owner[1] == started:
                return msgspec.structs.replace(before, until=until)
        used = int.from_bytes(self._read(HEADER.offsets["slots_used"], 4), "little")
        owners = _OWNERS.iter_unpack(self._read(SLOTS_AT, min(used, SLOTS) * SLOT.size))
        with contextlib.suppress(ProcessLookupError):
            for index, (identity, start_time) in enumerate(owners):
                state, found = identity >> 32, identity & 0xFFFF_FFFF
                if start_time == started and found and state in TAKEN and found in all_names(pid, started):
                    return _Place(until, SLOTS_AT + index * SLOT.size, (identity, started))
        return _Place(until)


@lru_cache(4096)
def all_names(pid: int, started: int) -> tuple[int, ...]:
    """The ids of a process in all its pid namespaces, which stay the same. Raises ProcessLookupError."""
    del started
    names = names_of(pid)
    if not names:
        raise ProcessLookupError
    return names


_OWNER = struct.Struct("<2Q")
_OWNERS = struct.Struct(f"<2Q{SLOT.size - _OWNER.size}x")
_OWN_LINES = struct.Struct(f"<2Q{SLOT.offsets['activity'] - _OWNER.size}x{ACTIVITY.struct.format[1:]}")
"""The beginning of a slot, as far as a look at the activity needs it."""

_CLIENTS = struct.Struct(f"<2Q{SLOT.offsets['clients'] - _OWNER.size}xQ")

_WATCH_AT = SLOT.offsets["watch"]
