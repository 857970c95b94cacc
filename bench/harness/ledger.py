"""The file in which racing programs count what they hold; the layout is that of `struct ledger` in programs/race.c."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

PROGRAMS = 128
_LINE = 64
_SIZE = _LINE * (1 + PROGRAMS)
_GO, _STOP, _LARGEST = 0, 8, 24
_COUNTS = struct.Struct("<5Q")


class Counts(NamedTuple):
    """What one program did so far: whether it is ready, allocations, refusals, kernels, results that cannot be."""

    ready: int
    taken: int
    refused: int
    launches: int
    unexpected: int


class Ledger:
    """A new ledger at `path`. A context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("xb+") as file:
            file.truncate(_SIZE)
            self._map = mmap.mmap(file.fileno(), _SIZE)

    def go(self) -> None:
        """Those that are ready begin, and all that come later at once."""
        struct.pack_into("<Q", self._map, _GO, 1)

    def stop(self) -> None:
        """All free what they hold and end."""
        struct.pack_into("<Q", self._map, _STOP, 1)

    @property
    def largest(self) -> int:
        """The largest sum of bytes so far, of all programs together; never more than they really held."""
        return int(struct.unpack_from("<Q", self._map, _LARGEST)[0])

    def counts(self, index: int) -> Counts:
        """Those of program `index`."""
        return Counts(*_COUNTS.unpack_from(self._map, _LINE * (1 + index)))

    def forget(self, index: int) -> None:
        """Another program takes the place of `index`."""
        _COUNTS.pack_into(self._map, _LINE * (1 + index), 0, 0, 0, 0, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._map.close()
