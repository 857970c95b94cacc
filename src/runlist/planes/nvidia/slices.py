"""Which slices NVIDIA's GPUs make progress with."""

from __future__ import annotations

from runlist.model import SliceLimits

SLICES = SliceLimits(tiny_us=500, safe_us=2_048)
"""A context switch costs about 280 µs on an H200. 2,048 µs is the driver's default for compute groups."""
