"""What a run will do, and how long that takes: known before it begins, so that it ends in time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.papers.common.driving import MODES
from bench.papers.gpreempt.config import Workload
from bench.papers.gpreempt.systems.system import System

FULL_S, QUICK_S = 7_200.0, 720.0
"""All that a run may take."""

QUICK_WORKLOADS = ("A", "C", "Z")

WINDOW_S, QUICK_WINDOW_S, LEAST_WINDOW_S = 12.0, 2.0, 0.5
SETTLE_S, DRAIN_S = 0.5, 0.3
START_S, EMULATED_START_S = 22.0, 3.0
"""What it takes to start the processes of a group, all at the same time: PyTorch alone takes ten seconds of it."""

_SPARE = 0.9


@dataclass(frozen=True)
class Group:
    """Cells that are measured with the same processes."""

    workload: Workload
    name: str
    systems: tuple[System, ...]
    round: int


@dataclass(frozen=True)
class Schedule:
    """Groups in order, the length of a window, and the most that all may take."""

    groups: tuple[Group, ...]
    window_s: float
    budget_s: float
    start_s: float

    @property
    def cells(self) -> int:
        """How many."""
        return sum(len(group.systems) for group in self.groups)

    def group_s(self, group: Group) -> float:
        """About how long one takes."""
        return self.start_s + len(group.systems) * cell_s(self.window_s)

    @property
    def planned_s(self) -> float:
        """About how long all take."""
        return sum(map(self.group_s, self.groups))


def cell_s(window_s: float) -> float:
    """About how long a cell takes, its programs being there."""
    return len(MODES) * (SETTLE_S + window_s + DRAIN_S)


def schedule(
    workloads: Sequence[Workload], systems: Mapping[str, System], refused: Mapping[tuple[str, str], str], *,
    rounds: int, window_s: float | None, most_s: float, budget_s: float, start_s: float,
) -> Schedule:  # fmt: skip
    """All cells that are not refused, in an order in which processes are started seldom; windows as long as the budget
    has room for, at most `most_s`.
    """
    groups: list[Group] = []
    for number in range(1, rounds + 1):
        for workload in workloads:
            taken = [system for system in systems.values() if (workload.name, system.name) not in refused]
            names = dict.fromkeys(system.group(workload) for system in taken)
            for name in names:
                members = tuple(system for system in taken if system.group(workload) == name)
                groups.append(Group(workload, name, members, number))
    cells = max(1, sum(len(group.systems) for group in groups))
    if window_s is None:
        left = _SPARE * budget_s - len(groups) * start_s
        window_s = min(most_s, max(LEAST_WINDOW_S, left / cells / len(MODES) - SETTLE_S - DRAIN_S))
    return Schedule(tuple(groups), round(window_s, 2), budget_s, start_s)
