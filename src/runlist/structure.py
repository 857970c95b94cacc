"""Parameter structures, each described by a line of text.

`Structure("disable:B 3x count:I")` is a little-endian struct with a u8 `disable`, three bytes of padding and a u32
`count`. Fields are `name:code` with `struct`'s codes; a number before the code makes an array (`channels:64I`), `Ns`
bytes; a lone `Nx` is padding. Nothing is aligned implicitly.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Any

Value = int | bytes | Sequence[int]

_TOKEN = re.compile(r"(?:(?P<name>\w+):)?(?P<count>\d*)(?P<code>[xBHIQis])$")


class Structure:
    """One parameter structure. `size` is in bytes, `names` are its fields in order, `offsets` their first bytes; hot
    paths use `struct`. `fields` has of each its name, its code, and its length if it is an array or a byte string.
    """

    def __init__(self, spec: str) -> None:
        self.fields: list[tuple[str, str, int | None]] = []
        form = "<"
        self.offsets: dict[str, int] = {}
        for token in spec.split():
            match = _TOKEN.match(token)
            if match is None or (match["name"] is None) != (match["code"] == "x"):
                raise ValueError(f"bad field {token!r} in {spec!r}")
            if match["name"]:
                self.offsets[match["name"]] = struct.calcsize(form)
                self.fields.append((match["name"], match["code"], int(match["count"]) if match["count"] else None))
            form += match["count"] + match["code"]
        self.struct = struct.Struct(form)
        self.size = self.struct.size
        self.names = tuple(name for name, _, _ in self.fields)

    def pack(self, **values: Value) -> bytearray:
        """The structure's bytes. Fields not given are zero; arrays may be given short. Raises ValueError on bad
        values.
        """
        unknown = values.keys() - set(self.names)
        if unknown:
            raise ValueError(f"no field {', '.join(sorted(unknown))} in {self.names}")
        flat: list[Any] = []
        for name, code, length in self.fields:
            value: Any = values.get(name, 0 if length is None else b"")
            if isinstance(value, int) != (length is None):
                raise ValueError(f"{name} takes {'one number' if length is None else f'up to {length} values'}")
            if length is not None and len(value) > length:
                raise ValueError(f"{name} takes up to {length} values, not {len(value)}")
            if length is None or code == "s":
                flat.append(value)
            else:
                items = list(value)
                flat.extend(items + [0] * (length - len(items)))
        try:
            return bytearray(self.struct.pack(*flat))
        except struct.error as error:
            raise ValueError(f"a value does not fit {self.names}: {error}") from None

    def unpack(self, data: bytes | bytearray) -> dict[str, int | bytes | tuple[int, ...]]:
        """Fields by name; arrays as tuples. `data` has exactly `size` bytes."""
        flat = iter(self.struct.unpack(data))
        return {
            name: next(flat) if length is None or code == "s" else tuple(next(flat) for _ in range(length))
            for name, code, length in self.fields
        }
