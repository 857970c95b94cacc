"""JAX under a memory limit: the same results bit for bit, in the same time, with its pool within the limit."""

from __future__ import annotations

from bench.harness import framework_limit
from bench.harness.benchmark import Needs
from bench.harness.figures import Figure
from bench.harness.framework_limit import Framework

NEEDS = Needs("nvidia", modules=("jax",))
FRAMEWORK = Framework("JAX", "jax_parts", ("training",), processes=1)  # each takes three quarters of the memory


def measure() -> list[Figure]:
    """Gradient steps, with JAX's own preallocation."""
    return framework_limit.measure(FRAMEWORK)
