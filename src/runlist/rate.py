"""How much of something a user may have in a second, so that the others get their turn."""

from __future__ import annotations

import math
import time


class Rate:
    """So much a second. At most `at_once` is saved up (a second's worth unless given); what was taken too much is
    missing afterwards.
    """

    def __init__(self, a_second: float = math.inf, at_once: float | None = None) -> None:
        self._a_second = a_second
        self._most = self._left = a_second if at_once is None else at_once
        self._at = time.monotonic()

    @property
    def left(self) -> float:
        """What may be had now; negative after more was spent than there was."""
        now = time.monotonic()
        self._left = min(self._most, self._left + (now - self._at) * self._a_second)
        self._at = now
        return self._left

    @property
    def is_full(self) -> bool:
        """Whether nobody has taken any for so long that nothing is missing."""
        return self.left >= self._most

    def spend(self, amount: float) -> None:
        """Take some, even where none is left."""
        self._left -= amount

    def take(self) -> bool:
        """Take one, if there is one."""
        if self.left < 1:
            return False
        self.spend(1)
        return True
