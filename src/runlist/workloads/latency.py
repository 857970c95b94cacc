"""A latency-critical program: a short kernel on every SM once a period, timed from launch to synchronised."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable

from runlist.workloads import options, protocol
from runlist.workloads.accumulator import Accumulator
from runlist.workloads.gpu import Flag, Gpu
from runlist.workloads.loops import RequestLoop

_U32 = 0xFFFFFFFF


def plain_request(work: Accumulator, rounds: int) -> Callable[[float], float]:
    """A request that is launched when it arrives."""

    def request(_arrival: float) -> float:
        began = time.perf_counter()
        work.launch(rounds)
        work.synchronize()
        return began

    return request


def hinted_request(gpu: Gpu, work: Accumulator, rounds: int, blocked_s: float = 0.0) -> Callable[[float], float]:
    """A request that takes the GPU ahead of its arrival.

    A one-thread kernel blocks the stream, the request queues behind it, and at the arrival the CPU releases both: the
    switch to this process is over by then. Both must be on one stream: a kernel on another does not block it.
    In a closed loop the arrival is put off until the stream was blocked for `blocked_s` seconds.
    """
    flag = Flag()
    blocker = gpu.kernel("wait_flag_u32")

    def request(arrival: float) -> float:
        ticket = (flag.value + 1) & _U32
        blocker.launch(work.stream, 1, flag.address, ticket, threads=1)
        work.launch(rounds)
        release = max(arrival, time.perf_counter() + blocked_s)
        while time.perf_counter() < release:
            pass
        began = time.perf_counter()
        flag.value = ticket
        work.synchronize()
        return began

    return request


def _body() -> None:
    parser = options.parser("runlist.workloads.latency", __doc__)
    add = parser.add_argument
    add("--kernel-us", type=options.positive, default=80.0, metavar="US", help="the kernel's length when alone (80)")
    add("--rounds", type=options.positive_int, metavar="N", help="rounds of the kernel, instead of --kernel-us")
    options.add_arrivals(parser, 3.0)
    add("--closed", action="store_true", help="count the period from the end of the request before")
    add("--hint-us", type=options.positive, metavar="US", help="take the GPU this long before each arrival")
    args = parser.parse_args()

    gpu = Gpu(args.gpu)
    work = Accumulator(gpu, blocks=gpu.sm_count)
    rounds = args.rounds or work.rounds_for(args.kernel_us)
    if args.hint_us is None:
        request, lead_s = plain_request(work, rounds), 0.0
    else:
        lead_s = args.hint_us / 1e6
        request = hinted_request(gpu, work, rounds, lead_s if args.closed else 0.0)
    loop = RequestLoop(
        request, args.period_ms / 1e3, closed=args.closed, poisson=args.poisson, lead_s=lead_s,
        report=options.reporter(args.report), correct=work.correct,
    )  # fmt: skip
    gc.disable()  # nothing here makes cycles, and a collection would show as a slow request
    protocol.run(loop, args.seconds, pid=os.getpid(), gpu=gpu.name, rounds=rounds, context_at=gpu.context_at)


if __name__ == "__main__":
    options.main(_body, "latency")
