"""A batch program: long kernels that fill every SM, four and then a wait, over and over; results checked.

With `--graph` it is CUDA graphs of twenty shorter kernels instead, four and then a wait.
"""

from __future__ import annotations

import os

from runlist.workloads import options, protocol
from runlist.workloads.accumulator import Accumulator
from runlist.workloads.gpu import Gpu
from runlist.workloads.loops import BurstLoop

BLOCKS_PER_SM = 8
"""An SM has room for 8 × 256 threads."""

BURST = 4
GRAPH_KERNELS = 20
KERNEL_MS, GRAPH_KERNEL_MS = 3.2, 0.2


def _body() -> None:
    parser = options.parser("runlist.workloads.batch", __doc__)
    add = parser.add_argument
    length = f"a kernel's length when alone ({KERNEL_MS:g}; {GRAPH_KERNEL_MS:g} in a graph)"
    add("--kernel-ms", type=options.positive, metavar="MS", help=length)
    add("--rounds", type=options.positive_int, metavar="N", help="rounds of the kernel, instead of --kernel-ms")
    add("--graph", action="store_true", help=f"launch CUDA graphs of {GRAPH_KERNELS} kernels")
    add("--burst", type=options.positive_int, default=BURST, metavar="N", help=f"launches before a wait ({BURST})")
    args = parser.parse_args()

    gpu = Gpu(args.gpu, blocking=True)
    work = Accumulator(gpu, blocks=BLOCKS_PER_SM * gpu.sm_count)
    kernel_ms = args.kernel_ms or (GRAPH_KERNEL_MS if args.graph else KERNEL_MS)
    rounds = args.rounds or work.rounds_for(kernel_ms * 1e3)
    kernels = GRAPH_KERNELS if args.graph else 1
    launch = work.graph(kernels, rounds) if args.graph else lambda: work.launch(rounds)

    def burst() -> None:
        for _ in range(args.burst):
            launch()
        work.synchronize()

    loop = BurstLoop(burst, args.burst * kernels, work.correct)
    protocol.run(loop, args.seconds, pid=os.getpid(), gpu=gpu.name, rounds=rounds)


if __name__ == "__main__":
    options.main(_body, "batch")
