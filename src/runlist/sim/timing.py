"""What the simulated GPU knows about an H200, in nanoseconds. The figures, and where they come from, are in
protocol/calibration.toml; `docs/simulation.md` has the comparison with the GPU.
"""

from __future__ import annotations

from runlist.model import SliceLimits
from runlist.protocol.calibration_autogen import (
    ATTACH,
    COLD,
    COLD_PACE,
    COMPUTE_SLICE,
    GAP_SPREAD,
    IDLE_SAMPLE,
    LAUNCH_FLOOR,
    LAUNCH_JITTER,
    MICROSECOND,
    MILLISECOND,
    NOTICE,
    PREEMPT,
    PREEMPT_EFFECT,
    READ_USAGE,
    RESTORE,
    RESUME,
    RESUME_EFFECT,
    SECOND,
    SET_SLICE,
    SUSPEND,
    SUSPEND_EFFECT,
    SWITCH_GAP,
    TINY_SLICE,
    WORK_MESSAGE,
)

__all__ = [
    "ATTACH", "COLD", "COLD_PACE", "COMPUTE_SLICE", "CONTROLS", "GAP_SPREAD", "IDLE_SAMPLE", "LAUNCH_FLOOR",
    "LAUNCH_JITTER", "MICROSECOND", "MILLISECOND", "NOTICE", "READ_USAGE", "RESTORE", "SECOND", "SLICES", "SWITCH_GAP",
    "WORK_MESSAGE",
]  # fmt: skip

SLICES = SliceLimits(tiny_us=TINY_SLICE // MICROSECOND, safe_us=COMPUTE_SLICE // MICROSECOND)
"""As the daemon has them for this GPU. Two slices that are shorter than gap, notice and restore livelock."""

CONTROLS = {
    "set_slice": (SET_SLICE, SET_SLICE, SET_SLICE),
    "suspend": (SUSPEND, *SUSPEND_EFFECT),
    "resume": (RESUME, *RESUME_EFFECT),
    "preempt": (PREEMPT, PREEMPT_EFFECT, PREEMPT_EFFECT),
}
"""By name, for one thread per machine that sends one after the other: how long the call takes, and the least and the
most time from its begin until the GPU goes by it.
"""
