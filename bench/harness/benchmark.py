"""What a benchmark is: a module of `bench/benchmarks` that says all of itself, and is found because it is there.

Its docstring says what it measures, `measure()` measures it, and `NEEDS` is what it cannot do without, if anything. One
that has options of its own adds them to a parser in `add_options(parser)`, and takes what was said: `measure(options)`.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import pkgutil
import shutil
from collections.abc import Callable
from dataclasses import dataclass

from bench.harness.figures import Figure

PACKAGES = ("bench.benchmarks",)
"""Where benchmarks are. Their names are their modules', so no two packages may have the same."""


@dataclass(frozen=True)
class Needs:
    """What a benchmark cannot do without."""

    device: str = ""
    """`nvidia` or `emulated`, when it says something on one of them only."""
    gpus: int = 1
    programs: tuple[str, ...] = ()
    """Commands, such as a compiler."""
    modules: tuple[str, ...] = ()
    """Python modules that Runlist itself does not need."""

    def missing(self, device: str, gpus: int) -> str:
        """What is not here, on this device with so many GPUs; empty when all is."""
        if self.device and self.device != device:
            return f"the device {self.device}"
        if gpus < self.gpus:
            return f"{self.gpus} GPUs"
        lacking = [f"the program {each}" for each in self.programs if shutil.which(each) is None]
        lacking += [f"the Python module {each}" for each in self.modules if importlib.util.find_spec(each) is None]
        return ", ".join(lacking)


@dataclass(frozen=True)
class Benchmark:
    """A benchmark. `measure` raises RunlistError, RuntimeError, OSError or SubprocessError when it cannot finish."""

    name: str
    summary: str
    measure: Callable[..., list[Figure]]
    needs: Needs
    add_options: Callable[[argparse._ArgumentGroup], None] | None = None

    def run(self, options: argparse.Namespace) -> list[Figure]:
        """What it measures, with its own of these options."""
        return self.measure(options) if self.add_options else self.measure()

    @functools.cached_property
    def options(self) -> tuple[str, ...]:
        """The names of its options, without dashes."""
        parser = argparse.ArgumentParser(add_help=False)
        if self.add_options is not None:
            self.add_options(parser.add_argument_group())
        return tuple(vars(parser.parse_args([])))


def find() -> dict[str, Benchmark]:
    """All benchmarks by name, in the order of the alphabet. Raises AttributeError for a module that is none."""
    found = {}
    for package in map(importlib.import_module, PACKAGES):
        for one in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"{package.__name__}.{one.name}")
            summary = " ".join((module.__doc__ or "").partition("\n\n")[0].split())
            needs, add_options = getattr(module, "NEEDS", Needs()), getattr(module, "add_options", None)
            found[one.name] = Benchmark(one.name, summary, module.measure, needs, add_options)
    return dict(sorted(found.items()))
