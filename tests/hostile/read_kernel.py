"""Readers of what the kernel's programs tell: the ring, its events, and the file that the programs are in; and of the
libraries of others in which functions are watched.
"""

from __future__ import annotations

import struct
from pathlib import Path

from runlist.planes.kernel import events, functions, program
from runlist.planes.kernel.loading import read_object
from runlist.planes.kernel.maps import STRUCTURES
from runlist.planes.kernel.ring import BrokenRing, next_record
from runlist.protocol.kernel_autogen import Kind, What
from tests.fixtures.mutation import Records
from tests.hostile.reader import Reader

_SIZE = 4096
_HEAD = 16  # both positions, before the ring


def kernel_events(_: Path) -> Reader:
    good = [
        bytes(STRUCTURES["EVENT"].pack(what=what, kind=kind, pid=77, fd=-1, time_ns=1 << 60, name=b"worker"))
        for what in What
        for kind in (Kind.OTHER, Kind.GROUP)
    ]

    def read(record: bytes) -> None:
        event = events.read(record)
        assert isinstance(event.what, What)
        assert isinstance(event.kind, Kind)
        assert struct.unpack_from("<I", record, 24) == (event.pid,)
        assert len(event.name) <= 16

    return Reader(Records(good, "kernel events"), read, (ValueError,))


def kernel_ring(_: Path) -> Reader:
    """Two positions and a ring behind them: whatever they are, the reader stays within it, and comes to an end."""
    record = struct.pack("<II", 72, 0) + bytes(72)
    thrown = struct.pack("<II", 8 | 1 << 30, 0) + bytes(8)
    busy = struct.pack("<II", 72 | 1 << 31, 0) + bytes(72)
    good = [
        struct.pack("<QQ", begin, begin + len(body)) + body.ljust(_SIZE, b"\0")
        for begin in (0, _SIZE * 9)
        for body in (record * 3, record + thrown + record, record + busy, b"")
    ]

    def read(data: bytes) -> None:
        data = data[: _HEAD + _SIZE].ljust(_HEAD + _SIZE, b"\0")
        at, end = struct.unpack_from("<QQ", data)
        ring = data[_HEAD:]
        taken = 0
        while (step := next_record(ring, _SIZE, at, end)) is not None:
            before = at
            at, found = step
            assert before < at <= end
            taken += len(found or b"")
        assert taken <= _SIZE

    return Reader(Records(good, "kernel ring", front=160), read, (BrokenRing,))


def kernel_object(_: Path) -> Reader:
    whole = read_object()

    def read(data: bytes) -> None:
        programs, licence = program.read(data)
        assert licence.isascii()
        for each in programs:
            assert len(each.instructions) % 8 == 0
            places = {name.removeprefix(program.PLACE): 8 for name in each.maps.values()}
            each.with_maps(dict.fromkeys(each.maps.values(), 3), places)

    return Reader(Records([whole], "kernel object", front=len(whole)), read, (ValueError,))


def library(function: bytes = b"cuInit", place: int = 0x140) -> bytes:
    """A library of 64 bits that exports one function, at that place of its file."""
    names = b"\0" + function + b"\0"
    symbols = bytes(24) + struct.pack("<IBBHQQ", 1, 0x12, 0, 1, place, 8)
    body = names.ljust(32, b"\0") + symbols
    at = 64 + 56 + 3 * 64
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 64, 120, 0, 64, 56, 1, 64, 3, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, at + len(body), at + len(body), 4096)
    sections = [
        bytes(64),
        struct.pack("<IIQQQQIIQQ", 0, 11, 2, 0, at + 32, len(symbols), 2, 1, 8, 24),
        struct.pack("<IIQQQQIIQQ", 0, 3, 2, 0, at, len(names), 0, 0, 1, 0),
    ]
    return b"".join([header, segment, *sections, body])


def library_watched(folder: Path) -> Reader:
    path = folder / "library"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        found = functions.places(path, ["cuInit", "cuMemAlloc_v2"])
        assert all(0 <= place < 1 << 63 for place in found.values())

    whole = library()
    return Reader(Records([whole], "library", front=len(whole)), read, (ValueError, OSError))
