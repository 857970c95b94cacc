"""The figures' numbers, from the cells of a run. Where something was not measured there is None, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from bench.papers.common.driving import NEWEST
from bench.papers.common.results import TaskResult
from bench.papers.gpreempt.cells import Cell, Standalone, Store
from bench.papers.gpreempt.config import MICRO, PUBLISHED
from bench.papers.gpreempt.systems import SYSTEMS

ALONE, NP, SLICING = "alone", "one-process", "slicing"
BEST_EFFORT, URGENT = "BE", "LC"


@dataclass
class Results:
    """A run. Figures are those of whole cells: one in which a program died has none."""

    machine: Mapping[str, Any] = field(default_factory=dict)
    cells: list[Cell] = field(default_factory=list)
    alone: Mapping[str, Standalone] = field(default_factory=dict)
    remarks: str = ""
    """What whoever kept the run says of it, in Markdown."""

    @classmethod
    def of(cls, store: Store) -> Results:
        """Those of a folder. Raises UsageError."""
        machine, cells = store.machine(), list(store.cells())
        workloads, systems = [*PUBLISHED, *MICRO], list(SYSTEMS)

        def place(cell: Cell) -> tuple[int, str, int, str, int]:
            known = [
                order.index(name) if name in order else len(order)
                for name, order in ((cell.workload, workloads), (cell.system, systems))
            ]
            return known[0], cell.workload, known[1], cell.system, cell.round

        cells.sort(key=place)
        programs = {task.program for cell in cells for mode in cell.modes.values() for task in mode.values()}
        found = {name: one for name in programs if (one := store.standalone(name)) is not None}
        return cls(machine, cells, found, store.remarks())

    @property
    def real(self) -> bool:
        """Whether it was measured on a GPU."""
        return bool(self.cells) and self.machine.get("device") != "emulated"

    @property
    def workloads(self) -> list[str]:
        """In the usual order, the user's own last."""
        there = {cell.workload for cell in self.cells}
        usual = [name for name in (*PUBLISHED, *MICRO) if name in there]
        return usual + sorted(there - set(usual))

    @property
    def systems(self) -> list[str]:
        """In the usual order, peers last."""
        there = {cell.system for cell in self.cells}
        usual = [name for name in SYSTEMS if name in there]
        return usual + sorted(there - set(usual))

    def title(self, system: str) -> str:
        """For people."""
        return next((cell.title for cell in self.cells if cell.system == system), system)

    def whole(self, workload: str, system: str, mode: str = NEWEST) -> list[Cell]:
        """The rounds of a cell in which all worked."""
        return [
            cell
            for cell in self.cells
            if (cell.workload, cell.system) == (workload, system)
            and cell.modes.get(mode)
            and not any(task.died for task in cell.modes[mode].values())
        ]

    def _over(self, workload: str, system: str, mode: str, value: Callable[[Cell], float | None]) -> float | None:
        """The mean over the rounds."""
        found = [one for cell in self.whole(workload, system, mode) if (one := value(cell)) is not None]
        found = [one for one in found if math.isfinite(one)]
        return fmean(found) if found else None

    def latency_us(self, workload: str, system: str, mode: str = NEWEST, percent: float | None = None) -> float | None:
        """Of the latency-critical tasks, the mean over these of their means; with `percent`, of that percentile."""

        def of(task: TaskResult) -> float:
            return task.mean() if percent is None else task.at(percent)

        return self._over(workload, system, mode, lambda cell: mean(map(of, cell.of_kind(mode, URGENT))))

    def added_us(self, workload: str, system: str, mode: str = NEWEST, percent: float | None = None) -> float | None:
        """The same, less what it is alone."""
        both = [self.latency_us(workload, one, mode, percent) for one in (system, ALONE)]
        return None if both[0] is None or both[1] is None else both[0] - both[1]

    def best_effort_rate(self, workload: str, system: str, mode: str = NEWEST) -> float | None:
        """Requests a second of all best-effort tasks together; None where these do not work."""
        if system == ALONE:
            return None
        return self._over(workload, system, mode, lambda cell: sum(one.rate for one in cell.of_kind(mode, BEST_EFFORT)))

    def rate_ratio(self, workload: str, system: str, over: str = NP, mode: str = NEWEST) -> float | None:
        """That over another system's."""
        ours, theirs = (self.best_effort_rate(workload, one, mode) for one in (system, over))
        return None if ours is None or not theirs else ours / theirs

    def latencies(self, workload: str, system: str, mode: str) -> list[float]:
        """Every latency-critical request's, ascending, µs."""
        return sorted(
            wait
            for cell in self.whole(workload, system, mode)
            for task in cell.of_kind(mode, URGENT)
            for wait in task.waits
        )

    def wrong(self) -> tuple[int, int] | None:
        """Wrong results, and how many cells were looked at; None without any."""
        if not self.cells:
            return None
        digests = sum(task.wrong for cell in self.cells for mode in cell.modes.values() for task in mode.values())
        return digests + sum(cell.correct is False for cell in self.cells), len(self.cells)


def mean(values: Iterable[float]) -> float | None:
    """None without values."""
    found = list(values)
    return fmean(found) if found else None
