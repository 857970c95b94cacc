"""What the running kernel's own types (BTF) say: where a field of a structure is, and the number of a function."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

KERNEL = Path("/sys/kernel/btf/vmlinux")
_HEADER = struct.Struct("<HBBIIIII")
_TYPE = struct.Struct("<III")
_MEMBER = struct.Struct("<III")
_MAGIC = 0xEB9F
_STRUCT, _FUNCTION = 4, 12
_BYTES_OF_ONE = {3: 12, 14: 4, 17: 4, 1: 4}  # arrays, variables, tags of declarations, integers
_BYTES_OF_EACH = {4: 12, 5: 12, 6: 8, 13: 8, 15: 12, 19: 12}  # of members, values, parameters, variables
_MOST_KINDS = 20
_BITS_OF_PLACE = 0xFFFFFF


class Wanted(msgspec.Struct, frozen=True):
    """Fields, by structure, and functions."""

    fields: Mapping[str, tuple[str, ...]]
    functions: tuple[str, ...]


class Found(msgspec.Struct, frozen=True):
    """Places in bytes, by `structure_field`, and numbers of functions. What the kernel does not have is missing."""

    places: Mapping[str, int]
    functions: Mapping[str, int]


def read(data: bytes, wanted: Wanted) -> Found:
    """Look for them in types. Raises ValueError for what are none."""
    try:
        return _read(data, wanted)
    except (struct.error, IndexError) as error:
        raise ValueError(f"damaged types: {error}") from None


def _read(data: bytes, wanted: Wanted) -> Found:
    magic, _, _, head, types_at, types_bytes, names_at, _ = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise ValueError("no types")
    at, end, names = head + types_at, head + types_at + types_bytes, head + names_at
    structures = _places_of(data, names, wanted.fields)
    functions = _places_of(data, names, wanted.functions)
    places: dict[str, int] = {}
    numbers: dict[str, int] = {}
    number = 0
    unpack = _TYPE.unpack_from
    while at < end:
        number += 1
        name, info, _ = unpack(data, at)
        at += _TYPE.size
        kind, count = info >> 24 & 0x1F, info & 0xFFFF
        if kind == 0 or kind >= _MOST_KINDS:
            raise ValueError(f"a type of kind {kind}")
        if kind == _STRUCT and name in structures:
            of = structures[name]
            for member in range(count):
                field, _, place = _MEMBER.unpack_from(data, at + member * _MEMBER.size)
                text = _text(data, names + field)
                if text in wanted.fields[of]:
                    places.setdefault(f"{of}_{text}", (place & _BITS_OF_PLACE) // 8)
        if kind == _FUNCTION and name in functions:
            numbers.setdefault(functions[name], number)
        at += _BYTES_OF_ONE.get(kind, 0) + _BYTES_OF_EACH.get(kind, 0) * count
    return Found(places, numbers)


def _places_of(data: bytes, names: int, wanted: Iterable[str]) -> dict[int, str]:
    """Where in the table of names these are: each is there once."""
    found = {}
    for name in wanted:
        at = data.find(b"\0" + name.encode() + b"\0", names)
        if at >= 0:
            found[at + 1 - names] = name
    return found


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode("ascii", "replace")
