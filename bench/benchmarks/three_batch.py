"""Three batch jobs beside one latency-critical program, against one batch job."""

from __future__ import annotations

from bench.harness import beside
from bench.harness.figures import Figure

CASE = beside.Case("three", 3, 6.0, 4, p99=1.4, total=0.85, smallest=0.8)


def measure() -> list[Figure]:
    """The tail latency, the sum of what the batch jobs get done, and how equal they are."""
    return beside.measure(CASE)
