"""A batch program of copies: from one array of device memory to another and back, queued without a gap; checked."""

from __future__ import annotations

from runlist.workloads import quick_cuda  # noqa: F401  isort: skip  (before the bindings)

import os

from cuda.bindings import driver

from runlist.workloads import lcg, options, protocol
from runlist.workloads.gpu import Gpu, check, synchronize
from runlist.workloads.loops import BurstLoop

COPIES, COPY_MIB = 64, 64
_WORDS_PER_MIB = (1 << 20) // 4


def _body() -> None:
    parser = options.parser("runlist.workloads.copies", __doc__)
    add = parser.add_argument
    add("--copies", type=options.positive_int, default=COPIES, metavar="N", help=f"in a burst ({COPIES})")
    add("--mib", type=options.positive_int, default=COPY_MIB, metavar="N", help=f"size of each, in MiB ({COPY_MIB})")
    args = parser.parse_args()

    gpu = Gpu(args.gpu, blocking=True)
    values = lcg.initial(args.mib * _WORDS_PER_MIB)
    size = len(values) * values.itemsize
    first, second = gpu.upload(values), int(check(driver.cuMemAlloc(size)))
    stream = gpu.stream()

    def burst() -> None:
        for copy in range(args.copies):
            to, source = (first, second) if copy % 2 else (second, first)
            check(driver.cuMemcpyDtoDAsync(to, source, size, stream))
        synchronize(stream)

    def correct() -> bool:
        synchronize(stream)
        return all(gpu.download(each, values) == values for each in (first, second))

    burst()
    protocol.run(BurstLoop(burst, args.copies, correct), args.seconds, pid=os.getpid(), gpu=gpu.name)


if __name__ == "__main__":
    options.main(_body, "copies")
