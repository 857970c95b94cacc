"""What the maps of the kernel tell of the channel groups of a process: `runlist ps` and the exporter show it."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable, Mapping

import msgspec

from runlist.planes.kernel.bpf import Map
from runlist.planes.kernel.maps import STRUCTURES

_NUMBER, _KEY = struct.Struct("<I"), STRUCTURES["OBJECT_KEY"].struct
_ENGINES = struct.Struct("<3I")  # channels, compute and copy
_GROUPS_AT, _ENGINES_AT = STRUCTURES["PROCESS"].offsets["groups"], STRUCTURES["GROUP"].offsets["channels"]


class Made(msgspec.Struct, frozen=True):
    """`groups` of a whole process, on all GPUs; and the channels of some of them, with their engines."""

    groups: int
    channels: int
    compute: int
    copy: int


def made_by(maps: Mapping[str, Map], pid: int, groups: Iterable[tuple[int, int]]) -> Made | None:
    """What a process has, and what is on these of its groups, each by its client and its number. None where the maps
    know nothing of it, or cannot be read.
    """
    with contextlib.suppress(OSError, KeyError):
        process = maps["processes"].get(_NUMBER.pack(pid))
        if process is None:
            return None
        found = (maps["groups"].get(_KEY.pack(pid, client, group)) for client, group in groups)
        engines = [_ENGINES.unpack_from(each, _ENGINES_AT) for each in found if each is not None]
        channels, compute, copy = (sum(column) for column in zip((0, 0, 0), *engines, strict=True))
        (number,) = _NUMBER.unpack_from(process, _GROUPS_AT)
        return Made(number, channels, compute, copy)
    return None
