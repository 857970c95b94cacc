"""Profiles from Nsight Compute: `ncu --csv --page raw --print-kernel-base mangled`, with the sections SpeedOfLight,
LaunchStats and Occupancy, or with the metrics that are named here.

A line is a launch; the second line has units. A kernel is bound by what it uses more of, where that is 60 % or more of
what there is, as in Orion; else by neither. It needs as many SMs as its blocks fill.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

from runlist.errors import UsageError
from runlist.operations.admission import Bound
from runlist.operations.profiles.lines import Row, number
from runlist.operations.profiles.profile import LONGEST_NS, MOST_SMS, Profile, wrong

KERNEL = "Kernel Name"
_GRID, _BLOCK, _CAPABILITY = "Grid Size", "Block Size", "CC"
_DURATION = "gpu__time_duration.sum"
_REGISTERS = "launch__registers_per_thread"
_COMPUTE = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
_MEMORY = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
_LIMITS = tuple(f"launch__occupancy_limit_{what}" for what in ("blocks", "registers", "shared_mem", "warps"))
"""How many blocks an SM takes at once, by what bounds them."""
_SMS = "device__attribute_multiprocessor_count"
_NEEDED = (KERNEL, _GRID, _BLOCK, _DURATION, _REGISTERS, _COMPUTE, _MEMORY)

_BUSY = 60.0
_NS = {
    "ns": 1, "nsecond": 1, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6, "s": 1e9, "second": 1e9,
}  # fmt: skip
_NAME = re.compile(r"[\w.$@]+")
_SIZE = re.compile(r"\(? *(\d{1,10})(?: *, *(\d{1,10}))?(?: *, *(\d{1,10}))? *\)?", re.ASCII)
_WARP, _REGISTER_FILE, _REGISTERS_EACH = 32, 65536, 256  # registers are given to warps, so many at a time
_THREADS = {"7.5": 1024, "8.6": 1536, "8.7": 1536, "8.9": 1536, "12.0": 1536, "12.1": 1536}
_BLOCKS = {"7.5": 16, "8.6": 16, "8.7": 16, "8.9": 24, "12.0": 24, "12.1": 24}
"""Of an SM, where they are not 2048 threads and 32 blocks."""


def profiles(head: Row, rows: Iterable[Row]) -> Iterator[Profile]:
    """One a launch. Raises UsageError."""
    missing = [name for name in _NEEDED if name not in head.cells]
    if missing:
        raise UsageError(f"{head.where}: no column {', '.join(missing)}: take them with `ncu --section` or `--metrics`")
    twice = sorted({name for name in head.cells if name in _NEEDED and head.cells.count(name) > 1})
    if twice:
        raise UsageError(f"{head.where}: the column {twice[0]} is there twice")
    scale = math.nan
    for row in rows:
        if len(row.cells) != len(head.cells):
            raise UsageError(f"{row.where}: {len(row.cells)} columns, not {len(head.cells)}")
        cells = dict(zip(head.cells, row.cells, strict=True))
        if math.isnan(scale):
            scale = _unit(cells[_DURATION], row.where)
            continue
        yield _profile(cells, scale, row.where)


def _unit(text: str, where: str) -> float:
    if text not in _NS:
        raise UsageError(f"{where}: the unit of {_DURATION} is {text!r}: take {', '.join(_NS)}")
    return _NS[text]


def _profile(cells: dict[str, str], scale: float, where: str) -> Profile:
    name = cells[KERNEL]
    if name and not _NAME.fullmatch(name):
        raise UsageError(f"{where}: the kernel {name!r} is not as in its module: use --print-kernel-base mangled")
    sms = number(cells[_SMS], _SMS, MOST_SMS, where) if cells.get(_SMS) else MOST_SMS
    found = Profile(
        name, _bound(cells, where), min(round(sms), _sms(cells, where)),
        round(number(cells[_DURATION], _DURATION, LONGEST_NS / scale, where) * scale),
    )  # fmt: skip
    if why := wrong(found):
        raise UsageError(f"{where}: {why}")
    return found


def _bound(cells: dict[str, str], where: str) -> Bound:
    compute, memory = (number(cells[name], name, 1e3, where) for name in (_COMPUTE, _MEMORY))
    if max(compute, memory) < _BUSY:
        return Bound.UNKNOWN
    return Bound.COMPUTE if compute >= memory else Bound.MEMORY


def _sms(cells: dict[str, str], where: str) -> int:
    """How many its blocks fill."""
    blocks, threads = (_product(cells[name], name, where) for name in (_GRID, _BLOCK))
    if threads > 1024:
        raise UsageError(f"{where}: {_BLOCK} {cells[_BLOCK]!r}: a block has 1024 threads at most")
    limits = [number(cells[name], name, 1 << 20, where) for name in _LIMITS if cells.get(name)]
    if len(limits) < len(_LIMITS):
        registers = number(cells[_REGISTERS], _REGISTERS, 1024, where)
        warps = -(-threads // _WARP)
        given = -(-round(registers) * _WARP // _REGISTERS_EACH) * _REGISTERS_EACH * warps
        capability = cells.get(_CAPABILITY, "")
        limits += [_BLOCKS.get(capability, 32), _THREADS.get(capability, 2048) // (warps * _WARP)]
        limits += [_REGISTER_FILE // given] if given else []
    each = max(1, round(min(limits)))
    return min(MOST_SMS, -(-blocks // each))


def _product(text: str, column: str, where: str) -> int:
    match = _SIZE.fullmatch(text)
    product = math.prod(int(part) for part in match.groups() if part) if match is not None else 0
    if not 0 < product < 1 << 63:
        raise UsageError(f"{where}: {column} {text!r}: take (x, y, z)")
    return product
