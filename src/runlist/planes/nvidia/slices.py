"""Which slices are safe on an NVIDIA GPU."""

from __future__ import annotations

from runlist.model import SliceLimits

SLICES = SliceLimits(
    tiny_us=500,  # a context switch costs about 280 µs on an H200
    safe_us=2_048,  # the driver's default
)
