"""Rests: what did not pay is tried again after a while, and after a longer one each time."""

from __future__ import annotations

from runlist.policies.parts.pace import NEVER, reached

LONGEST_S = 60.0


class Rest:
    """A time in which something is not tried again: twice as long each time, up to `longest_s`."""

    def __init__(self, first_s: float, longest_s: float = LONGEST_S) -> None:
        self.until = -NEVER
        self._first_s = self._next_s = first_s
        self._longest_s = longest_s

    def begin(self, now: float) -> None:
        self.until = now + self._next_s
        self._next_s = min(2 * self._next_s, self._longest_s)

    def over(self, now: float) -> bool:
        return reached(self.until, now)

    def forget(self) -> None:
        """It is short again, from its next beginning on."""
        self._next_s = self._first_s
