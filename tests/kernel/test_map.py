"""Maps, as Python reads them."""

from __future__ import annotations

import os
import struct

from runlist.planes.kernel.bpf import Map, MapType, make_map
from tests.fixtures.kernel import needs_kernel

pytestmark = needs_kernel


def test_entries_are_all_there_also_where_there_are_more_than_fit_at_once() -> None:
    there = Map(make_map("test", MapType.HASH, 8, 8, 1 << 14), 8, 8)
    try:
        assert list(there.entries()) == []
        wanted = {struct.pack("<Q", number): struct.pack("<Q", 3 * number) for number in range(10_000)}
        for key, value in wanted.items():
            there.put(key, value)
        found = list(there.entries())
        assert len(found) == len(wanted)
        assert dict(found) == wanted
        for key in there.all_keys():  # as they are seen
            there.delete(key)
        assert list(there.entries()) == []
    finally:
        os.close(there.fd)
