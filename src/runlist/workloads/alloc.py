"""A program that allocates and frees device memory over and over, and runs no kernel: how long the driver takes."""

from __future__ import annotations

from runlist.workloads import quick_cuda  # noqa: F401  isort: skip  (before the bindings)

import gc
import os
import time

from cuda.bindings import driver

from runlist.workloads import options, protocol
from runlist.workloads.gpu import Gpu, check
from runlist.workloads.loops import RequestLoop

MIB = 1 << 20
PAUSE_S = 1e-5


def _body() -> None:
    parser = options.parser("runlist.workloads.alloc", __doc__)
    parser.add_argument("--bytes", type=options.positive_int, default=MIB, metavar="N", help="size (1 MiB)")
    args = parser.parse_args()
    gpu = Gpu(args.gpu)

    def request(_arrival: float) -> float:
        began = time.perf_counter()
        check(driver.cuMemFree(check(driver.cuMemAlloc(args.bytes))))
        return began

    gc.disable()  # a collection would show as a slow call
    protocol.run(RequestLoop(request, PAUSE_S, closed=True), args.seconds, pid=os.getpid(), gpu=gpu.name)


if __name__ == "__main__":
    options.main(_body, "alloc")
