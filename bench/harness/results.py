"""The result files that are kept, to be read: by documents' generator, and by benchmarks that compare with a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from bench import ROOT
from bench.harness.figures import Figure

FOLDER = ROOT / "docs" / "results"


class KeptFigure(Figure, frozen=True):
    """A figure as a file has it, with the benchmark that measured it."""

    benchmark: str = ""

    def find(self, keys: Sequence[str]) -> Any:
        """What the details have at a path: a key each, or what a `configuration` of a list is called. Raises KeyError
        where there is no such thing; the value itself without keys.
        """
        found: Any = self.details if keys else self.value
        for key in keys:
            if isinstance(found, list):
                found = {row.get("configuration"): row for row in found if isinstance(row, dict)}
            if not isinstance(found, Mapping) or key not in found:
                raise KeyError(key)
            found = found[key]
        return found


class Machine(msgspec.Struct, frozen=True):
    """Where it was measured."""

    gpus: list[str]
    cores: int
    driver: str | None = None


class Kept(msgspec.Struct, frozen=True, dict=True):
    """A result file. `commit_is` says what the commit is, where it is not the one that was measured."""

    date: str
    runlist: str
    commit: str
    device: str
    machine: Machine
    command: str
    figures: list[KeptFigure]
    seconds: dict[str, float] = {}
    commit_is: str = ""
    name: str = ""

    @property
    def version(self) -> tuple[int, ...]:
        """To compare with."""
        return tuple(int(part) for part in self.runlist.split("."))

    @cached_property
    def gpu(self) -> str:
        """What it ran on, in words. On an emulated GPU the processors decide."""
        model = self.machine.gpus[0].removeprefix("NVIDIA ")
        if self.device == "emulated":
            return f"emulated, {self.machine.cores} cores"
        return f"{len(self.machine.gpus)} × {model}" if len(self.machine.gpus) > 1 else model

    def of(self, benchmark: str) -> list[KeptFigure]:
        """The figures of a benchmark."""
        return [figure for figure in self.figures if self.owner(figure) == benchmark]

    def owner(self, figure: KeptFigure) -> str:
        """The benchmark that a figure is of. Raises ValueError where the file does not tell."""
        if figure.benchmark:
            return figure.benchmark
        if len(self.seconds) == 1:
            return next(iter(self.seconds))
        raise ValueError(f"{self.name} does not say of which benchmark {figure.name!r} is: add the key `benchmark`")


def load(folder: Path = FOLDER) -> list[Kept]:
    """All of them, the oldest first. Raises ValueError for one that lacks what it must say."""
    kept = []
    for path in sorted(folder.glob("*.json")):
        try:
            kept.append(msgspec.structs.replace(msgspec.json.decode(path.read_bytes(), type=Kept), name=path.name))
        except msgspec.MsgspecError as error:
            raise ValueError(f"{path.name}: {error}") from None
    return sorted(kept, key=lambda one: (one.date, one.name))
