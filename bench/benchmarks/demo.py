"""What `runlist demo` shows: LC tail latency and BE throughput under Runlist against default sharing."""

from __future__ import annotations

import json
import subprocess
import sys

from bench.harness.figures import AT_LEAST, AT_MOST, Figure
from runlist.errors import RunlistError


def measure(seconds: float = 24.0) -> list[Figure]:
    """The demo's own kernels."""
    result = _demo(seconds)
    return [
        Figure("LC p99, Runlist / default sharing", result["p99_to_default"], AT_MOST, 0.20, details=result),
        Figure("BE throughput, Runlist / default sharing", result["batch_to_default"], AT_LEAST, 0.95),
    ]


def measure_torch(seconds: float = 24.0) -> list[Figure]:
    """A transformer as a CUDA graph against matrix products; needs PyTorch."""
    result = _demo(seconds, "--torch")
    return [Figure("PyTorch CUDA-graph LC p99, Runlist / alone", result["p99_to_alone"], AT_MOST, 1.7, details=result)]


def _demo(seconds: float, *options: str) -> dict[str, float]:
    words = [sys.executable, "-m", "runlist.cli", "demo", "--json", "--seconds", str(seconds), *options]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise RunlistError(f"runlist demo ended with exit code {done.returncode}")
    result: dict[str, float] = json.loads(done.stdout)
    return result
