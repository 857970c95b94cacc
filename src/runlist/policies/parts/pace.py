"""When to look again: which times count as reached, and how many looks a second there may be."""

from __future__ import annotations

import math

NEVER = float("inf")
"""The time of what will not happen by itself."""

SLACK_S = 1e-4
"""Times nearer than this are the same: timers go off a little early."""

LATEST_S = 0.1
"""A policy is asked no later than this after the time that it asked for, but not while there are no tasks. So no
account is charged for more.
"""


def reached(time: float, now: float) -> bool:
    """Whether a time has come."""
    return now >= time - SLACK_S


def periods_begun(ends: float, period_s: float, now: float) -> int:
    """How many periods, all of one length, have begun since the one that was to end at `ends`."""
    return 1 + math.floor((now + SLACK_S - ends) / period_s) if reached(ends, now) else 0


class Pace:
    """Limits how often a policy looks: `rate` times a second in the long run, `burst` times at once."""

    def __init__(self, rate: float, burst: int = 10) -> None:
        self._rate = rate
        self._burst = burst
        self._left = float(burst)
        self._at = 0.0
        self._asked = float("-inf")

    def after(self, wanted: float, now: float) -> float:
        """In how many seconds to look again, where a look is `wanted` at that time. Ask once in each decision."""
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._asked > float("-inf") and reached(self._asked, now):
            self._left -= 1
        self._asked = max(wanted, now, now - self._left / self._rate if self._left < 0 else now)
        return self._asked - now
