"""Files of comma-separated lines, and numbers in them."""

from __future__ import annotations

import contextlib
import csv
import io
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runlist.errors import UsageError

_MOST_BYTES = 64 << 20
_NUMBER = re.compile(r"[+-]?(?:[1-9]\d{0,2}(?:,\d{3})+|\d*)(?:\.\d*)?(?:[eE][+-]?\d+)?", re.ASCII)


@dataclass(frozen=True)
class Row:
    """The cells of a line; `where` is file and line, for errors."""

    where: str
    cells: list[str]


def rows(path: Path) -> Iterator[Row]:
    """All rows that are not empty, without spaces around their cells. What a profiler says of itself before the first
    one, on lines that begin with `==`, is left out. Raises UsageError for what is no such file.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)  # a pipe or a device has no size
        if len(content) > _MOST_BYTES:
            raise UsageError(f"{path}: larger than {_MOST_BYTES >> 20} MiB: profile fewer kernels")
        found = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
        for cells in found:
            if cells and not cells[0].startswith("=="):
                yield Row(f"{path}:{found.line_num}", [cell.strip() for cell in cells])
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}:{line}: not UTF-8 text: save it as such") from None
    except csv.Error as error:
        raise UsageError(f"{path}: no file of comma-separated lines: {error}") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None


def number(text: str, column: str, most: float, where: str) -> float:
    """A number from 0 to `most`, with or without commas between thousands. Raises UsageError."""
    value = math.nan
    if _NUMBER.fullmatch(text) is not None:
        with contextlib.suppress(ValueError):
            value = float(text.replace(",", ""))
    if not 0 <= value <= most:  # not a number is neither
        raise UsageError(f"{where}: {column} {text!r}: take a number from 0 to {most:.10g}")
    return value
