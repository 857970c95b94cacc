"""Whether a machine is quiet enough for what the demo measures to mean something."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from runlist.statistics import percentile

MAX_SPREAD = 4.0
"""Of the latency-critical program alone: its p99 over its p50."""

MAX_HIDDEN = 0.5
"""The same p99 as a part of that by default sharing: below it the machine's own tail hides nothing."""

MAX_DRIFT = 0.25
"""Of the batch program alone: how far its slowest window may be from its fastest, as a part of that."""


MAX_BUSY = 0.5
"""Part of the processors' time that others may have just before the demo. A load average would also count what ended
within the last minute, such as the compiler of a fresh checkout.
"""

LOOK_S = 0.5


def busy(seconds: float = LOOK_S) -> float:
    """The part of the time, of the processors that are ours to use, that anybody has for so long from now on. What a
    hypervisor takes counts as well.
    """
    before = _processor_ticks()
    time.sleep(seconds)
    working, total = (now - then for now, then in zip(_processor_ticks(), before, strict=True))
    return working / total if total else 0.0


def _processor_ticks() -> tuple[int, int]:
    """Of the processors that are ours, together, since the start of the machine: ticks with work, and all ticks."""
    ours = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    rows = [line.split() for line in Path("/proc/stat").read_text().splitlines() if line.startswith("cpu")]
    ticks = [[int(word) for word in row[1:9]] for row in rows if row[0] in ours]  # guests are in user and nice already
    total = sum(map(sum, ticks))
    return total - sum(row[3] + row[4] for row in ticks), total  # idle, and waiting for a disk


def noise(
    alone_us: Sequence[float], batch_rates: Sequence[float], others: float, default_p99_us: float = 0.0
) -> list[str]:
    """What was wrong with the machine, a few words each; empty for a quiet one.

    `alone_us` are latencies of the latency-critical program alone, `batch_rates` the kernels a second in each window of
    the batch program alone; `others` is the part of the processors' time in use before the demo began any work,
    and `default_p99_us` the latency-critical program's p99 by default sharing.
    """
    found = []
    if alone_us:
        ordered = sorted(alone_us)
        p50, p99 = percentile(ordered, 50), percentile(ordered, 99)
        if p99 > MAX_SPREAD * p50 and p99 > MAX_HIDDEN * default_p99_us:
            found.append(f"LC alone has a p99 of {p99 / p50:.1f} times its p50")
    most = max(batch_rates, default=0.0)
    if most > 0 and (drift := 1 - min(batch_rates) / most) > MAX_DRIFT:
        found.append(f"BE alone was up to {100 * drift:.0f} % slower in one window than in another")
    if others > MAX_BUSY:
        found.append(f"other programs had {100 * others:.0f} % of the processors before it began")
    return found
