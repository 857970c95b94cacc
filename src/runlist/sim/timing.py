"""What the simulated GPU knows about an H200: every figure in nanoseconds, with where it comes from.

All were measured on one H200 with driver 580.159.04, or fitted to what was; `docs/simulation.md` has the comparison.
"""

from __future__ import annotations

from runlist.model import SliceLimits

MICROSECOND = 1_000
MILLISECOND = 1_000_000
SECOND = 1_000_000_000

# -- the GPU ---------------------------------------------------------------------------------------

SWITCH_GAP = 84 * MICROSECOND
"""Nobody is on the GPU: between an end and the next start in its own context-switch log."""

NOTICE = 36 * MICROSECOND
"""From the end of a slice in which work arrived for another process to the switch. Fitted: a request takes 273 µs
beside a slice of 1 µs, of which 84 are the gap, 50 the restore, 80 the kernel, 9 its cold start and 14 the launch.
"""

RESTORE = 50 * MICROSECOND
"""At the start of a residency, without progress: why two slices of 1 µs livelock, and what a slice of 200 µs loses."""

COLD = 660 * MICROSECOND
"""After the restore the caches are cold for so long, and work runs at COLD_PACE. With the restore and the gap a switch
costs 200 µs of work: fitted to the sums of two, four and eight batch jobs at slices of 2, 5, 10, 20 and 40 ms.
"""

COLD_PACE = (9, 10)
"""Progress per time while the caches are cold, as a fraction."""

DEFAULT_SLICE = 2_048 * MICROSECOND
"""Of a compute group, from the driver."""

SLICES = SliceLimits(tiny_us=500, safe_us=DEFAULT_SLICE // MICROSECOND)
"""As the daemon has them for this GPU. Two slices that are shorter than gap, notice and restore livelock."""

# -- the host --------------------------------------------------------------------------------------

LAUNCH_FLOOR = 10_600
"""Least time from a launch to the kernel on the GPU and from its end back to the host, together."""

LAUNCH_JITTER = 4_900
"""Mean of what is added to it, exponentially distributed: an 80 µs kernel takes 94 µs at the median, 113 at p99."""

GAP_SPREAD = 0.25
"""The pause of a host between two requests is this much shorter or longer, evenly distributed: without it two loops can
fall into step, which real ones do not.
"""

# -- controls, one after the other by one thread per machine ---------------------------------------

READ_USAGE = 65 * MICROSECOND

CONTROLS = {
    "set_slice": (350 * MICROSECOND, 350 * MICROSECOND, 350 * MICROSECOND),
    "suspend": (740 * MICROSECOND, 530 * MICROSECOND, 720 * MICROSECOND),
    "resume": (500 * MICROSECOND, 260 * MICROSECOND, 320 * MICROSECOND),
    "preempt": (500 * MICROSECOND, 300 * MICROSECOND, 300 * MICROSECOND),
}
"""By name: how long the call takes, and the least and the most time from its begin until the GPU goes by it."""

ATTACH = 11 * MILLISECOND
"""From a process' first work to its being managed."""

# -- the daemon ------------------------------------------------------------------------------------

IDLE_SAMPLE = 250 * MILLISECOND
"""How often the GPU's utilisation says how much of a lone tenant's time was idle; told one sample later."""
