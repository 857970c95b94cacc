"""Reading the ring of events: what the kernel's programs wrote, in its order."""

from __future__ import annotations

import mmap
import struct
import threading
from collections.abc import Iterator

_PAGE = mmap.PAGESIZE
_POSITION = struct.Struct("<Q")
_HEAD = struct.Struct("<II")
_BUSY, _DISCARDED = 1 << 31, 1 << 30
_LENGTH = _DISCARDED - 1


class BrokenRing(ValueError):
    """What the ring says cannot be."""


class Ring:
    """The reader of a ring; there is one. `fileno` is readable when there is something to take."""

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self._size = size
        self._ours = mmap.mmap(fd, _PAGE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._theirs = mmap.mmap(fd, _PAGE + size, mmap.MAP_SHARED, mmap.PROT_READ, offset=_PAGE)
        self._barrier = threading.Lock()

    def fileno(self) -> int:
        return self._fd

    def take(self, most: int) -> Iterator[bytes]:
        """Up to so many records, each taken when it is returned. Raises BrokenRing."""
        (at,) = _POSITION.unpack_from(self._ours, 0)
        for _ in range(most):
            with self._barrier:  # what was written before a position is seen after it
                (end,) = _POSITION.unpack_from(self._theirs, 0)
            step = next_record(self._theirs, _PAGE, self._size, at, end)
            if step is None:
                return
            at, record = step
            _POSITION.pack_into(self._ours, 0, at)
            if record is not None:
                yield record

    def close(self) -> None:
        """Let go of it. The descriptor is the caller's."""
        self._ours.close()
        self._theirs.close()


def next_record(memory: mmap.mmap | bytes, base: int, size: int, at: int, end: int) -> tuple[int, bytes | None] | None:
    """The position behind the record at `at`, and the record: None for one that was thrown away. None where there is no
    whole record. `memory` has the ring from `base` on. Raises BrokenRing.
    """
    if at == end:
        return None
    if at > end or at % 8 or end - at > size:
        raise BrokenRing(f"its positions are {at} and {end}")
    begin = base + at % size
    (head, _) = _HEAD.unpack_from(memory, begin)
    if head & _BUSY:
        return None
    length = head & _LENGTH
    behind = at + _HEAD.size + (length + 7) // 8 * 8
    if behind > end:
        raise BrokenRing(f"a record of {length} bytes reaches beyond its end")
    if head & _DISCARDED:
        return behind, None
    begin += _HEAD.size
    record = bytes(memory[begin : min(begin + length, base + size)])
    return behind, record + bytes(memory[base : base + length - len(record)])  # the rest is where the ring begins
