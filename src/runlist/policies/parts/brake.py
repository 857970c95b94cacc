"""A brake: it stops the background before more than one in a hundred of a second's requests took too long."""

from __future__ import annotations

from collections import deque

WINDOW_S = 1.0
ALLOWED = 0.006
"""The part of a window's requests that may take too long. It is clearly below the hundredth that a p99 forgives: those
that wait when the brake goes on come on top.
"""
TRIPS = 0.35
"""The brake goes on when this part of ALLOWED is used: requests that wait already will follow."""
FOLLOW_S = 0.25
"""For this long after the brake went on, the last release is blamed for late requests."""
EASES = 0.98
"""The known cost of a release shrinks by this factor each second."""
MOST = 1.5
"""The cost of a release counts as at most so many times ALLOWED: with more, the brake would stay on too long."""
EASIER = 0.8
"""The cost is forgotten when there are fewer requests than this part of those at which it was learnt."""


class Brake:
    """Counts requests that took too long, and is on while more of them could break the target.

    Averages react too late: once others run, every request of a busy service waits, and those behind it too, so that a
    hundredth of a second's requests is late within milliseconds. The brake learns which part of the requests is late
    after one release (`_cost`), and releases only when that much is left.
    """

    def __init__(self, now: float) -> None:
        self.on = False
        self._counts_from = now + WINDOW_S  # earlier ones suffered from earlier shares
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
        """Release the brake when the cost of a release is affordable."""
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
