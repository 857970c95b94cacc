"""What the demo says about its samples."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from runlist.statistics import percentile


class Latency(msgspec.Struct, frozen=True):
    """Latencies of one configuration, µs."""

    requests: int
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Latency:
        """Summary of samples in any order. Raises ValueError without samples."""
        ordered = sorted(samples)
        p50, p90, p99, highest = (round(percentile(ordered, percent), 1) for percent in (50, 90, 99, 100))
        return cls(len(ordered), p50, p90, p99, highest)


class Row(msgspec.Struct, frozen=True):
    """One configuration: the latency-critical program's latencies, and the batch program's rate."""

    configuration: str
    latency_us: Latency
    batch_per_second: float
    batch_relative: float
    """To the batch program alone."""


class Result(msgspec.Struct, frozen=True):
    """All that a demo found."""

    device: str
    gpu: str
    workload: str
    rows: list[Row]
    p99_to_default: float
    """LC p99 under Runlist / under default sharing."""
    p99_to_alone: float
    """LC p99 under Runlist / alone."""
    batch_to_default: float
    """Batch throughput under Runlist / under default sharing."""
    attach_ms: float
    """The slowest attach to a running process, as the daemon timed it."""
    correct: bool
    """Whether both programs' results were right, bit for bit."""
    noise: list[str] = []
    """Why this machine was too noisy for the figures to mean anything; empty where it was not."""
    picture: str | None = None
