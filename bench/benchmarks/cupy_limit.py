"""CuPy under a memory limit: the same results bit for bit, in the same time, with the limit in sight."""

from __future__ import annotations

from bench.harness import framework_limit
from bench.harness.benchmark import Needs
from bench.harness.figures import Figure
from bench.harness.framework_limit import Framework

NEEDS = Needs("nvidia", modules=("cupy",))
FRAMEWORK = Framework("CuPy", "cupy_parts", ("arrays",))


def measure() -> list[Figure]:
    """Products, element-wise kernels and sorting."""
    return framework_limit.measure(FRAMEWORK)
