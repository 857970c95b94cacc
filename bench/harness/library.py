"""Programs with the library and without: how they are built, their environments, and taking turns between them."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from msgspec import structs

import runlist
from bench.harness.child import ROOT
from bench.harness.figures import Figure, rounded
from runlist.region import Region, create

Result = TypeVar("Result")

WITHOUT, PRELOADED, LIMITED = "without", "preloaded", "with a limit"
"""No library; the library with nothing to do; the library with a memory limit."""

SOURCES = ROOT / "bench" / "programs"
PTX = Path(str(resources.files("runlist.workloads").joinpath("kernels.autogen.ptx")))

AMPLE = "100G"
"""A memory limit that nothing here comes near."""

_READ = (
    "LD_PRELOAD",
    "RUNLIST_REGION",
    "RUNLIST_MEMORY",
    "RUNLIST_CAP",
    "RUNLIST_STRICT",
    "RUNLIST_DISABLE",
    "CUDA_DEVICE_MEMORY_",
    "CUDA_DEVICE_SM_LIMIT",
    "CUDA_DISABLE_CONTROL",
    "GPU_CORE_UTILIZATION_POLICY",
)
"""How the names of the variables begin that the library reads."""

SONAMES = {"nothing": "libcuda.so.1"}
"""Of libraries of `programs/` that stand for others."""

_NO_DAEMON = "/nonexistent/messages.sock"
_BUILD_S, _RUN_S = 60.0, 120.0


def environment(**variables: object) -> dict[str, str]:
    """A program's whole environment: the library preloaded by hand with these variables, beside no daemon.

    It is to refuse to start where it cannot do what they say.
    """
    given = {name: str(value) for name, value in variables.items()}
    return {**without(), "LD_PRELOAD": str(runlist.library()), "RUNLIST_STRICT": "1", **given}


def without() -> dict[str, str]:
    """A program's whole environment without the library, and without anything that it reads."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(_READ)}
    clean["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), clean.get("PYTHONPATH"))))
    return {**clean, "RUNLIST_MESSAGES": _NO_DAEMON}


def setups() -> dict[str, dict[str, str]]:
    """The environments that are compared, by name."""
    return {WITHOUT: without(), PRELOADED: environment(), LIMITED: environment(RUNLIST_MEMORY=AMPLE)}


@contextlib.contextmanager
def shared_region(folder: Path) -> Iterator[tuple[Region, dict[str, str]]]:
    """A region without limits yet, as `runlist run` makes one, and the environment of the processes that share it."""
    path, region = create(folder, strict=True)
    with contextlib.closing(region):
        yield region, environment(RUNLIST_REGION=path)


@contextlib.contextmanager
def built(name: str, *libraries: str) -> Iterator[Path]:
    """A program of `programs/`, compiled, and beside it (`NAME.so`) those that are to be preloaded into it.

    Raises RuntimeError without a C compiler.
    """
    with tempfile.TemporaryDirectory(prefix="runlist-bench-") as folder:
        for each in libraries:
            _compile(each, Path(folder) / f"{each}.so", "-shared", "-fPIC", f"-Wl,-soname,{SONAMES.get(each, each)}")
        program = Path(folder) / name
        _compile(name, program, "-rdynamic")
        yield program


def _compile(name: str, output: Path, *options: str) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        raise RuntimeError("no C compiler here: install one to build the programs that measure")
    words = [compiler, "-O2", *options, str(SOURCES / f"{name}.c"), "-o", str(output), "-ldl"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=_BUILD_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{name}.c does not compile: {(done.stderr.splitlines() or ['no reason given'])[0]}")


def quiet_cpu() -> int:
    """The processor that a program which is measured is to stay on: the last that this process may use."""
    return max(os.sched_getaffinity(0))


def run(words: Sequence[str | Path], environment: Mapping[str, str]) -> str:
    """What a program prints. Raises RuntimeError when it fails, or does not end."""
    name = Path(words[0]).name
    try:
        done = subprocess.run(
            words, env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_RUN_S,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{name} did not end in {_RUN_S:g} s") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise RuntimeError(f"{name}: {said[-1]}")
    return done.stdout


def readings(text: str) -> dict[str, list[float]]:
    """Lines of words and then a number, as the numbers by the words."""
    found: dict[str, list[float]] = {}
    for line in text.splitlines():
        key, _, number = line.rpartition(" ")
        found.setdefault(key, []).append(float(number))
    return found


def taking_turns(
    setups: Mapping[str, Mapping[str, str]], rounds: int, once: Callable[[Mapping[str, str]], Result]
) -> dict[str, list[Result]]:
    """The results of `once` in each environment, round by round; every other round is in the opposite order, so that
    what drifts is the same for all.
    """
    results: dict[str, list[Result]] = {name: [] for name in setups}
    for turn in range(rounds):
        for name in list(setups)[:: -1 if turn % 2 else 1]:
            results[name].append(once(setups[name]))
    return results


def with_details(figures: Sequence[Figure], details: Mapping[str, Any]) -> list[Figure]:
    """The figures, the first with the details of them all."""
    return [structs.replace(figures[0], details=details), *figures[1:]] if figures else []


class Costs:
    """Medians of each process, by environment and by what was measured; nanoseconds."""

    def __init__(self, runs: Mapping[str, Sequence[Mapping[str, Sequence[float]]]]) -> None:
        self.keys = list(dict.fromkeys(key for each in runs.values() for one in each for key in one))
        self.medians = {
            setup: {key: [median(one[key]) for one in each if key in one] for key in self.keys}
            for setup, each in runs.items()
        }

    def added(self, setup: str, key: str) -> float:
        """The median of the processes' medians, less the same without the library."""
        return median(self.medians[setup][key]) - median(self.medians[WITHOUT][key])

    def within(self, setup: str, key: str, base: str) -> float:
        """The median of what each process' median of `key` is above the same process' median of `base`."""
        of = self.medians[setup]
        return median(one - other for one, other in zip(of[key], of[base], strict=True))

    def details(self) -> dict[str, Any]:
        """Every process' median."""
        return {key: {setup: rounded(each[key], 1) for setup, each in self.medians.items()} for key in self.keys}
