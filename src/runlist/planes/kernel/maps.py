"""The maps of the programs in native/kernel: docs/kernel-plane.md tells what is in those that people read."""

from __future__ import annotations

import msgspec

from runlist.planes.kernel.bpf import MapType
from runlist.protocol import kernel_autogen as protocol
from runlist.structure import Structure

STRUCTURES = {name: Structure(text) for name, text in protocol.STRUCTS.items()}
_PLAIN = {"u32": 4, "u64": 8}

MOST_ENTRIES = 4096
"""Of the policy map. There is room for as many again, which wait to be in force all at once."""


_OWNERS = 4
"""So many owners may have in the maps as much as one may."""


class Described(msgspec.Struct, frozen=True):
    """A map: what its keys and values are, `u32`, `u64` or a structure of protocol/kernel.toml. `pinned` is for people
    to read, and `inherited` for the next daemon to go on with.
    """

    name: str
    kind: MapType
    key: str
    value: str
    entries: int
    pinned: bool = False
    inherited: bool = False

    @property
    def sizes(self) -> tuple[int, int]:
        """Bytes of a key and of a value."""
        if self.kind is MapType.RING:
            return 0, 0
        return _size(self.key), _size(self.value)


def _size(name: str) -> int:
    return _PLAIN[name] if name in _PLAIN else STRUCTURES[name].size


MAPS = (
    Described("shapes", MapType.HASH, "u32", "SHAPE", protocol.MAX_SHAPES),
    Described("rules", MapType.ARRAY, "u32", "RULE", protocol.MAX_RULES),
    Described("watched", MapType.HASH, "u32", "u32", 64),
    Described("settings", MapType.ARRAY, "u32", "SETTINGS", 1),
    Described("policy", MapType.HASH, "POLICY_KEY", "POLICY", 2 * MOST_ENTRIES, pinned=True),
    Described("force", MapType.ARRAY, "u32", "FORCE", 1, pinned=True),
    Described("exempt", MapType.HASH, "u32", "u32", 64),
    Described("refusals", MapType.LRU_HASH, "REFUSAL_KEY", "u64", 1 << 13, pinned=True),
    Described("places", MapType.ARRAY, "u32", "CALL", protocol.PLACES),
    Described("spilled", MapType.ARRAY, "u32", "u64", 1),
    Described("calls", MapType.HASH, "u64", "CALL", 1 << 14),
    Described("asked", MapType.LRU_HASH, "u32", "u64", 1 << 13),
    Described("owners", MapType.LRU_HASH, "u64", "OWNER", 1 << 14, pinned=True, inherited=True),
    Described("budgets", MapType.LRU_HASH, "u64", "BUDGET", 1 << 14),
    Described("swept", MapType.LRU_HASH, "u64", "OWNER", 1 << 14, pinned=True, inherited=True),
    Described(
        "objects", MapType.HASH, "OBJECT_KEY", "OBJECT", _OWNERS * protocol.MOST_OBJECTS, pinned=True, inherited=True
    ),
    Described("files", MapType.HASH, "FILE_KEY", "FILE", _OWNERS * protocol.MOST_FILES, pinned=True, inherited=True),
    Described(
        "groups", MapType.HASH, "OBJECT_KEY", "GROUP", _OWNERS * protocol.MOST_GROUPS, pinned=True, inherited=True
    ),
    Described(
        "processes", MapType.HASH, "u32", "PROCESS", _OWNERS * protocol.MOST_PROCESSES, pinned=True, inherited=True
    ),
    Described(
        "members", MapType.HASH, "MEMBER_KEY", "u64", _OWNERS * protocol.MOST_PROCESSES, pinned=True, inherited=True
    ),
    Described("controls", MapType.LRU_HASH, "CONTROL_KEY", "u64", 1 << 13, pinned=True, inherited=True),
    Described("counters", MapType.PER_CPU_ARRAY, "u32", "u64", len(protocol.Counter), pinned=True),
    Described("events", MapType.RING, "", "", protocol.RING_BYTES),
)
