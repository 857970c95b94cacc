"""What the library adds to a kernel launch: against the driver's own function in the same process, and as a whole."""

from __future__ import annotations

from collections.abc import Mapping

from bench.harness import library, peers
from bench.harness.benchmark import Needs
from bench.harness.compiled import PTX, built, quiet_cpu
from bench.harness.costs import Costs, turns
from bench.harness.figures import AT_MOST, Figure, with_details
from runlist.planes.nvidia.rm.transport import choose_driver

NEEDS = Needs(programs=("cc",))
PROCESSES = {"nvidia": 5, "emulated": 1}
ROUNDS = {"nvidia": 120, "emulated": 5}
ITSELF = "itself"
ROUTES = ("linked", "dlsym", "cuGetProcAddress")
HOOKED = {library.WITHOUT: (), library.PRELOADED: ("linked",), library.LIMITED: ROUTES}
"""The routes by which a program must meet the library. With nothing to do, it answers with the driver's own."""

KINDS = {"idle": "kernel launch, idle queue", "busy": "kernel launch, back to back",
         "graph": "launch of a CUDA graph of 16 kernels"}  # fmt: skip
TARGET_NS = 50

Readings = Mapping[str, list[float]]


def measure() -> list[Figure]:
    """Processes in turn: each launches kernels that have nothing to do, by every route in turn.

    Between two processes the medians differ by as much as the target even without the library, so the target is for
    the difference within a process; the one between processes is told beside it.
    """
    device = choose_driver().name
    with built("launch") as program:
        runs = turns([program, PTX, quiet_cpu(), ROUNDS[device]], PROCESSES[device], library.setups())
    for setup, each in runs.items():
        for one in each:
            check(setup, one)
    costs = Costs({setup: list(map(_times, each)) for setup, each in runs.items()})
    kinds = {kind: what for kind, what in KINDS.items() if f"{kind} {ITSELF}" in costs.keys}
    noise = {
        f"{kind} {route}": round(costs.within(library.WITHOUT, f"{kind} {route}", f"{kind} {ITSELF}"), 1)
        for kind in kinds
        for route in ROUTES
    }
    details = {
        "CPU ns of each process": costs.details(),
        "the same function by other routes, without the library, ns": noise,
        "by others, ns": peers.CALLS_NS,
    }
    figures = []
    for kind, what in kinds.items():
        for setup in (library.PRELOADED, library.LIMITED):
            keys = [f"{kind} {route}" for route in HOOKED[setup]]
            within = max(costs.within(setup, key, f"{kind} {ITSELF}") for key in keys)
            between = max(costs.added(setup, key) for key in keys)
            figures.append(Figure(f"{what}, {setup}: added", within, AT_MOST, TARGET_NS, "ns"))
            figures.append(Figure(f"{what}, {setup}: added, between processes", between, unit="ns"))
    return with_details(figures, details)


def check(setup: str, readings: Readings) -> None:
    """Raises RuntimeError when a route that must lead to the library leads to the driver's own function."""
    missed = [route for route in HOOKED[setup] if readings[f"hooked {route}"] != [1.0]]
    if missed:
        raise RuntimeError(f"{setup}: the library is not at work for a launch found by: {', '.join(missed)}")


def _times(readings: Readings) -> Readings:
    return {key: numbers for key, numbers in readings.items() if not key.startswith("hooked ")}
