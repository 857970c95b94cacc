"""What scheduling operations costs who launches them: on the launch path, into the queue, and over 100 large operations
and 10,000 small ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from bench.harness import library
from bench.harness.benchmark import Needs
from bench.harness.compiled import PTX, built, quiet_cpu, readings, run
from bench.harness.figures import AT_LEAST, AT_MOST, Figure, holds, rounded, with_details
from runlist.planes.nvidia.rm.transport import choose_driver

NEEDS = Needs(programs=("cc",))
PROCESSES = {"nvidia": 5, "emulated": 1}
ROUNDS = {"nvidia": 60, "emulated": 3}
LARGE = {"nvidia": 100, "emulated": 20}
SMALL = {"nvidia": 10_000, "emulated": 2_000}

CLIENTS = {"none": "no client", "hp": "high priority", "be": "best effort", "ahead": "best effort, 1 ms ahead at most"}
ITSELF, LINKED = "itself", "linked"
UNQUEUED_NS, QUEUED_NS = 300, 2_000
LEFT = {"large": 0.98, "small": 0.90}
"""What must be left of the rate, of large and of small operations."""

Readings = Mapping[str, Sequence[float]]


def measure() -> list[Figure]:
    """Processes of one program, which takes turns between its clients, and between the driver's own function and the
    one that the library stands before.
    """
    device = choose_driver().name
    environment = library.environment(RUNLIST_OPERATIONS="threads")
    with built("operations") as program:
        words = [program, PTX, quiet_cpu(), ROUNDS[device], LARGE[device], SMALL[device]]
        runs = [readings(run(list(map(str, words)), environment)) for _ in range(PROCESSES[device])]
    for one in runs:
        check(one)
    return figures(runs, LARGE[device], SMALL[device])


def check(one: Readings) -> None:
    """Raises RuntimeError where the readings would not be of what they say."""
    part = min(one.get("deferred", [0.0]))
    if part < 1:
        raise RuntimeError(
            f"only {part:.0%} of the launches had to wait beside a busy GPU: that is not the queue's cost"
        )


def figures(runs: Sequence[Readings], large: int, small: int) -> list[Figure]:
    """Medians over the processes of each process' medians."""
    found = [
        Figure(f"launch by {who}, unqueued: added", added_ns(runs, client), AT_MOST, UNQUEUED_NS, "ns")
        for client, who in CLIENTS.items()
    ]
    found += [
        Figure("launch into the queue: all of it", over(runs, "queued be"), AT_MOST, QUEUED_NS, "ns"),
        Figure("launch into the queue: p99", over(runs, "queued p99"), unit="ns"),
        Figure("from the queue to its end, each", over(runs, "drained"), unit="ns"),
    ]
    for what, count in (("large", large), ("small", small)):
        found += [
            Figure(
                f"{count:,} {what} operations by {who}: rate / unscheduled",
                left(runs, what, client),
                AT_LEAST,
                LEFT[what],
            )
            for client, who in CLIENTS.items()
            if client != "none"
        ]
    right = all(value == 1 for one in runs for client in CLIENTS for value in one[f"right {client}"])
    found.append(holds("all operations ran, and once", right))
    keys = dict.fromkeys(key for one in runs for key in one)
    return with_details(found, {"medians of each process": {k: rounded(_medians(runs, k), 1) for k in keys}})


def added_ns(runs: Sequence[Readings], client: str) -> float:
    """What a launch by a client takes longer than the driver's own function, in the same process."""
    ours, itself = (_medians(runs, f"launch {client} {route}") for route in (LINKED, ITSELF))
    return median(one - other for one, other in zip(ours, itself, strict=True))


def left(runs: Sequence[Readings], what: str, client: str) -> float:
    """The rate of many operations, over that by the driver's own function, in the same process."""
    ours, itself = (_medians(runs, f"{what} {client} {route}") for route in (LINKED, ITSELF))
    return median(other / one for one, other in zip(ours, itself, strict=True))


def over(runs: Sequence[Readings], key: str) -> float:
    """The median of the processes' medians."""
    return median(_medians(runs, key))


def _medians(runs: Sequence[Readings], key: str) -> list[float]:
    return [median(one[key]) for one in runs]
