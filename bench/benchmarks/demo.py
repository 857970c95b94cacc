"""What `runlist demo` shows: LC tail latency and BE throughput under Runlist against default sharing."""

from __future__ import annotations

from bench.harness.demo_run import demo
from bench.harness.figures import AT_LEAST, AT_MOST, Figure


def measure(seconds: float = 24.0) -> list[Figure]:
    """The demo's own kernels."""
    result = demo(seconds)
    return [
        Figure("LC p99, Runlist / default sharing", result["p99_to_default"], AT_MOST, 0.20, details=result),
        Figure("BE throughput, Runlist / default sharing", result["batch_to_default"], AT_LEAST, 0.95),
    ]
