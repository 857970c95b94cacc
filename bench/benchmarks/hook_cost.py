"""What the library's hooks add to a call when the driver does nothing: no GPU is needed, and nothing else is noisy."""

from __future__ import annotations

from bench.harness import library
from bench.harness.benchmark import Needs
from bench.harness.compiled import built, quiet_cpu
from bench.harness.costs import Costs, turns
from bench.harness.figures import AT_MOST, Figure, with_details

NEEDS = Needs(programs=("cc",))
PROCESSES, ROUNDS = 5, 200
CALLS = {
    "launch": ("cuLaunchKernel", 50),
    "graph": ("cuGraphLaunch", 50),
    "allocation": ("cuMemAlloc+cuMemFree", 300),
    "asynchronous": ("cuMemAllocAsync+cuMemFreeAsync", 200),
}
"""What is called, and what may be added to it on a real driver, in nanoseconds."""


def measure() -> list[Figure]:
    """Processes that call a driver whose functions return at once, with a limit and without the library."""
    setups = {name: each for name, each in library.setups().items() if name != library.PRELOADED}
    with built("hooks", "nothing") as program:
        runs = turns([program, quiet_cpu(), ROUNDS], PROCESSES, setups)
    if any(one["hooked"] != [setup == library.LIMITED] for setup, each in runs.items() for one in each):
        raise RuntimeError("the library does not stand before the driver, or something else does")
    costs = Costs(runs)
    figures = [
        Figure(
            f"hooks of {what}: added",
            costs.within(library.LIMITED, f"{call} dlsym", f"{call} itself"),
            AT_MOST,
            most,
            "ns",
        )
        for call, (what, most) in CALLS.items()
    ]
    return with_details(figures, {"CPU ns of each process": costs.details()})
