"""PyTorch under a memory limit: the same results bit for bit, in the same time, with the limit in sight."""

from __future__ import annotations

from bench.harness import framework_limit
from bench.harness.benchmark import Needs
from bench.harness.figures import Figure
from bench.harness.framework_limit import Framework

NEEDS = Needs("nvidia", modules=("torch",))
FRAMEWORK = Framework("PyTorch", "torch_parts", ("training", "inference", "decode"))


def measure() -> list[Figure]:
    """Training and inference of a transformer, and a decode loop as a CUDA graph."""
    return framework_limit.measure(FRAMEWORK)
