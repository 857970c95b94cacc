"""Programs of `programs/` in C: compiling them, and what they print."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path

from bench import ROOT

SOURCES = ROOT / "bench" / "programs"
PTX = Path(str(resources.files("runlist.workloads").joinpath("kernels.autogen.ptx")))
"""The project's kernels, for programs that launch some."""

SONAMES = {"nothing": "libcuda.so.1"}
"""Of libraries of `programs/` that stand for others."""

_BUILD_S, _RUN_S = 60.0, 120.0


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
