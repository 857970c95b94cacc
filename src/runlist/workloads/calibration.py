"""How long a round of a kernel is, measured in bounded time on a machine that may be busy."""

from __future__ import annotations

import time
from collections.abc import Callable

from runlist.workloads.gpu import GpuError

WARM_UP_S = 0.05
"""Long enough for a GPU to leave its idle clocks."""

PATIENCE_S = 5.0
"""The most time that a calibration takes, but for the kernels under way."""

SHORTEST_US = 1e-3
"""No GPU's round is shorter: it is a multiplication and an addition, each waiting for the one before."""

_ROUNDS = (2_000, 20_000)
_LONGER = 10
"""How many times as many rounds are tried when two lengths cannot be told apart."""

_MOST_ROUNDS = 20_000_000
_REPEATS = 15


def microseconds_per_round(
    timed: Callable[[int], float], clock: Callable[[], float] = time.perf_counter, patience_s: float = PATIENCE_S
) -> float:
    """The length of a round in µs, where `timed(rounds)` runs a kernel and tells how many µs it took.

    Raises GpuError where that cannot be told: on a machine so busy that the longer kernel seems no longer.
    """
    began = clock()
    few, many = _ROUNDS
    while clock() < began + WARM_UP_S:
        timed(few)
    while many <= _MOST_ROUNDS:
        short, long = timed(few), timed(many)
        for _ in range(_REPEATS):
            if clock() > began + patience_s:
                break
            # The fastest of several is the one that nothing disturbed; the difference leaves out all but the rounds.
            short, long = min(short, timed(few)), min(long, timed(many))
        found = (long - short) / (many - few)
        if found >= SHORTEST_US:
            return found
        if clock() > began + patience_s:
            break
        many *= _LONGER
    raise GpuError("the kernel's length cannot be measured here, the machine is too busy: name its --rounds")
