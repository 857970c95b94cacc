"""What a tree may hold on one GPU: its limit or, where `set` lowered that below what it holds, no more than it holds.

A tree that gets beyond stays over until it is within its limit again, whatever it does to its region meanwhile. One
that gets beyond again and again, each time too shortly to be sure of it, is over for a while.
"""

from __future__ import annotations

import math
import time
from collections import deque

import msgspec

TOLERANCE = 8 << 20
"""How many bytes more than its limit a tree may seem to hold. On an H200 the library and NVML agree to the byte."""

SETTLE_S = 0.3
"""How long a request that was allowed under the limit before may still be under way."""

LOOKS, OFTEN = 16, 6
"""A tree that is beyond at so many of the last looks, whose moments it cannot know, is so on purpose: what one process
gives and another takes is seen twice at fewer.
"""

STAYS_S = 10.0
"""So long it is over then."""


class Ceiling(msgspec.Struct):
    """Of one tree on one GPU. `most` is in bytes; `over` says that the tree got beyond it, and `stays_until` how long
    that lasts at least.
    """

    most: float = math.inf
    over: bool = False
    settles_at: float = float("-inf")
    stays_until: float = float("-inf")
    _broken: deque[bool] = msgspec.field(default_factory=lambda: deque(maxlen=LOOKS))

    def change(self, limit: int | None, *, keeps: bool) -> None:
        """There is another limit. With `keeps` the tree keeps what it holds."""
        if limit is None or not keeps:
            self.most = math.inf if limit is None else limit
        self.stays_until = float("-inf")
        self.settles_at = time.monotonic() + SETTLE_S if keeps else float("-inf")

    def is_broken(self, limit: int | None, held: int) -> bool:
        """Whether a tree that holds so much is over, or was and is not yet within its limit."""
        if limit is None or held <= limit + TOLERANCE:
            return False
        return self.over or held > max(self.most, limit) + TOLERANCE

    def is_often_broken(self, limit: int | None, held: int) -> bool:
        """Take note of the first of several looks; whether it is one too many, so that the tree is over for a while."""
        if self.over:
            return False
        self._broken.append(self.is_broken(limit, held))
        if sum(self._broken) < OFTEN:
            return False
        self._broken.clear()
        self.stays_until = time.monotonic() + STAYS_S
        return True

    def look(self, limit: int | None, held: int, *, sure: bool = True) -> bool:
        """Take note of what the tree holds now; whether it is over. Unless it is `sure`, that does not begin now."""
        broken = self.is_broken(limit, held) or time.monotonic() < self.stays_until
        if not broken or self.over or sure:
            self.over = broken
        if limit is not None and not broken and time.monotonic() >= self.settles_at:
            self.most = max(limit, min(self.most, held))
        return self.over
