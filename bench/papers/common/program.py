"""A program that an experiment may name: how it is started, what it needs, what stands for it on an emulated GPU."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass, field

SHARED = "bench.papers.common.programs"
"""Where the programs are that several papers have, `spin` among them."""

SPIN = "spin"


@dataclass(frozen=True)
class Program:
    """A module of `package` and its options. `smoke` are the options of `spin`, which stands for it on an emulated GPU.
    `modules` are Python modules that it needs, `gpu_gb` about how much memory of the GPU it takes.
    """

    module: str
    words: tuple[str, ...] = ()
    smoke: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    gpu_gb: float = 0.5
    ways: frozenset[str] = field(default_factory=frozenset)
    package: str = SHARED

    def command(self, emulated: bool, *options: str) -> list[str]:
        """The words that start it."""
        return [sys.executable, "-m", *self.words_of(emulated, *options)]

    def words_of(self, emulated: bool, *options: str) -> list[str]:
        """Its module and options."""
        module = self.started_as(emulated)
        package = SHARED if module == SPIN else self.package
        return [f"{package}.{module}", *self.given(emulated), *options]

    def started_as(self, emulated: bool) -> str:
        """The module."""
        return SPIN if emulated else self.module

    def given(self, emulated: bool) -> tuple[str, ...]:
        """Its own options."""
        return self.smoke if emulated else self.words

    def missing(self, emulated: bool) -> str:
        """What is not installed here; empty when all is."""
        if emulated:
            return ""
        if importlib.util.find_spec(f"{self.package}.{self.module}") is None:
            return f"the program {self.module}"
        lacking = [name for name in self.modules if importlib.util.find_spec(name) is None]
        return ", ".join(f"the Python module {name}" for name in lacking)

    def offers(self, emulated: bool) -> frozenset[str]:
        """Of the ways of serving.Program, those that it has."""
        return frozenset({"hint"}) if emulated else self.ways


def spinning(kernel_us: float, kernels: int = 1, grid: int | None = None) -> tuple[str, ...]:
    """The options of `spin` for so many kernels a request, each so long alone."""
    words = ("--kernel-us", f"{kernel_us:g}", "--kernels", str(kernels))
    return words if grid is None else (*words, "--grid", str(grid))
