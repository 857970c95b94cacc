"""What was measured, as files: a cell is one workload under one system in one round, written whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from bench.papers.common.folder import DIGESTS, MACHINE, Folder
from bench.papers.common.results import TaskResult


class Cell(msgspec.Struct):
    """`modes` has, by how a queue was dealt with, the result of each task. `note` says why there are none. `timeline`
    has who held the GPU in a moment of it: task, and from when to when in µs.
    """

    workload: str
    system: str
    title: str
    round: int
    modes: dict[str, dict[str, TaskResult]] = {}
    note: str = ""
    correct: bool | None = None
    timeline: list[tuple[str, float, float]] = []

    def of_kind(self, mode: str, kind: str) -> list[TaskResult]:
        """The tasks that are LC, or BE."""
        return [task for task in self.modes.get(mode, {}).values() if task.kind == kind]

    @property
    def died(self) -> list[str]:
        """How programs did."""
        return [task.died for tasks in self.modes.values() for task in tasks.values() if task.died]

    @property
    def notes(self) -> list[str]:
        """Everything that its row has to say."""
        wrong = sum(task.wrong for tasks in self.modes.values() for task in tasks.values())
        found = [self.note, *self.died]
        found += [f"{wrong} wrong results"] if wrong else []
        found += ["results are not right at the end"] if self.correct is False else []
        return list(dict.fromkeys(filter(None, found)))


class Standalone(msgspec.Struct, frozen=True):
    """A program with nobody beside it, one request after the other: means in µs, and requests a second."""

    mean_us: float
    rate: float
    phases_us: dict[str, float]


class Store(Folder):
    """The folder of a run."""

    def window_s(self) -> float | None:
        """The length of the windows of the run that is there, if one is."""
        return float(self.machine()["window_s"]) if (self.folder / MACHINE).exists() else None

    def remarks(self) -> str:
        """What `remarks.txt` in the folder says of the run, as a paragraph; empty where there is none."""
        path = self.folder / _REMARKS
        return f"\n{path.read_text(encoding='utf-8').strip()}\n" if path.exists() else ""

    def _path(self, workload: str, system: str, number: int) -> Path:
        return self.folder / workload / f"{system}-{number}.json"

    def has(self, workload: str, system: str, number: int) -> bool:
        """Whether a cell was measured; one that failed, or in which a program died, is to be tried again."""
        path = self._path(workload, system, number)
        if not path.exists():
            return False
        cell: Cell = self.read(path, Cell)
        return not cell.note and not cell.died

    def put(self, cell: Cell) -> None:
        """Keep a cell."""
        path = self._path(cell.workload, cell.system, cell.round)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.write(path, cell)

    def cells(self) -> Iterator[Cell]:
        """All of them, by workload, system and round."""
        for path in sorted(self.folder.glob("*/*-[0-9]*.json")):
            if path.parent.name not in (_STANDALONE, DIGESTS):
                yield self.read(path, Cell)

    def standalone(self, program: str) -> Standalone | None:
        """What is known of a program alone."""
        path = self.folder / _STANDALONE / f"{program}.json"
        return self.read(path, Standalone) if path.exists() else None

    def put_standalone(self, program: str, found: Standalone) -> None:
        """Keep that."""
        (self.folder / _STANDALONE).mkdir(exist_ok=True)
        self.write(self.folder / _STANDALONE / f"{program}.json", found)


_STANDALONE = "standalone"
_REMARKS = "remarks.txt"
