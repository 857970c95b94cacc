"""What was measured, as files: a cell is one experiment under one system in one round."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from bench.papers.common.folder import DIGESTS, Folder
from bench.papers.common.results import TaskResult


class Cell(msgspec.Struct):
    """`asked_us` has of each request, in order, the time until the last of the programs that were asked had ended;
    `each_us` each program's own. `served` has what a window gave. `counters` is what Runlist counted, by program.
    """

    experiment: str
    system: str
    title: str
    round: int
    asked_us: list[float] = []
    each_us: dict[str, list[float]] = {}
    served: dict[str, TaskResult] = {}
    counters: dict[str, dict[str, int]] = {}
    wrong: int = 0
    note: str = ""
    correct: bool | None = None

    @property
    def notes(self) -> list[str]:
        """Everything that its row has to say."""
        found = [self.note, *(task.died for task in self.served.values())]
        found += [f"{self.wrong} wrong results"] if self.wrong else []
        found += ["results are not right at the end"] if self.correct is False else []
        return list(dict.fromkeys(filter(None, found)))


class Store(Folder):
    """The folder of a run."""

    def _path(self, experiment: str, system: str, number: int) -> Path:
        return self.folder / experiment / f"{system}-{number}.json"

    def has(self, experiment: str, system: str, number: int) -> bool:
        """Whether a cell was measured; one that failed is to be tried again."""
        path = self._path(experiment, system, number)
        if not path.exists():
            return False
        cell: Cell = self.read(path, Cell)
        return not cell.note and not any(task.died for task in cell.served.values())

    def put(self, cell: Cell) -> None:
        """Keep a cell."""
        path = self._path(cell.experiment, cell.system, cell.round)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.write(path, cell)

    def cells(self) -> Iterator[Cell]:
        """All of them, by experiment, system and round."""
        for path in sorted(self.folder.glob("*/*-[0-9]*.json")):
            if path.parent.name != DIGESTS:
                yield self.read(path, Cell)
