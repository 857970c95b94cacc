"""Taking out of the maps what processes had that have ended."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from runlist.planes.kernel.bpf import Map
from runlist.proc.process import start_of

OF_PROCESSES = ("groups", "objects", "files", "controls", "refusals")
"""Maps whose keys begin with a process."""

_PID = struct.Struct("<I")


def take_out(maps: Sequence[Map], ended: AbstractSet[int | None] | None) -> None:
    """Take out what these processes had, or all that have ended, and close the maps. A number may be used again: what
    such a process has stays. It takes a second where the maps are full.
    """
    alive: dict[int, bool] = {}
    try:
        for entries in maps:
            with contextlib.suppress(OSError):
                for key in list(entries.all_keys()):
                    (pid,) = _PID.unpack_from(key)
                    if ended is None or pid in ended:
                        if pid not in alive:
                            alive[pid] = start_of(pid) is not None
                        if not alive[pid]:
                            entries.delete(key)
    finally:
        for entries in maps:
            os.close(entries.fd)
