"""Programs that use what CUDA and frameworks offer, with nothing of Runlist in them: what they say, how they end."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench import ROOT

FOLDER = ROOT / "bench" / "foreign"
PATIENCE_S = 100.0
_COMPLAINED = 60  # lines
_NVCC = ("nvcc", "-std=c++20", "-O1", "-arch=native", "-rdc=true", "-lcudadevrt", "-lcuda")


@dataclass(frozen=True)
class Foreign:
    """A program. Of what it says the lines that match `says` count; `alone`, it takes what the others need."""

    name: str
    words: tuple[str, ...]
    says: str = ""
    alone: bool = False
    environment: tuple[tuple[str, str], ...] = ()


class Ended(msgspec.Struct, frozen=True):
    """How one ended: its exit code, None for one that did not end; what it said on stdout, and last on stderr."""

    code: int | None
    said: list[str]
    complained: list[str]
    seconds: float


def compiled(folder: Path) -> Path:
    """The program of CUDA's features. Raises RuntimeError when it does not compile."""
    program = folder / "features"
    done = subprocess.run(
        [*_NVCC, *map(str, sorted(FOLDER.glob("*.cu"))), "-o", str(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"bench/foreign does not compile: {done.stderr.strip()[-300:]}")
    return program


_ALONE = {"all_memory", "jax_training", "jax_ways", "out_of_memory"}
_ALLOCATORS = {"expandable": "expandable_segments:True", "asynchronous": "backend:cudaMallocAsync"}


def programs(features: Path) -> list[Foreign]:
    """All of them that this machine has."""
    runs: list[tuple[str, tuple[str, ...]]] = [(name, (str(features), name)) for name in _words([str(features)])]
    for script in ("torch_ways", "other_ways"):
        runs += [(name, (sys.executable, str(FOLDER / f"{script}.py"), name)) for name in _ways(script)]
    runs.append(("triton_kernel", (sys.executable, str(FOLDER / "triton_kernel.py"))))
    found = [Foreign(name, words, alone=name in _ALONE) for name, words in runs]
    torch = str(FOLDER / "torch_ways.py")
    for name, allocator in _ALLOCATORS.items():
        for way in ("allocations", "captured", "training", "out_of_memory"):
            settings = (("PYTORCH_CUDA_ALLOC_CONF", allocator),)
            words = (sys.executable, torch, way)
            found.append(Foreign(f"{way}, {name}", words, alone=way in _ALONE, environment=settings))
    return found + [each for each in _tools(features) if shutil.which(each.words[0])]


def _tools(features: Path) -> list[Foreign]:
    """NVIDIA's own, over one of the features."""
    program = str(features)
    return [
        Foreign("nvidia-smi", ("nvidia-smi", "-L")),
        Foreign(
            "compute-sanitizer",
            ("compute-sanitizer", "--tool", "memcheck", program, "streams"),
            says="priorities|ERROR",
        ),
        Foreign(
            "racecheck", ("compute-sanitizer", "--tool", "racecheck", program, "cooperative"), says="multipro|SUMMARY"
        ),
        Foreign("ncu", ("ncu", program, "graphs"), says="^[0-9]+$|Duration  "[:8]),
        Foreign(
            "cuda-gdb", ("cuda-gdb", "-batch", "-ex", "run", "--args", program, "threads"), says="^[0-9 ]+$|exited"
        ),
    ]


def _words(command: Sequence[str]) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def _ways(script: str) -> list[str]:
    """The names that a script knows, without what it imports."""
    text = (FOLDER / f"{script}.py").read_text(encoding="utf-8")
    return re.findall(r"^def ([a-z]\w+)\(\) -> None:$", text, re.MULTILINE)


def run(foreign: Foreign, before: Sequence[str], environment: dict[str, str]) -> Ended:
    """Run one behind these words. What stays of it after its time is killed."""
    begun = time.monotonic()
    process = subprocess.Popen(
        [*before, *foreign.words],
        env=environment | {"PYTHONFAULTHANDLER": "1"} | dict(foreign.environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    code: int | None = None
    try:
        out, err = process.communicate(timeout=PATIENCE_S)
        code = process.returncode
    except subprocess.TimeoutExpired:
        out, err = _ended(process)
    said = [each for each in out.splitlines() if re.search(foreign.says, each)]
    return Ended(code, said, err.splitlines()[-_COMPLAINED:], round(time.monotonic() - begun, 2))


def _ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """End one by force, with all that has its pipes; Python says first where each thread is."""
    for number in (signal.SIGABRT, signal.SIGKILL):
        with contextlib.suppress(subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            return process.communicate(timeout=5)
    return process.communicate()
