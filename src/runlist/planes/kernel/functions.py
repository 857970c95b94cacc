"""Where functions are in a library: the places in its file of those that it exports.

The file is somebody's who may mean harm: it may be no file, claim to be endless, or become shorter meanwhile.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Collection, Mapping
from pathlib import Path

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_LOADED, _EXPORTED = 1, 11
_MOST_BYTES = 64 << 20  # of a table
_MOST_PLACE = (1 << 63) - 1
_LONGEST_NAME = 4096
_FUNCTION = 2
_MARK = b"\xf3\x0f\x1e\xfa"  # endbr64, which means nothing on other processors
_MACHINES = {62: "x86_64", 183: "aarch64"}


def places(path: Path, wanted: Collection[str]) -> Mapping[str, int]:
    """The place in a library's file of each function of these names that it has. Raises ValueError for a file that is
    no library of this processor, of 64 bits, OSError for one that cannot be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("it is no file")
        return _places(fd, {name.encode(): name for name in wanted})
    except (struct.error, IndexError) as error:
        raise ValueError(f"it is damaged: {error}") from None
    finally:
        os.close(fd)


def _places(fd: int, wanted: Mapping[bytes, str]) -> Mapping[str, int]:
    start = os.pread(fd, _HEADER.size, 0)
    if not start:
        raise ValueError("it is empty")
    if start[:4] != b"\x7fELF":
        raise ValueError("it is no library")
    if start[4:6] != b"\x02\x01":
        raise ValueError("it is of 32 bits")
    header = _HEADER.unpack(start)
    if header[2] not in _MACHINES:
        raise ValueError("it is for another processor")
    segments = _table(fd, _SEGMENT, header[5], header[9], header[10])
    sections = _table(fd, _SECTION, header[6], header[11], header[12])
    section = next((each for each in sections if each[1] == _EXPORTED), None)  # there is one at most
    if section is None:
        return {}
    names = sections[section[6]]
    table = _read(fd, section[4], section[5] // _SYMBOL.size * _SYMBOL.size)
    texts = _read(fd, names[4], names[5])
    found: dict[str, int] = {}
    for at, info, _, index, value, _ in _SYMBOL.iter_unpack(table):
        if info & 0xF != _FUNCTION or index == 0:
            continue
        name = wanted.get(texts[at : texts.index(b"\0", at, at + _LONGEST_NAME)])
        if name is not None:
            found[name] = _behind_mark(fd, _in_file(segments, value))
    return found


def _table(fd: int, structure: struct.Struct, at: int, each: int, count: int) -> list[tuple[int, ...]]:
    data = _read(fd, at, each * count)
    return [structure.unpack_from(data, number * each) for number in range(count)]


def _read(fd: int, at: int, size: int) -> bytes:
    """A part of a file, all of it. Raises ValueError."""
    if size > _MOST_BYTES:
        raise ValueError(f"a table of it has {size} bytes")
    data = os.pread(fd, size, at) if at <= _MOST_PLACE else b""
    if len(data) < size:
        raise ValueError("a table of it is not there")
    return data


def is_stepped_over(path: Path, place: int) -> bool:
    """Whether the kernel has the processor step over a function's first instruction, instead of doing that itself: it
    does pushes, nops, calls and jumps.
    """
    with path.open("rb") as file:
        file.seek(place)
        first = file.read(2)
    if os.uname().machine != "x86_64":
        return False
    register = first[1:] if first[:1] == b"\x41" else first[:1]
    pushes = bool(register) and 0x50 <= register[0] <= 0x57
    return not (pushes or first[:1] in (b"\x90", b"\xe8", b"\xe9", b"\xeb") or first in (b"\x66\x90", b"\x0f\x1f"))


def _behind_mark(fd: int, place: int) -> int:
    """Where a function is watched: behind the mark that it may be jumped to, if it has one. The kernel does what a
    `push` does by itself, but has the processor step over such a mark, which takes ten times as long.
    """
    return place + len(_MARK) if os.pread(fd, len(_MARK), place) == _MARK else place


def _in_file(segments: list[tuple[int, ...]], address: int) -> int:
    for kind, _, offset, start, _, size, _, _ in segments:
        if kind == _LOADED and start <= address < start + size and offset + size <= _MOST_PLACE:
            return address - start + offset
    raise ValueError(f"nothing of it is at {address:#x}")
