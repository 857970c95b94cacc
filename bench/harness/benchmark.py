"""What a benchmark is: a module of `bench/benchmarks` that says all of itself, and is found because it is there.

Its docstring says what it measures, `measure()` measures it, and `NEEDS` is what it cannot do without, if anything.
"""

from __future__ import annotations

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
    measure: Callable[[], list[Figure]]
    needs: Needs


def find() -> dict[str, Benchmark]:
    """All benchmarks by name, in the order of the alphabet. Raises AttributeError for a module that is none."""
    found = {}
    for package in map(importlib.import_module, PACKAGES):
        for one in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"{package.__name__}.{one.name}")
            summary = " ".join((module.__doc__ or "").partition("\n\n")[0].split())
            found[one.name] = Benchmark(one.name, summary, module.measure, getattr(module, "NEEDS", Needs()))
    return dict(sorted(found.items()))
