"""Taking out of the maps what processes had that have ended."""

from __future__ import annotations

import contextlib
import os
import struct
from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet

from runlist.planes.kernel.bpf import Map
from runlist.planes.kernel.maps import STRUCTURES
from runlist.proc.process import start_of

OF_PROCESSES = ("groups", "objects", "files", "processes", "controls", "refusals")
"""Maps whose keys begin with a process."""
NEEDED = (*OF_PROCESSES, "members", "swept")

_COUNTED = {"groups": "GROUP", "objects": "OBJECT", "files": "FILE", "processes": "PROCESS"}
"""What is in maps of which each owner may have so much: it is told what is gone, and may have as much again."""
_BEHIND_A_RECORD = ("groups", "objects", "files")
_PID, _NUMBER, _MEMBER = struct.Struct("<I"), struct.Struct("<Q"), STRUCTURES["MEMBER_KEY"].struct
_OWNER = STRUCTURES["OWNER"]

_Gone = Counter[tuple[int, str]]


def take_out_ended(maps: Mapping[str, Map], among: AbstractSet[int] | None = None) -> None:
    """Take out what processes had that have ended, of those `among` these or of all, and close the maps, which are
    those NEEDED. A number may be used again: what is of the process that has it now stays. It takes a second where the
    maps are full.
    """
    lives = _Lives(maps["processes"])
    _take_out(maps, among, lambda pid, name, value: not lives.has(pid, name, value))


def take_out(maps: Mapping[str, Map], of: AbstractSet[int]) -> None:
    """Take out all that these processes have, whether they live or not, and close the maps, which are those NEEDED."""
    _take_out(maps, of, lambda *_: True)


def _take_out(
    maps: Mapping[str, Map], among: AbstractSet[int] | None, is_gone: Callable[[int, str, bytes], bool]
) -> None:
    gone: _Gone = Counter()
    try:
        for name in OF_PROCESSES:
            with contextlib.suppress(OSError):
                for key, value in maps[name].entries(among):
                    (pid,) = _PID.unpack_from(key)
                    if (among is None or pid in among) and is_gone(pid, name, value):
                        _take(maps, name, key, value, gone)
        with contextlib.suppress(OSError):
            _tell(maps["swept"], gone)
    finally:
        for entries in maps.values():
            os.close(entries.fd)


class _Lives:
    """Which processes live, and what is theirs: the kernel's programs make a record of a process before all else, and
    take it away as it ends.
    """

    def __init__(self, records: Map) -> None:
        self._records = records
        self._alive: dict[int, bool] = {}
        self._first_ns: dict[int, int] = {}

    def has(self, pid: int, name: str, value: bytes) -> bool:
        """Whether an entry of a map is of the process that has this number now."""
        if pid not in self._alive:
            self._alive[pid] = start_of(pid) is not None
        if not self._alive[pid] or name not in _BEHIND_A_RECORD:
            return self._alive[pid]
        if pid not in self._first_ns:
            record = self._records.get(_PID.pack(pid))
            if record is None:
                return False
            (self._first_ns[pid],) = _NUMBER.unpack_from(record, STRUCTURES["PROCESS"].offsets["first_ns"])
        made_at = STRUCTURES["GROUP"].offsets["made_ns"]
        return name != "groups" or _NUMBER.unpack_from(value, made_at)[0] >= self._first_ns[pid]


def _take(maps: Mapping[str, Map], name: str, key: bytes, value: bytes, gone: _Gone) -> None:
    if not maps[name].delete(key) or name not in _COUNTED:
        return
    structure = STRUCTURES[_COUNTED[name]]
    (owner,) = _NUMBER.unpack_from(value, structure.offsets["owner"])
    gone[owner, name] += 1
    if name == "processes":
        (cgroup,) = _NUMBER.unpack_from(value, structure.offsets["cgroup"])
        maps["members"].delete(_MEMBER.pack(cgroup, *_PID.unpack(key)))


def _tell(swept: Map, gone: _Gone) -> None:
    for owner in {owner for owner, _ in gone}:
        key = _NUMBER.pack(owner)
        before = _OWNER.struct.unpack(swept.get(key) or bytes(_OWNER.size))
        after = [(count + gone[owner, name]) % (1 << 32) for name, count in zip(_OWNER.names, before, strict=True)]
        swept.put(key, _OWNER.struct.pack(*after))
