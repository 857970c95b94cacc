"""The ring of the kernel's events."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from runlist.planes.kernel.ring import BrokenRing, Ring, next_record

SIZE = 256


@pytest.mark.parametrize("at", range(0, SIZE, 8))
def test_a_record_that_goes_over_the_end_goes_on_at_the_beginning(at: int) -> None:
    said = bytes(range(80))
    written = struct.pack("<II", len(said), 0) + said
    ring = bytearray(SIZE)
    for place, byte in enumerate(written):
        ring[(at + place) % SIZE] = byte
    round_ = 7 * SIZE
    assert next_record(bytes(ring), SIZE, round_ + at, round_ + at + len(written)) == (
        round_ + at + len(written),
        said,
    )


BUSY, DISCARDED = 1 << 31, 1 << 30


@pytest.mark.parametrize(
    ("at", "end", "head", "said"),
    [
        (16, 8, 0, "its positions are 16 and 8"),
        (4, 16, 0, "its positions are 4 and 16"),
        (0, SIZE + 8, 0, f"its positions are 0 and {SIZE + 8}"),
        (0, 16, 9, "a record of 9 bytes reaches beyond its end"),
        (0, 16, DISCARDED | 9, "a record of 9 bytes reaches beyond its end"),
    ],
)
def test_positions_and_lengths_that_cannot_be_are_said(at: int, end: int, head: int, said: str) -> None:
    with pytest.raises(BrokenRing, match=said):
        next_record(struct.pack("<II", head, 0) + bytes(SIZE), SIZE, at, end)


def test_a_record_fills_the_ring_and_whole_words() -> None:
    whole = bytes(range(SIZE - 8))
    ring = struct.pack("<II", len(whole), 0) + whole
    assert next_record(ring, SIZE, SIZE, 2 * SIZE) == (2 * SIZE, whole)
    for length, behind in ((0, 8), (1, 16), (8, 16), (9, 24)):
        ring = struct.pack("<II", length, 0) + bytes(SIZE)
        assert next_record(ring, SIZE, 0, 64) == (behind, bytes(length))


def test_one_that_is_being_written_is_waited_for_and_one_that_was_thrown_away_is_passed_over() -> None:
    for head, found in (
        (BUSY | 5, None),
        (BUSY | DISCARDED | 5, None),
        (DISCARDED | 5, (16, None)),
        (5, (16, bytes(5))),
    ):
        assert next_record(struct.pack("<II", head, 0) + bytes(SIZE), SIZE, 0, 64) == found
    assert next_record(bytes(SIZE), SIZE, 8, 8) is None


PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def file() -> Iterator[int]:
    """Our position, theirs, and the ring twice, as the kernel maps it."""
    fd = os.memfd_create("ring")
    os.truncate(fd, 4 * PAGE)
    yield fd
    os.close(fd)


def test_each_record_is_taken_once_up_to_as_many_as_are_wanted(file: int) -> None:
    records = [bytes([number]) * 3 for number in range(5)]
    written = b"".join(struct.pack("<II", 3, 0) + record + bytes(5) for record in records)
    written = struct.pack("<II", DISCARDED | 4, 0) + bytes(8) + written
    os.pwrite(file, written, 2 * PAGE)
    os.pwrite(file, struct.pack("<Q", len(written)), PAGE)
    ring = Ring(file, PAGE)
    assert ring.fileno() == file
    assert list(ring.take(3)) == records[:2]  # with the one that was thrown away
    assert struct.unpack("<Q", os.pread(file, 8, 0)) == (3 * 16,)  # the kernel may write there again
    assert list(ring.take(10)) == records[2:]
    assert list(ring.take(10)) == []
    ring.close()
    ring = Ring(file, PAGE)  # whoever comes next goes on there
    assert list(ring.take(10)) == []
    ring.close()


def test_little_of_a_ring_is_mapped_at_a_time_and_all_of_it_is_read() -> None:
    size, length = 64 * PAGE, 72
    fd = os.memfd_create("ring")
    os.truncate(fd, 2 * PAGE + 2 * size)
    ring = Ring(fd, size)
    records = [number.to_bytes(length, "little") for number in range(2 * size // (8 + length))]  # round it twice
    at = 0
    for first in range(0, len(records), 100):
        for record in records[first : first + 100]:
            whole = struct.pack("<II", length, 0) + record
            for place in (at % size, at % size + size, at % size - size):  # as the kernel has it, twice
                if place >= 0:
                    os.pwrite(fd, whole[: 2 * size - place], 2 * PAGE + place)
                else:
                    os.pwrite(fd, whole[-place:], 2 * PAGE)
            at += len(whole)
        os.pwrite(fd, struct.pack("<Q", at), PAGE)
        assert list(ring.take(len(records))) == records[first : first + 100]
        assert _mapped("/memfd:ring") <= 32 * PAGE
    ring.close()
    os.close(fd)
    assert _mapped("/memfd:ring") == 0


def _mapped(name: str) -> int:
    """Bytes that are mapped of a file."""
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if name in line]
    spans = [line[0].split("-") for line in lines]
    return sum(int(end, 16) - int(begin, 16) for begin, end in spans)
