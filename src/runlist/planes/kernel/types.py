"""The types of maps, in the kernel's own form (BTF), so that `bpftool` shows their fields by name."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from runlist.structure import Structure

_MAGIC = 0xEB9F
_INT, _ARRAY, _STRUCT = 1, 3, 4
_SIGNED, _CHAR = 1, 2
_INTEGERS = {
    "B": ("unsigned char", 1, 0),
    "H": ("unsigned short", 2, 0),
    "I": ("unsigned int", 4, 0),
    "Q": ("unsigned long long", 8, 0),
    "i": ("int", 4, _SIGNED),
    "s": ("char", 1, _CHAR),
}


class Types:
    """Types of structures, as `runlist.structure` describes them; `ids` has each by its name. `u32` and `u64` are
    there, too.
    """

    def __init__(self, structs: Mapping[str, str]) -> None:
        self.ids: dict[str, int] = {}
        self._names = bytearray(b"\0")
        self._types = bytearray()
        self._count = 0
        self._integers = {
            code: self._add(name, _INT << 24, size, struct.pack("<I", encoding << 24 | size * 8))
            for code, (name, size, encoding) in _INTEGERS.items()
        }
        self.ids["u32"], self.ids["u64"] = self._integers["I"], self._integers["Q"]
        for name, spec in structs.items():
            self.ids[name] = self._struct(name, spec)

    def blob(self) -> bytes:
        """All of them, as the kernel takes them."""
        head = struct.pack("<HBBIIIII", _MAGIC, 1, 0, 24, 0, len(self._types), len(self._types), len(self._names))
        return head + bytes(self._types) + bytes(self._names)

    def _name(self, name: str) -> int:
        at = len(self._names)
        self._names += name.encode() + b"\0"
        return at

    def _add(self, name: str, info: int, size: int, rest: bytes) -> int:
        self._types += struct.pack("<III", self._name(name) if name else 0, info, size) + rest
        self._count += 1
        return self._count

    def _struct(self, name: str, spec: str) -> int:
        structure = Structure(spec)
        members: list[tuple[str, int, int]] = []
        for field, code, length in structure.fields:
            type_ = self._integers[code]
            if length is not None:
                type_ = self._add("", _ARRAY << 24, 0, struct.pack("<III", type_, self._integers["I"], length))
            members.append((field, type_, structure.offsets[field]))
        body = b"".join(struct.pack("<III", self._name(field), type_, place * 8) for field, type_, place in members)
        return self._add(name.lower(), _STRUCT << 24 | len(members), structure.size, body)
