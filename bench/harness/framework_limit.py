"""The common frameworks under a memory limit: the same results bit for bit, in the same time, the limit in sight."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.harness import library
from bench.harness.child import Child, python
from bench.harness.figures import AT_MOST, Figure, holds, rounded

LIMIT = 24 << 30
ROUNDS, WINDOW_S, WARM_UP_S = 10, 0.5, 0.5
START_S = 180.0
TARGET = 1.01


@dataclass(frozen=True)
class Framework:
    """A program of `frameworks/`, what it does, and how many of it are started with the library and without."""

    name: str
    module: str
    parts: Sequence[str]
    processes: int = 2


def measure(framework: Framework) -> list[Figure]:
    """Processes with the limit and without the library at the same time; each in turn works while the others wait."""
    with contextlib.ExitStack() as stack:
        children = {
            setup: [
                stack.enter_context(Child(python(f"bench.frameworks.{framework.module}"), environment))
                for _ in range(framework.processes)
            ]
            for setup, environment in setups().items()
        }
        facts = {setup: [child.ask_json("facts", START_S) for child in each] for setup, each in children.items()}
        figures = in_sight(framework.name, facts)
        for part in framework.parts:
            figures += _compared(framework.name, part, children)
    return figures


def setups() -> dict[str, dict[str, str]]:
    """The environments that are compared, by name."""
    return {library.LIMITED: library.environment(RUNLIST_MEMORY=LIMIT), library.WITHOUT: library.without()}


def in_sight(name: str, facts: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Figure]:
    """Whether what the framework sees is the limit; a pool that it takes at once is to be within."""
    details = {"limit": LIMIT, **facts}
    shown = [one[key] for one in facts[library.LIMITED] for key in ("total", "properties") if key in one]
    pools = [one["pool"] for one in facts[library.LIMITED] if "pool" in one]
    figures = []
    if shown:
        right = all(each == LIMIT for each in shown)
        figures.append(holds(f"{name}: total memory seen is the limit", right, details))
    if pools:
        figures.append(Figure(f"{name}: preallocated / limit", max(pools) / LIMIT, AT_MOST, 1, details=details))
    return figures


def _compared(name: str, part: str, children: Mapping[str, Sequence[Child]]) -> list[Figure]:
    every = [(setup, child) for setup, each in children.items() for child in each]
    hashes = {setup: [child.ask_json(f"check {part}")["hash"] for child in each] for setup, each in children.items()}
    for _, child in every:
        child.ask_json(f"time {part} {WARM_UP_S}")
    rounds: list[dict[str, float]] = []
    for turn in range(ROUNDS):
        steps: dict[str, list[float]] = {setup: [] for setup in children}
        for setup, child in every[:: -1 if turn % 2 else 1]:
            steps[setup] += child.ask_json(f"time {part} {WINDOW_S}")["seconds"]
        rounds.append({setup: median(each) * 1e3 for setup, each in steps.items()})
    same = len({one for each in hashes.values() for one in each}) == 1
    details = {
        "a step, ms, by round": {setup: rounded([one[setup] for one in rounds]) for setup in children},
        "hashes": hashes,
    }
    return [
        holds(f"{name}, {part}: same results bit for bit", same),
        Figure(f"{name}, {part}: time / without the library", ratio(rounds), AT_MOST, TARGET, details=details),
    ]


def ratio(rounds: Sequence[Mapping[str, float]]) -> float:
    """The median over the rounds of the time under the limit over that without the library in the same round."""
    return median(one[library.LIMITED] / one[library.WITHOUT] for one in rounds)
