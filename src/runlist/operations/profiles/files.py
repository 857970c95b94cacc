"""Files of profiles, told apart by their first line."""

from __future__ import annotations

import itertools
from pathlib import Path

from runlist.errors import UsageError
from runlist.operations.profiles import nsight, orion
from runlist.operations.profiles.lines import rows
from runlist.operations.profiles.profile import MOST_KERNELS, Profile


def read(path: Path) -> list[Profile]:
    """The profiles of a file: as Orion's tools write it (Name, Profile, Memory_footprint, SM_usage, Duration(ns)), or
    as Nsight Compute does (`ncu --csv --page raw --print-kernel-base mangled`). Raises UsageError, with file and line,
    for what is wrong; then nothing of it counts.
    """
    lines = rows(path)
    head = next(lines, None)
    if head is None:
        raise UsageError(f"{path}:1: the columns must be {', '.join(orion.COLUMNS)}, or those of Nsight Compute")
    reader = nsight.profiles if nsight.KERNEL in head.cells else orion.profiles
    found = {one.name: one for one in reader(head, itertools.chain(lines))}
    if len(found) > MOST_KERNELS:
        raise UsageError(f"{path}: {len(found)} kernels: there is room for {MOST_KERNELS}")
    return list(found.values())
