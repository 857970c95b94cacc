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
_PART = 16 * _PAGE
_LONGEST = _PAGE  # no record is longer


class BrokenRing(ValueError):
    """What the ring says cannot be."""


class Ring:
    """The reader of a ring; there is one. `fileno` is readable when there is something to take. A part of it is mapped
    at a time: all that is mapped counts as our memory.
    """

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self._size = size
        self._ours = mmap.mmap(fd, _PAGE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._theirs = mmap.mmap(fd, _PAGE, mmap.MAP_SHARED, mmap.PROT_READ, offset=_PAGE)
        self._part_bytes = min(_PART, size)
        self._begins = 0  # the position of the part that is mapped
        self._part: mmap.mmap | None = None
        self._barrier = threading.Lock()

    def fileno(self) -> int:
        return self._fd

    def take(self, most: int) -> Iterator[bytes]:
        """Up to so many records, each taken when it is returned. Raises BrokenRing."""
        (at,) = (end,) = _POSITION.unpack_from(self._ours, 0)
        for _ in range(most):
            if at == end:
                with self._barrier:  # what was written before a position is seen after it
                    (end,) = _POSITION.unpack_from(self._theirs, 0)
                if at == end:
                    return
            part = self._part_at(at)
            step = next_record(part, self._size, at - self._begins, end - self._begins)
            if step is None:
                return
            behind, record = step
            at = behind + self._begins
            _POSITION.pack_into(self._ours, 0, at)
            if record is not None:
                yield record

    def close(self) -> None:
        """Let go of it. The descriptor is the caller's."""
        for each in (self._ours, self._theirs, self._part):
            if each is not None:
                each.close()

    def _part_at(self, at: int) -> mmap.mmap:
        """The part in which a record at a position is whole. The kernel has the ring twice, one behind the other."""
        if self._part is not None and self._begins <= at < self._begins + self._part_bytes:
            return self._part
        if self._part is not None:
            self._part.close()
            self._part = None
        self._begins = at - at % _PAGE
        place = 2 * _PAGE + self._begins % self._size
        try:
            self._part = mmap.mmap(self._fd, self._part_bytes + _LONGEST, mmap.MAP_SHARED, mmap.PROT_READ, offset=place)
        except OSError as error:
            raise BrokenRing(f"it cannot be mapped: {error.strerror}") from None
        return self._part


def next_record(memory: mmap.mmap | bytes, size: int, at: int, end: int) -> tuple[int, bytes | None] | None:
    """The position behind the record at `at`, and the record: None for one that was thrown away. None where there is no
    whole record. `memory` has the ring. Raises BrokenRing.
    """
    if at == end:
        return None
    if at > end or at % 8 or end - at > size:
        raise BrokenRing(f"its positions are {at} and {end}")
    begin = at % size
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
    record = bytes(memory[begin : min(begin + length, size)])
    return behind, record + bytes(memory[: length - len(record)])  # the rest is where the ring begins
