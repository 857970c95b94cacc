"""Whether a machine is quiet enough for what the demo measures to mean something."""

from __future__ import annotations

from collections.abc import Sequence

from runlist.statistics import percentile

MAX_SPREAD = 4.0
"""Of the latency-critical program alone: its p99 over its p50."""

MAX_DRIFT = 0.25
"""Of the batch program alone: how far its slowest window may be from its fastest, as a part of that."""


def noise(alone_us: Sequence[float], batch_rates: Sequence[float], load: float, cores: int) -> list[str]:
    """What was wrong with the machine, a few words each; empty for a quiet one.

    `alone_us` are latencies of the latency-critical program alone, `batch_rates` the kernels a second in each window of
    the batch program alone; `load` is the load average before the demo began any work, on `cores` processors.
    """
    found = []
    if alone_us:
        ordered = sorted(alone_us)
        p50, p99 = percentile(ordered, 50), percentile(ordered, 99)
        if p99 > MAX_SPREAD * p50:
            found.append(f"LC alone has a p99 of {p99 / p50:.1f} times its p50")
    most = max(batch_rates, default=0.0)
    if most > 0 and (drift := 1 - min(batch_rates) / most) > MAX_DRIFT:
        found.append(f"BE alone was up to {100 * drift:.0f} % slower in one window than in another")
    if load > cores:
        found.append(f"the load average was {load:.1f} on {cores} cores before it began")
    return found
