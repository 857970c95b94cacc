"""Profiles as Orion's tools write them, a line a launch, with what it is bound by, its SMs and its duration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from runlist.errors import UsageError
from runlist.operations.admission import Bound
from runlist.operations.profiles.lines import Row, number
from runlist.operations.profiles.profile import LONGEST_NS, MOST_SMS, Profile, wrong

COLUMNS = ("Name", "Profile", "Memory_footprint", "SM_usage", "Duration(ns)")

_BOUNDS = {"1": Bound.COMPUTE, "0": Bound.MEMORY, "-1": Bound.UNKNOWN} | {one.name.lower(): one for one in Bound}


def profiles(head: Row, rows: Iterable[Row]) -> Iterator[Profile]:
    """One a line. Raises UsageError."""
    if tuple(head.cells) != COLUMNS:
        raise UsageError(f"{head.where}: the columns must be {', '.join(COLUMNS)}, or those of Nsight Compute")
    return map(_profile, rows)


def _profile(row: Row) -> Profile:
    if len(row.cells) != len(COLUMNS):
        raise UsageError(f"{row.where}: {len(row.cells)} columns, not {len(COLUMNS)}")
    name, bound, _, sms, duration = row.cells
    if bound.lower() not in _BOUNDS:
        raise UsageError(f"{row.where}: Profile {bound!r}: take 1 (compute), 0 (memory) or -1 (unknown)")
    found = Profile(
        name, _BOUNDS[bound.lower()], round(number(sms, COLUMNS[3], MOST_SMS, row.where)),
        round(number(duration, COLUMNS[4], LONGEST_NS, row.where)),
    )  # fmt: skip
    if why := wrong(found):
        raise UsageError(f"{row.where}: {why}")
    return found
