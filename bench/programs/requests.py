"""A latency program that tells when it launched: `python -m bench.programs.requests COUNT`.

So many requests of a few kernels, each waited for, with pauses between them of no even length. At the end it prints one
line: when the first kernel of each was launched, in seconds of the monotonic clock.
"""

from __future__ import annotations

import random
import sys
import time

from runlist.workloads.accumulator import Accumulator
from runlist.workloads.gpu import Gpu

STEPS = 20
KERNEL_US = 150.0
PAUSE_S = (0.010, 0.030)
SETTLE_S = 1.5


def main() -> None:
    """Work."""
    gpu = Gpu(0)
    work = Accumulator(gpu, blocks=gpu.sm_count)
    rounds = work.rounds_for(KERNEL_US)
    pauses = random.Random(1)  # noqa: S311 (no secret)
    time.sleep(SETTLE_S)  # until it is managed
    launched = []
    for _ in range(int(sys.argv[1])):
        time.sleep(pauses.uniform(*PAUSE_S))
        launched.append(time.monotonic())
        for _ in range(STEPS):
            work.launch(rounds)
            work.synchronize()
    print(*map(repr, launched))


if __name__ == "__main__":
    main()
