"""The slices that a GPU can work with."""

from __future__ import annotations

import msgspec


class SliceLimits(msgspec.Struct, frozen=True):
    """Which slices a GPU makes progress with, in µs.

    Below `tiny_us` a slice can be shorter than a context switch: two enabled tasks at such slices stop each other for
    good, as do two contexts of one task. `safe_us` is what a task gets instead.
    """

    tiny_us: int
    safe_us: int

    def is_tiny(self, timeslice_us: int | None) -> bool:
        """Whether a slice is tiny; None, the driver's own, is not."""
        return timeslice_us is not None and timeslice_us < self.tiny_us
