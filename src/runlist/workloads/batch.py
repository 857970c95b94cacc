"""A batch program: long kernels that fill every SM, four and then a wait, over and over; results checked."""

from __future__ import annotations

import os

from runlist.workloads import options, protocol
from runlist.workloads.accumulator import Accumulator
from runlist.workloads.gpu import Gpu
from runlist.workloads.loops import BurstLoop

BLOCKS_PER_SM = 8
"""8 × 256 threads are all that an SM holds."""

BURST = 4


def _body() -> None:
    parser = options.parser("runlist.workloads.batch", __doc__)
    add = parser.add_argument
    add("--kernel-ms", type=options.positive, default=3.2, metavar="MS", help="a kernel's length when alone (3.2)")
    add("--rounds", type=options.positive_int, metavar="N", help="rounds of the kernel, instead of --kernel-ms")
    args = parser.parse_args()

    gpu = Gpu(args.gpu, blocking=True)
    work = Accumulator(gpu, blocks=BLOCKS_PER_SM * gpu.sm_count)
    rounds = args.rounds or work.rounds_for(args.kernel_ms * 1e3)

    def burst() -> None:
        for _ in range(BURST):
            work.launch(rounds)
        work.synchronize()

    protocol.run(BurstLoop(burst, BURST, work.correct), args.seconds, pid=os.getpid(), gpu=gpu.name, rounds=rounds)


if __name__ == "__main__":
    options.main(_body, "batch")
