"""Profiles in files of comma-separated lines, as Orion's tools write them."""

from __future__ import annotations

import csv
import math
from pathlib import Path

from runlist.errors import UsageError
from runlist.operations.admission import ANY, Bound
from runlist.operations.profiles.profile import Profile

_MOST_BYTES = 64 << 20
_COLUMNS = ("Name", "Profile", "Memory_footprint", "SM_usage", "Duration(ns)")
_INT64 = 1 << 63
_BOUNDS = {"1": Bound.COMPUTE, "0": Bound.MEMORY, "-1": Bound.UNKNOWN} | {one.name.lower(): one for one in Bound}


def read(path: Path) -> list[Profile]:
    """The profiles of a file of comma-separated lines: Name, Profile (1 compute, 0 memory, -1 unknown, or the word),
    Memory_footprint (not used), SM_usage, Duration(ns). Raises UsageError, with file and line, for what is wrong; then
    nothing of it counts.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{path}: larger than {_MOST_BYTES >> 20} MiB: profile fewer kernels")
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.reader(file, strict=True)
            head = next(rows, [])
            if tuple(word.strip() for word in head) != _COLUMNS:
                raise UsageError(f"{path}:1: the columns must be {', '.join(_COLUMNS)}")
            return [_profile(row, f"{path}:{rows.line_num}") for row in rows if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path}: no file of comma-separated lines: {error}") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None


def _profile(row: list[str], where: str) -> Profile:
    if len(row) != len(_COLUMNS):
        raise UsageError(f"{where}: {len(row)} columns, not {len(_COLUMNS)}")
    name, bound, _, sms, duration = (word.strip() for word in row)
    if not name or "\0" in name:
        raise UsageError(f"{where}: a kernel without a name")
    if bound.lower() not in _BOUNDS:
        raise UsageError(f"{where}: Profile {bound!r}: take 1 (compute), 0 (memory) or -1 (unknown)")
    return Profile(name, _BOUNDS[bound.lower()], _whole(sms, "SM_usage", ANY, where),
                   _whole(duration, "Duration(ns)", _INT64 - 1, where))  # fmt: skip


def _whole(text: str, column: str, most: int, where: str) -> int:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number <= most:  # not a number is neither
        raise UsageError(f"{where}: {column} {text!r}: take a number from 0 on")
    return min(most, round(number))
