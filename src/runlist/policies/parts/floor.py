"""A floor under stops: whoever is stopped again and again has a least part of the time nevertheless."""

from __future__ import annotations

from runlist.policies.parts.pace import reached


class Floor:
    """Lets go for `break_s` at a time whenever stops took so much that less than `part` of the time was left."""

    def __init__(self, part: float, break_s: float) -> None:
        self._part = part
        self._break_s = break_s
        self._owed_s = 0.0
        self._at: float | None = None
        self._stopped = False
        self._ends = float("-inf")

    def ends(self, stopped: bool, now: float) -> float | None:
        """Whether the stop is to be interrupted now: until when, else None. Say at each decision what is wanted."""
        if self._at is not None:
            elapsed = max(0.0, now - self._at)
            self._owed_s += self._part * elapsed - (0.0 if self._stopped else elapsed)
            self._owed_s = max(0.0, min(self._owed_s, self._break_s))
        self._at = now
        if stopped and self._owed_s >= self._break_s:
            self._owed_s, self._ends = 0.0, now + self._break_s
        interrupted = stopped and not reached(self._ends, now)
        self._stopped = stopped and not interrupted
        return self._ends if interrupted else None
