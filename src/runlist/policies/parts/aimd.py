"""AIMD: finding the largest share that others can have, by small steps up and large ones down (as TCP does)."""

from __future__ import annotations

LOWEST = 0.01
NEAR = 0.1
"""Within this part of the share that failed last, steps are halved."""
GENTLE = 0.25
"""A small share grows by no more than this part of itself at a time."""
EASIER = 0.8
"""With the load below this part of that at the failure, a share that failed may work."""
FIRST_WAIT_S, LONGEST_WAIT_S = 2.0, 60.0


class Aimd:
    """A share from LOWEST to 1 that is lowered when it proves too much, and raised while it does not.

    Each try of a share that failed costs late requests. So it waits below that share, twice as long after each failure,
    unless the load becomes clearly lower.
    """

    def __init__(self, step: float, backoff: float) -> None:
        self.share = 1.0
        self._step = step
        self._backoff = backoff
        self._failed: float | None = None
        self._failed_load = 0.0
        self._failed_at = 0.0
        self._wait_s = FIRST_WAIT_S

    def lower(self, used: float, load: float, now: float) -> None:
        """The share was too much, at this `load` (any measure). `used` is the part that the others really had."""
        had = min(self.share, max(used, LOWEST))
        again = self._failed is not None and had >= self._failed * (1 - 2 * NEAR) and now - self._failed_at > 1.0
        self._wait_s = min(2 * self._wait_s, LONGEST_WAIT_S) if again else self._wait_s
        self._failed, self._failed_load, self._failed_at = had, load, now
        self.share = max(LOWEST, had * self._backoff)

    def raise_(self, load: float, now: float) -> None:
        """There is room for more."""
        if self._failed is not None and load < EASIER * self._failed_load:
            self._failed, self._wait_s = None, FIRST_WAIT_S
        step = min(self._step, GENTLE * self.share)
        if self._failed is not None and self.share + step > self._failed * (1 - NEAR):
            if now - self._failed_at < self._wait_s:
                return
            step /= 2
        self.share = min(1.0, self.share + step)

    def reset(self) -> None:
        """Forget everything."""
        self.share, self._failed, self._wait_s = 1.0, None, FIRST_WAIT_S
