"""The slices with which NVIDIA's GPUs make progress, and the driver's own."""

from __future__ import annotations

from runlist.model import Engine, SliceLimits
from runlist.protocol.calibration_autogen import COMPUTE_SLICE, COPY_SLICE, MICROSECOND, TINY_SLICE

DRIVER_SLICE_US = {
    Engine.COMPUTE: COMPUTE_SLICE // MICROSECOND,
    Engine.COPY: COPY_SLICE // MICROSECOND,
    Engine.OTHER: COMPUTE_SLICE // MICROSECOND,
}
"""The driver's own (seen on 580 with an H200)."""

SLICES = SliceLimits(tiny_us=TINY_SLICE // MICROSECOND, safe_us=DRIVER_SLICE_US[Engine.COMPUTE])
