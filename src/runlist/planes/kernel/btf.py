"""What the running kernel's own types (BTF) say: where a field of a structure is, and the number of a function."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

KERNEL = Path("/sys/kernel/btf/vmlinux")
_HEADER = struct.Struct("<HBBIIIII")
_WORD = 4
_MAGIC = 0xEB9F
_STRUCT, _FUNCTION = 4, 12
_MORE_OF_ONE = {3: 3, 14: 1, 17: 1, 1: 1}  # in words: arrays, variables, tags of declarations, integers
_OF_EACH = {4: 3, 5: 3, 6: 2, 13: 2, 15: 3, 19: 3}  # of members, values, parameters, variables
_HEAD, _MEMBER = 3, 3
"""Words of a type: its name, its kind and how many it has, a number. Of a member: its name, its type, its place."""
_WORDS = [0, *(_HEAD + _MORE_OF_ONE.get(kind, 0) for kind in range(1, 20)), *[0] * 12]
_WORDS_OF_EACH = [_OF_EACH.get(kind, 0) for kind in range(32)]
"""By kind; 0 words of one that there is not."""
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
    at, names = head + types_at, head + names_at
    structures = _places_of(data, names, wanted.fields)
    functions = _places_of(data, names, wanted.functions)
    places: dict[str, int] = {}
    numbers: dict[str, int] = {}
    number = 0
    if types_bytes % _WORD or at + types_bytes > len(data):
        raise ValueError("damaged types: they end too early")
    words = memoryview(data)[at : at + types_bytes].cast("I")
    at, end = 0, len(words)
    while at < end:  # more than a hundred thousand times
        number += 1
        info = words[at + 1]
        kind = info >> 24 & 0x1F
        if not _WORDS[kind]:
            raise ValueError(f"a type of kind {kind}")
        if kind == _STRUCT and words[at] in structures:
            of = structures[words[at]]
            for member in range(at + _HEAD, at + _HEAD + _MEMBER * (info & 0xFFFF), _MEMBER):
                text = _text(data, names + words[member])
                if text in wanted.fields[of]:
                    places.setdefault(f"{of}_{text}", (words[member + 2] & _BITS_OF_PLACE) // 8)
        elif kind == _FUNCTION and words[at] in functions:
            numbers.setdefault(functions[words[at]], number)
        at += _WORDS[kind] + _WORDS_OF_EACH[kind] * (info & 0xFFFF)
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
