"""What the library adds to allocating and freeing device memory, with few and with many live allocations."""

from __future__ import annotations

from bench.harness import library, peers
from bench.harness.benchmark import Needs
from bench.harness.compiled import built, quiet_cpu
from bench.harness.costs import Costs, turns
from bench.harness.figures import AT_MOST, KIB, MIB, Figure, with_details
from runlist.planes.nvidia.rm.transport import choose_driver

NEEDS = Needs(programs=("cc",))
ROUNDS = 8
BATCHES = {"nvidia": 40, "emulated": 4}
LIVE = {"nvidia": (100, 100_000), "emulated": (100, 10_000)}
KINDS = (
    ("cuMemAlloc+cuMemFree of 1 MiB", f"sync {MIB}", 300),
    ("cuMemAlloc+cuMemFree of 4 KiB", f"sync {4 * KIB}", 300),
    ("cuMemAlloc+cuMemFree of 4 MiB", f"sync {4 * MIB}", None),
    ("cuMemAlloc+cuMemFree of 64 MiB", f"sync {64 * MIB}", None),
    ("cuMemAllocAsync+cuMemFreeAsync of 1 MiB", f"async {MIB}", 200),
)
"""Words, the program's name of it, and the target in ns; 300 ns are in the noise of the two that have none."""


def measure() -> list[Figure]:
    """Processes in turn: each measures beside few live allocations, then beside many."""
    device = choose_driver().name
    lives = LIVE[device]
    with built("alloc") as program:
        runs = turns([program, quiet_cpu(), BATCHES[device], *lives], ROUNDS, library.setups())
    costs = Costs(runs)
    details = {"ns of each process": costs.details(), "by others, ns": peers.CALLS_NS}
    figures = [
        Figure(
            f"{what}, {live:,} live: added",
            costs.added(library.LIMITED, f"{key} {live}"),
            AT_MOST if target else "",
            target,
            "ns",
        )
        for what, key, target in KINDS
        for live in lives
        if f"{key} {live}" in costs.keys
    ]
    return with_details(figures, details)
