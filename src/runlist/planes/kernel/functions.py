"""Where functions are in a library: the places in its file of those that it exports."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Collection, Mapping
from pathlib import Path

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_LOADED, _EXPORTED = 1, 11
_FUNCTION = 2
_MARK = b"\xf3\x0f\x1e\xfa"  # endbr64, which means nothing on other processors
_MACHINES = {62: "x86_64", 183: "aarch64"}


def places(path: Path, wanted: Collection[str]) -> Mapping[str, int]:
    """The place in a library's file of each function of these names that it has. Raises ValueError for a file that is
    no library of this processor, of 64 bits, OSError for one that cannot be read.
    """
    with path.open("rb") as file:
        try:
            data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        except ValueError:
            raise ValueError("it is empty") from None
        with data:
            try:
                return _places(data, {name.encode(): name for name in wanted})
            except (struct.error, IndexError) as error:
                raise ValueError(f"it is damaged: {error}") from None


def _places(data: mmap.mmap, wanted: Mapping[bytes, str]) -> Mapping[str, int]:
    if data[:4] != b"\x7fELF":
        raise ValueError("it is no library")
    if data[4:6] != b"\x02\x01":
        raise ValueError("it is of 32 bits")
    header = _HEADER.unpack_from(data)
    if header[2] not in _MACHINES:
        raise ValueError("it is for another processor")
    segments = [_SEGMENT.unpack_from(data, header[5] + number * header[9]) for number in range(header[10])]
    sections = [_SECTION.unpack_from(data, header[6] + number * header[11]) for number in range(header[12])]
    found: dict[str, int] = {}
    for section in sections:
        if section[1] != _EXPORTED:
            continue
        names = sections[section[6]]
        table = data[section[4] : section[4] + section[5] // _SYMBOL.size * _SYMBOL.size]
        texts = data[names[4] : names[4] + names[5]]
        for at, info, _, index, value, _ in _SYMBOL.iter_unpack(table):
            if info & 0xF != _FUNCTION or index == 0:
                continue
            name = wanted.get(texts[at : texts.index(b"\0", at)])
            if name is not None:
                found[name] = _behind_mark(data, _in_file(segments, value))
    return found


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


def _behind_mark(data: mmap.mmap, place: int) -> int:
    """Where a function is watched: behind the mark that it may be jumped to, if it has one. The kernel does what a
    `push` does by itself, but has the processor step over such a mark, which takes ten times as long.
    """
    return place + len(_MARK) if data[place : place + len(_MARK)] == _MARK else place


def _in_file(segments: list[tuple[int, ...]], address: int) -> int:
    for kind, _, offset, start, _, size, _, _ in segments:
        if kind == _LOADED and start <= address < start + size:
            return address - start + offset
    raise ValueError(f"nothing of it is at {address:#x}")
