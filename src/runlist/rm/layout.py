"""Parameter structures described by a line of text.

`Layout("disable:B 3x count:I")` is a little-endian struct with a u8 `disable`, three bytes of padding and a u32
`count`. Fields are `name:code` with `struct`'s codes; a number before the code makes an array (`channels:64I`), `Ns`
bytes; a lone `Nx` is padding. Nothing is aligned implicitly: what is written is what the driver reads.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence

Value = int | bytes | Sequence[int]

_TOKEN = re.compile(r"(?:(?P<name>\w+):)?(?P<count>\d*)(?P<code>[xBHIQis])$")


class Layout:
    """One parameter structure. `size` is in bytes, `names` are its fields in order."""

    def __init__(self, spec: str) -> None:
        self._fields: list[tuple[str, int, bool]] = []  # name, number of struct values, is an array
        form = "<"
        for token in spec.split():
            match = _TOKEN.match(token)
            if match is None or (match["name"] is None) != (match["code"] == "x"):
                raise ValueError(f"bad field {token!r} in layout {spec!r}")
            form += match["count"] + match["code"]
            if match["name"]:
                array = bool(match["count"]) and match["code"] != "s"
                self._fields.append((match["name"], int(match["count"]) if array else 1, array))
        self._struct = struct.Struct(form)
        self.size = self._struct.size
        self.names = tuple(name for name, _, _ in self._fields)

    def pack(self, **values: Value) -> bytearray:
        """The structure's bytes. Fields not given are zero; arrays may be given short. Raises ValueError on bad
        values.
        """
        unknown = values.keys() - set(self.names)
        if unknown:
            raise ValueError(f"no field {', '.join(sorted(unknown))} in {self.names}")
        flat: list[int | bytes] = []
        for (name, count, array), code in zip(self._fields, self._codes(), strict=True):
            value = values.get(name, b"" if code == "s" else 0)
            if array:
                items = list(value) if isinstance(value, Sequence) else []
                if len(items) > count:
                    raise ValueError(f"{name} takes {count} values, not {len(items)}")
                flat.extend(items + [0] * (count - len(items)))
            else:
                flat.append(value if isinstance(value, bytes) else int(value))  # type: ignore[arg-type]
        try:
            return bytearray(self._struct.pack(*flat))
        except struct.error as error:
            raise ValueError(f"a value does not fit {self.names}: {error}") from None

    def unpack(self, data: bytes | bytearray) -> dict[str, int | bytes | tuple[int, ...]]:
        """Fields by name; arrays as tuples. `data` has exactly `size` bytes."""
        flat = iter(self._struct.unpack(data))
        return {
            name: tuple(next(flat) for _ in range(count)) if array else next(flat)
            for name, count, array in self._fields
        }

    def _codes(self) -> list[str]:
        return [code for code in re.findall(r"\d*([xBHIQis])", self._struct.format[1:]) if code != "x"]
