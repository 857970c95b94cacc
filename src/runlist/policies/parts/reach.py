"""Reach: the tail that a service has while the background has less, whatever its target asks for.

What a smaller part of the GPU for others does not change is not their doing, so it is no reason to give them less.
"""

from __future__ import annotations

from runlist.policies.parts.pace import NEVER, reached

SETTLES_S = 1.0
"""Requests that ended later than this after the background got less tell what is in reach: a queue is gone by then."""
AS_GOOD, WORSE = 1.05, 1.1
"""A tail within the first of these times what is in reach is as good; beyond the second it is worse."""
LASTS_S = 4.0
"""What was in reach so recently still is."""
CLEARLY_LESS = 0.8
"""With a tail below this part of it, something else is in reach than was."""
INSTEAD = 1.3
"""A target out of reach is replaced by this many times what is in reach."""


class Reach:
    """Of one service. `p99_s` is None until it is known."""

    def __init__(self) -> None:
        self.p99_s: float | None = None
        self._worsens_from = -NEVER

    def look(self, p99_s: float, settled: bool, danger: bool, now: float) -> None:
        """The p99 is this now: of requests that all ended SETTLES_S after the background had less, and in `danger`."""
        if settled and (self.p99_s is None or (danger and reached(self._worsens_from, now))):
            self.p99_s, self._worsens_from = p99_s, now + LASTS_S
        elif self.p99_s is not None and (settled or p99_s < CLEARLY_LESS * self.p99_s):
            self.p99_s = min(self.p99_s, p99_s)

    def has(self, asked_s: float) -> bool:
        """Whether a target is in reach, as far as is known."""
        return self.p99_s is None or self.p99_s <= asked_s

    def target_s(self, asked_s: float) -> float:
        """The target, or what takes its place where it is out of reach."""
        return asked_s if self.p99_s is None or self.has(asked_s) else INSTEAD * self.p99_s

    def danger_s(self, asked_s: float, headroom: float) -> float:
        """The p99 from which on the target is in danger: what is in reach is none."""
        target_s = self.target_s(asked_s)
        return max((1 - headroom) * target_s, min(target_s, WORSE * (self.p99_s or 0.0)))

    def comfort_s(self, asked_s: float, headroom: float) -> float:
        """The p99 up to which there is room for more: as much of the target is free, or it is as good as can be."""
        return max((1 - headroom) * self.target_s(asked_s), AS_GOOD * (self.p99_s or 0.0))
