"""A brake: stops what hurts a task's requests before more than one in a hundred of a second's took too long."""

from __future__ import annotations

from collections import deque

WINDOW_S = 1.0
ALLOWED = 0.006
"""Of the requests of a window, so many may take too long: clearly less than the hundredth that a p99 forgives, as those
that wait already when the brake is put on come on top.
"""
TRIPS = 0.35
"""The brake is put on when this part of what is allowed is used: requests that wait already will follow."""
FOLLOW_S = 0.25
"""Requests that took too long are the release's doing for so long after the brake was put on."""
EASES = 0.98
"""What one release was seen to cost counts a little less each second."""
MOST = 1.5
"""More than so many times what is allowed is not believed of a release: it would take too long to try again."""
EASIER = 0.8
"""With fewer requests than this part of those that it was learnt with, it counts no more."""


class Brake:
    """Counts requests that took too long, and is on while more of them could break the target.

    Averages react too late for this: once others run, every request of a busy service waits, and those behind it too,
    so that a hundredth of a second's requests is hurt within milliseconds. What it costs to let the others run once
    (`_cost`, a part of the requests) is learnt, and they are let run only when that much is left.
    """

    def __init__(self, now: float) -> None:
        self.on = False
        self._counts_from = now + WINDOW_S  # before, requests may have suffered from what was in force then
        self._ended: deque[float] = deque()
        self._late: deque[float] = deque()
        self._cost = 0.0
        self._learnt_with = 0
        self._phase = 0  # late requests since the last release
        self._put_on_at = 0.0
        self._eased_at = 0.0

    def add(self, late: bool, now: float) -> bool:
        """A request ended. True when the brake is put on by it."""
        self._forget(now)
        self._ended.append(now)
        if not late or now < self._counts_from:
            return False
        self._late.append(now)
        if self.on:
            self._phase += now - self._put_on_at <= FOLLOW_S
            return False
        self._phase += 1
        if len(self._late) < max(1.0, TRIPS * self._allowed):
            return False
        self.on, self._put_on_at = True, now
        return True

    def look(self, now: float) -> None:
        """Release the brake when there is room for what a release costs."""
        self._forget(now)
        self._cost *= EASES ** max(0.0, min(10.0, now - self._eased_at))
        self._eased_at = now
        requests = max(1, len(self._ended))
        if requests < EASIER * self._learnt_with:
            self._cost, self._learnt_with = 0.0, 0
        if not self.on or now - self._put_on_at <= FOLLOW_S:
            return
        if self._phase > self._cost * requests:
            self._cost, self._learnt_with = min(MOST * ALLOWED, self._phase / requests), requests
        self._phase = 0
        if len(self._late) + self._cost * requests <= max(1.0, self._allowed):
            self.on = False

    @property
    def _allowed(self) -> float:
        return ALLOWED * len(self._ended)

    def _forget(self, now: float) -> None:
        for times in (self._ended, self._late):
            while times and now - times[0] > WINDOW_S:
                times.popleft()
