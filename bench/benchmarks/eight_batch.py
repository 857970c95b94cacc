"""Eight batch jobs beside one latency-critical program, against one batch job, default time slicing, and MPS."""

from __future__ import annotations

from bench.harness import beside
from bench.harness.figures import Figure

CASE = beside.Case("eight", 8, 3.2, 2, p99=1.15, compared=True)


def measure() -> list[Figure]:
    """The tail latency; what the batch jobs get done is told."""
    return beside.measure(CASE)
