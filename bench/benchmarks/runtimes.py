"""The memory limit under each CUDA runtime that is installed: CUDA 12 and 13, shared and static.

The runtimes come from the wheels nvidia-cuda-runtime-cu12 and nvidia-cuda-runtime, from wherever Python finds them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import runlist
from bench.harness.benchmark import Needs
from bench.harness.compiled import SOURCES
from bench.harness.figures import AT_LEAST, Figure

NEEDS = Needs("nvidia", programs=("cc",))
LIMIT = 2 << 30
TOO_MUCH = 3 << 30
OUT_OF_MEMORY = 2
SOURCE = SOURCES / "runtime.c"
TIMEOUT_S = 60
WHEELS = (
    ("12", "nvidia/cuda_runtime", "cudaGetDeviceProperties_v2"),
    ("13", "nvidia/cu13", "cudaGetDeviceProperties"),
)
"""CUDA version, folder in site-packages, name of cudaGetDeviceProperties in the library."""


@dataclass(frozen=True)
class Runtime:
    """A CUDA runtime to link with: the words for the compiler and linker."""

    name: str
    words: tuple[str, ...]


def runtimes() -> Iterator[Runtime]:
    """Those that are installed."""
    for path in dict.fromkeys(sys.path):
        for version, folder, properties in WHEELS:
            define = f"-DPROPERTIES={properties}"
            libraries = Path(path) / folder / "lib"
            for shared in libraries.glob("libcudart.so.*"):
                yield Runtime(f"CUDA {version}, shared", (define, str(shared), f"-Wl,-rpath,{libraries}"))
            for static in libraries.glob("libcudart_static.a"):
                yield Runtime(f"CUDA {version}, static", (define, str(static), "-ldl", "-lrt", "-lpthread"))


def measure() -> list[Figure]:
    """How many of the runtimes show the limit, refuse what is above it by every function, and then go on."""
    seen: dict[str, dict[str, int]] = {}
    faults: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for runtime in runtimes():
            program = Path(folder) / "runtime"
            subprocess.run(["cc", SOURCE, *runtime.words, "-o", program], check=True)
            seen[runtime.name] = _run(program)
            faults[runtime.name] = _faults(seen[runtime.name])
    if not seen:
        raise RuntimeError("no CUDA runtime is installed: pip install nvidia-cuda-runtime nvidia-cuda-runtime-cu12")
    right = sum(not each for each in faults.values()) / len(faults)
    details = {"seen": seen, "faults": faults}
    return [Figure("runtimes under which the memory limit holds and shows", right, AT_LEAST, 1.0, details=details)]


def _run(program: Path) -> dict[str, int]:
    environment = {**os.environ, "LD_PRELOAD": str(runlist.library()), "RUNLIST_MEMORY": str(LIMIT)}
    done = subprocess.run(
        [program, str(TOO_MUCH)], env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    return {name: int(value) for name, value in (line.rsplit(" ", 1) for line in done.stdout.splitlines())}


def _faults(seen: dict[str, int]) -> list[str]:
    expected = {
        "total": LIMIT,
        "properties": LIMIT,
        **dict.fromkeys(("cudaMalloc", "cudaMallocManaged", "cudaMallocAsync", "cudaMallocArray"), OUT_OF_MEMORY),
        **dict.fromkeys(("small cudaMalloc", "cudaMemset", "cudaMemcpy", "cudaFree"), 0),
        "byte": 7,
    }
    return [f"{name}: {seen.get(name)} and not {value}" for name, value in expected.items() if seen.get(name) != value]
