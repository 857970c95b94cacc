"""`runlist demo --torch`: the tail latency of a PyTorch transformer as a CUDA graph, beside matrix products."""

from __future__ import annotations

from bench.harness.benchmark import Needs
from bench.harness.demo_run import demo
from bench.harness.figures import AT_MOST, Figure

NEEDS = Needs("nvidia", modules=("torch",))


def measure(seconds: float = 24.0) -> list[Figure]:
    """Against the same program alone."""
    result = demo(seconds, "--torch")
    return [Figure("PyTorch CUDA-graph LC p99, Runlist / alone", result["p99_to_alone"], AT_MOST, 1.7, details=result)]
