"""The ring of the kernel's events."""

from __future__ import annotations

import struct

import pytest

from runlist.planes.kernel.ring import next_record

SIZE = 256


@pytest.mark.parametrize("at", range(0, SIZE, 8))
def test_a_record_that_goes_over_the_end_goes_on_at_the_beginning(at: int) -> None:
    said = bytes(range(80))
    written = struct.pack("<II", len(said), 0) + said
    ring = bytearray(SIZE)
    for place, byte in enumerate(written):
        ring[(at + place) % SIZE] = byte
    round_ = 7 * SIZE
    assert next_record(bytes(16) + bytes(ring), 16, SIZE, round_ + at, round_ + at + len(written)) == (
        round_ + at + len(written),
        said,
    )
