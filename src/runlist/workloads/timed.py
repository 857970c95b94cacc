"""A batch program that knows how long it kept the GPU: kernels queued without a gap, timed by CUDA events."""

from __future__ import annotations

import os
from typing import Any

from runlist.workloads import options, protocol
from runlist.workloads.accumulator import Accumulator
from runlist.workloads.batch import BLOCKS_PER_SM
from runlist.workloads.gpu import Gpu, Stopwatch
from runlist.workloads.loops import BurstLoop

KERNELS, KERNEL_MS = 120, 16.0


class TimedLoop(BurstLoop):
    """A batch loop that also tells the length of each burst by the GPU's clock."""

    def begin_window(self) -> None:
        super().begin_window()
        self.busy_s: list[float] = []

    def window(self) -> dict[str, Any]:
        """`busy_s`: seconds, one number a burst."""
        return {**super().window(), "busy_s": self.busy_s}


def _body() -> None:
    parser = options.parser("runlist.workloads.timed", __doc__)
    add = parser.add_argument
    add("--kernels", type=options.positive_int, default=KERNELS, metavar="N", help=f"in a burst ({KERNELS})")
    add("--rounds", type=options.positive_int, metavar="N", help=f"rounds of a kernel, instead of {KERNEL_MS:g} ms")
    args = parser.parse_args()

    gpu = Gpu(args.gpu, blocking=True)
    work = Accumulator(gpu, blocks=BLOCKS_PER_SM * gpu.sm_count)
    rounds = args.rounds or work.rounds_for(KERNEL_MS * 1e3)
    watch = Stopwatch()

    def burst() -> None:
        watch.start(work.stream)
        for _ in range(args.kernels):
            work.launch(rounds)
        watch.stop(work.stream)
        loop.busy_s.append(watch.seconds())

    loop = TimedLoop(burst, args.kernels, work.correct)
    protocol.run(loop, args.seconds, pid=os.getpid(), gpu=gpu.name, rounds=rounds)


if __name__ == "__main__":
    options.main(_body, "timed")
