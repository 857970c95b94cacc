"""What came of a run, from its cells. Where something was not measured there is None, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from bench.papers.common.results import TaskResult
from bench.papers.orion.cells import Cell, Store
from bench.papers.orion.experiments import EACH, EXPERIMENTS, Experiment
from bench.papers.orion.systems import ALONE, ALONE_UNDER_MPS, MPS, SEQUENTIAL, SLICING, SYSTEMS, THREADS
from runlist.errors import UsageError
from runlist.statistics import percentile

UNSCHEDULED = {THREADS: "threads", MPS: "mps"}
"""What operations cost is compared with this: the same threads or processes, without a rule."""


@dataclass
class Results:
    """A run, or several of different experiments: the facts of each."""

    machines: Sequence[Mapping[str, Any]] = ()
    cells: list[Cell] = field(default_factory=list)

    @classmethod
    def of(cls, *stores: Store) -> Results:
        """Those of folders. Raises UsageError, also where an experiment is in two of them: each is of one run."""
        found = cls([store.machine() for store in stores])
        for store in stores:
            cells, before = list(store.cells()), {cell.experiment for cell in found.cells}
            if twice := before.intersection(cell.experiment for cell in cells):
                raise UsageError(f"{', '.join(sorted(twice))}: is in two of these runs: name one of them")
            found.cells += cells
        return found

    @property
    def machine(self) -> Mapping[str, Any]:
        """Where the first of them was measured."""
        return self.machines[0] if self.machines else {}

    @property
    def real(self) -> bool:
        """Whether it was measured on a GPU."""
        return bool(self.cells) and all(machine.get("device") != "emulated" for machine in self.machines)

    @property
    def experiments(self) -> list[Experiment]:
        """Those that were measured, in the usual order."""
        there = {cell.experiment for cell in self.cells}
        return [one for key, one in EXPERIMENTS.items() if key in there]

    def systems(self, experiment: Experiment) -> list[str]:
        """Those that gave something, in the usual order."""
        return [name for name in SYSTEMS if self.whole(experiment, name)]

    def whole(self, experiment: Experiment, system: str) -> list[Cell]:
        """The rounds in which all worked."""
        return [
            cell
            for cell in self.cells
            if (cell.experiment, cell.system) == (experiment.key, system)
            and (cell.asked_us or cell.served)
            and not any(task.died for task in cell.served.values())
        ]

    def asked_us(self, experiment: Experiment, system: str) -> float | None:
        """The median time until all programs had ended; None also where they were not asked together."""
        found = [time for cell in self.whole(experiment, system) for time in cell.asked_us]
        return median(found) if found and system != ALONE and experiment.kind != EACH else None

    def own_us(self, experiment: Experiment, system: str, task: str) -> float | None:
        """The median time of one program's request."""
        found = [time for cell in self.whole(experiment, system) for time in cell.each_us.get(task, ())]
        return median(found) if found else None

    def speedup(self, experiment: Experiment, system: str) -> float | None:
        """How many times as quick both are as one after the other."""
        ours, theirs = self.asked_us(experiment, system), self.asked_us(experiment, SEQUENTIAL)
        return theirs / ours if ours and theirs else None

    def efficiency(self, experiment: Experiment, system: str, task: str) -> float | None:
        """What is left of one client's rate without a rule, for a system with one."""
        ours, theirs = (
            self.own_us(experiment, system, task),
            self.own_us(experiment, UNSCHEDULED[SYSTEMS[system].form], task),
        )
        return theirs / ours if ours and theirs else None

    def _served(self, experiment: Experiment, system: str, task: str) -> list[TaskResult]:
        return [cell.served[task] for cell in self.whole(experiment, system) if task in cell.served]

    def p99_us(self, experiment: Experiment, system: str) -> float | None:
        """Of the high-priority program, from the intended arrival, over all rounds."""
        tasks = self._served(experiment, system, experiment.tasks[0].name)
        waits = sorted(wait for task in tasks for wait in task.waits)
        return percentile(waits, 99) if waits else None

    def p99_ratio(self, experiment: Experiment, system: str) -> float | None:
        """To that alone."""
        return self._p99_over(experiment, system, ALONE)

    def p99_ratio_under_mps(self, experiment: Experiment, system: str) -> float | None:
        """Of clients of MPS, to that alone as such a client: what the other program costs, without what MPS does."""
        return self._p99_over(experiment, system, ALONE_UNDER_MPS) if SYSTEMS[system].form == MPS else None

    def _p99_over(self, experiment: Experiment, system: str, other: str) -> float | None:
        ours, theirs = self.p99_us(experiment, system), self.p99_us(experiment, other)
        return ours / theirs if ours and theirs else None

    def rate(self, experiment: Experiment, system: str, task: str) -> float | None:
        """Requests a second, the mean of the rounds."""
        found = [one.rate for one in self._served(experiment, system, task)]
        return fmean(found) if found else None

    def together(self, experiment: Experiment, system: str) -> float | None:
        """Both programs' rates, each as a part of its rate alone, added up."""
        parts = []
        for task in experiment.tasks:
            ours, alone = self.rate(experiment, system, task.name), self.rate(experiment, ALONE, task.name)
            if ours is None or not alone:
                return None
            parts.append(ours / alone)
        return sum(parts)

    def together_ratio(self, experiment: Experiment, system: str) -> float | None:
        """That, over time slicing's."""
        ours, theirs = self.together(experiment, system), self.together(experiment, SLICING)
        return ours / theirs if ours and theirs else None

    def wrong(self, experiment: Experiment, system: str) -> int:
        """Results that are not those of the program alone, and programs that say so themselves."""
        found = self.whole(experiment, system)
        return sum(cell.wrong + (cell.correct is False) for cell in found)

    def deferred(self, experiment: Experiment, system: str) -> float | None:
        """The part of the best-effort clients' operations that waited."""
        urgent = experiment.tasks[0].name
        counted = [
            one
            for cell in self.whole(experiment, system)
            for name, one in cell.counters.items()
            if name != urgent and one.get("launched")
        ]
        launched = sum(one["launched"] for one in counted)
        return sum(one["deferred"] for one in counted) / launched if launched else None
