"""NCCL on two GPUs under a memory limit: the same results bit for bit, in the same time, with the limit in sight."""

from __future__ import annotations

from bench.harness import framework_limit
from bench.harness.benchmark import Needs
from bench.harness.figures import Figure
from bench.harness.framework_limit import Framework

NEEDS = Needs("nvidia", gpus=2, modules=("torch",))
FRAMEWORK = Framework("NCCL on two GPUs", "nccl_parts", ("all_reduce",), processes=1)


def measure() -> list[Figure]:
    """An all-reduce, through PyTorch."""
    return framework_limit.measure(FRAMEWORK)
