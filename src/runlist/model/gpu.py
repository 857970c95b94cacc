"""GPUs, as far as a policy's decisions have to be safe on them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SliceLimits:
    """Which slices are safe, in µs.

    Below `tiny_us` a slice can be shorter than a context switch: two enabled tasks with such slices stop each other for
    good. `safe_us` is what a task gets instead of a second tiny slice.
    """

    tiny_us: int
    safe_us: int
