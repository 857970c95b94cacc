"""The tail latency of a task's reports: `slo` goes by it, and people are shown it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator

from runlist.statistics import percentile

RECENT_S, OLDEST_S = 1.0, 5.0
ENOUGH = 20
MOST = 4096
"""How many reports are kept, the newest."""


class Tail:
    """The p99 of a task's recent reports."""

    def __init__(self) -> None:
        self._reports: deque[tuple[float, float]] = deque(maxlen=MOST)

    def add(self, latency_s: float, now: float) -> None:
        """A request took so long. Negative and infinite times are ignored."""
        if 0 <= latency_s < math.inf:
            self._reports.append((now, latency_s))

    def silent(self, now: float) -> bool:
        """Whether nothing was reported for as long as anything counts."""
        return not self._reports or now - self._reports[-1][0] >= OLDEST_S

    def p99_s(self, now: float) -> float | None:
        """Of the last second, or of the last few requests when those were fewer; None when there was none."""
        latencies = sorted(latency_s for _, latency_s in self._recent(now))
        return percentile(latencies, 99) if latencies else None

    def all_since(self, since: float, now: float) -> bool:
        """Whether it is the p99 of requests that ended after `since` alone."""
        return all(at > since for at, _ in self._recent(now))

    def exceeds(self, limit_s: float, now: float, since: float) -> bool:
        """Whether requests that ended after `since` alone put the p99 above a limit: none is acted on twice."""
        recent = list(self._recent(now))
        return sum(at > since and latency_s > limit_s for at, latency_s in recent) > 0.01 * len(recent)

    def rate(self, now: float) -> float:
        """Reports a second, over the last second."""
        return sum(now - at <= RECENT_S for at, _ in self._recent(now)) / RECENT_S

    def _recent(self, now: float) -> Iterator[tuple[float, float]]:
        """What counts, the newest first."""
        for count, (at, latency_s) in enumerate(reversed(self._reports)):
            if now - at > (RECENT_S if count >= ENOUGH else OLDEST_S):
                return
            yield at, latency_s
