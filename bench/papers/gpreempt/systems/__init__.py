"""The compared systems, a short file each: a module here with `SYSTEM`. The interface is in `system.py`."""

from __future__ import annotations

from pathlib import Path

from bench.papers.gpreempt.systems import (
    alone,
    blocks,
    gpreempt,
    mps,
    one_process,
    orion,
    peer,
    reset,
    runlist,
    sequential,
    slicing,
)
from bench.papers.gpreempt.systems.system import System
from runlist.errors import UsageError

SYSTEMS: dict[str, System] = {
    system.name: system
    for system in (
        alone.SYSTEM, slicing.SYSTEM, sequential.SYSTEM, gpreempt.SYSTEM, gpreempt.HINTED, *gpreempt.SWEEP,
        one_process.SYSTEM, orion.SYSTEM, mps.SYSTEM, blocks.SYSTEM, reset.SYSTEM, runlist.SYSTEM, runlist.OVER_MPS,
    )
}  # fmt: skip
"""By name, in the order in which a run takes them: those that share their processes are neighbours."""


def chosen(names: str | None, peers: list[str]) -> dict[str, System]:
    """Those of a command line: names by commas (None: all), and `NAME=PATH` of each peer. Raises UsageError."""
    found = dict(SYSTEMS) if names is None else {}
    for name in filter(None, map(str.strip, (names or "").split(","))):
        if name not in SYSTEMS:
            raise UsageError(f"no system {name!r}: take {', '.join(SYSTEMS)}")
        found[name] = SYSTEMS[name]
    if alone.SYSTEM.name not in found:
        found = {alone.SYSTEM.name: alone.SYSTEM, **found}
    for text in peers:
        name, equals, path = text.partition("=")
        if not equals or not name.isidentifier() or name in SYSTEMS:
            raise UsageError(f"--peer {text}: write NAME=PATH, with a name of letters that is none of ours")
        found[name] = peer.Peer(name, Path(path))
    return found
