"""How much of something a user may have done in a second, so that the others get their turn."""

from __future__ import annotations

import math
import time


class Budget:
    """So much a second; what is left over is lost, and what was taken too much is missing afterwards."""

    def __init__(self, a_second: float = math.inf) -> None:
        self._a_second = a_second
        self._left = a_second
        self._at = time.monotonic()

    @property
    def is_left(self) -> bool:
        """Whether there is any."""
        now = time.monotonic()
        self._left = min(self._a_second, self._left + (now - self._at) * self._a_second)
        self._at = now
        return self._left > 0

    def spend(self, amount: float) -> None:
        """Take some, even where none is left."""
        self._left -= amount
