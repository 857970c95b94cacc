"""A latency-critical program: a short kernel on every SM once a period, timed from launch to synchronised.

With `--steps` a request is several kernels: queued one after the other at the pace of the host (`--host-us`) and waited
for once, as an eager program does it, or each waited for and thought about before the next (`--gap-us`), as in a loop
over tokens.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable

from runlist.workloads import options, protocol
from runlist.workloads.accumulator import Accumulator
from runlist.workloads.gpu import Flag, Gpu
from runlist.workloads.loops import RequestLoop
from runlist.workloads.prepared import prepared_request

_U32 = 0xFFFFFFFF


def stepped_request(
    work: Accumulator, rounds: int, steps: int, *, host_s: float = 0.0, gap_s: float | None = None
) -> Callable[[float], float]:
    """A request of several kernels, each launched when the host is ready for it: `host_s` after the launch before, or
    `gap_s` after the end of the kernel before. The host is busy meanwhile.
    """

    def request(_arrival: float) -> float:
        began = time.perf_counter()
        for step in range(steps):
            if step:
                if gap_s is None:
                    _busy(host_s)
                else:
                    work.synchronize()
                    _busy(gap_s)
            work.launch(rounds)
        work.synchronize()
        return began

    return request


def _busy(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


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
    add("--steps", type=options.positive_int, default=1, metavar="N", help="kernels a request (1)")
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument("--host-us", type=options.positive, default=0.0, metavar="US",
                      help="what the host needs to launch each of them; one wait at the end")  # fmt: skip
    pace.add_argument("--gap-us", type=options.positive, metavar="US",
                      help="wait for each of them, and let the host work this long before the next")  # fmt: skip
    pace.add_argument("--hint-us", type=options.positive, metavar="US",
                      help="take the GPU this long before each arrival")  # fmt: skip
    ahead = parser.add_mutually_exclusive_group()
    ahead.add_argument("--prepare-us", type=options.positive, metavar="US",
                       help="let the host work this long before each arrival, once a byte came in")  # fmt: skip
    ahead.add_argument("--say-us", type=options.positive, metavar="US",
                       help="the same, and say so to Runlist instead (runlist.hint)")  # fmt: skip
    args = parser.parse_args()
    if args.hint_us is not None and args.steps > 1:
        parser.error("--hint-us is for requests of one kernel: leave out --steps")
    if args.hint_us is not None and (args.prepare_us or args.say_us):
        parser.error("--hint-us takes the GPU by itself: leave out --prepare-us and --say-us")

    gpu = Gpu(args.gpu)
    work = Accumulator(gpu, blocks=gpu.sm_count)
    rounds = args.rounds or work.rounds_for(args.kernel_us)
    lead_s = 0.0
    if args.hint_us is None:
        gap_s = None if args.gap_us is None else args.gap_us / 1e6
        request = stepped_request(work, rounds, args.steps, host_s=args.host_us / 1e6, gap_s=gap_s)
    else:
        lead_s = args.hint_us / 1e6
        request = hinted_request(gpu, work, rounds, lead_s if args.closed else 0.0)
    if (prepare_us := args.prepare_us or args.say_us) is not None:
        lead_s = prepare_us / 1e6
        request = prepared_request(request, lead_s, hints=args.say_us is not None)
    loop = RequestLoop(
        request, args.period_ms / 1e3, closed=args.closed, poisson=args.poisson, jitter=args.jitter,
        lead_s=lead_s, report=options.reporter(args.report), correct=work.correct,
    )  # fmt: skip
    gc.disable()  # nothing here makes cycles, and a collection would show as a slow request
    protocol.run(loop, args.seconds, pid=os.getpid(), gpu=gpu.name, rounds=rounds, context_at=gpu.context_at)


if __name__ == "__main__":
    options.main(_body, "latency")
