"""Files of profiles, told apart by their first line."""

from __future__ import annotations

from pathlib import Path

from runlist.errors import UsageError
from runlist.operations.profiles import nsight, orion
from runlist.operations.profiles.lines import rows
from runlist.operations.profiles.profile import MOST_KERNELS, Profile


def read(path: str | Path) -> list[Profile]:
    """The profiles of a file: as Orion's tools write it (Name, Profile, Memory_footprint, SM_usage, Duration(ns)), or
    as Nsight Compute does (`ncu --csv --page raw --print-kernel-base mangled`). Raises UsageError, with file and line,
    for what is wrong; then nothing of it counts. Of several launches of a kernel the one of the middle duration does.
    """
    lines = rows(Path(path))
    head = next(lines, None)
    if head is None:
        raise UsageError(f"{path}:1: the columns must be {', '.join(orion.COLUMNS)}, or those of Nsight Compute")
    reader = nsight.profiles if nsight.KERNEL in head.cells else orion.profiles
    launches: dict[str, list[Profile]] = {}
    for one in reader(head, lines):
        launches.setdefault(one.name, []).append(one)
    if len(launches) > MOST_KERNELS:
        raise UsageError(f"{path}: {len(launches)} kernels: there is room for {MOST_KERNELS}")
    return [sorted(each, key=lambda one: one.duration_ns)[len(each) // 2] for each in launches.values()]
