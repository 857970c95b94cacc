"""What `runlist trace --why` costs the program that it watches: one that launches much, and one that launches at the
pace of an eager framework, with and without, in turn; and each watched call.

A request is a hundred launches and a wait. The beginning of each watch is left out: meanwhile it finds out whether it
can afford to watch launches.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from bench.harness.figures import AT_MOST, Figure, spread
from runlist.errors import NotSupportedError
from runlist.planes.kernel import rights
from runlist.planes.nvidia.rm.transport import choose_driver
from runlist.proc.process import capable
from runlist.why.cost import Cost
from runlist.why.recorder import Recorder
from runlist.workloads.process import WorkloadProcess

MOST_PERCENT = 3.0
STEPS = 100
PACES_US = {"back to back": "0.001", "every 10 µs": "10"}
ROUNDS = {"nvidia": 9, "emulated": 3}
WINDOW_S = {"nvidia": 2.0, "emulated": 0.5}
SETTLE_S = 1.0
HAND_OVERS = 5_000


def measure() -> list[Figure]:
    """Each pace in a process of its own, in windows with and without."""
    if os.geteuid() != 0 or not capable(rights.BPF):
        raise NotSupportedError("why needs root with CAP_BPF")
    device = choose_driver().name
    figures = []
    costs: list[Cost] = []
    for pace, host_us in PACES_US.items():
        words = ("--kernel-us", "5", "--period-ms", "5", "--steps", str(STEPS), "--host-us", host_us)
        with WorkloadProcess("latency", *words) as program:
            program.run()
            figures.append(_figure(program, pace, ROUNDS[device], WINDOW_S[device], costs))
    figures.append(_switches(ROUNDS[device]))
    names = {
        "call_ns": "a watched call, its first instruction done by the kernel",
        "stepped_ns": "a watched call, its first instruction stepped over",
        "return_ns": "a watched call and its end",
    }
    for field, name in names.items():
        found = [getattr(cost, field) for cost in costs]
        figures.append(Figure(f"{name}: added", median(found), unit="ns", details=spread(found)))
    return figures


def _figure(program: WorkloadProcess, pace: str, rounds: int, seconds: float, costs: list[Cost]) -> Figure:
    without, watched, added = [], [], []
    said = ""
    launches_watched = 0
    for _ in range(rounds):
        without.append(_request_us(program, seconds))
        with _watched(program.pid) as recorder:
            until = time.monotonic() + SETTLE_S
            while recorder.watches_launches and time.monotonic() < until:
                time.sleep(0.05)
            watched.append(_request_us(program, seconds))
            said = recorder.cost()
            launches_watched += recorder.watches_launches
            costs += [recorder.call_cost] if recorder.call_cost is not None else []
        added.append(added_percent(without[-1], watched[-1]))
    details = {
        "µs without": without, "µs with": watched, "% added": added, "windows in which launches were watched":
        launches_watched, "what it said at last": said,
    }  # fmt: skip
    return Figure(f"a request of {STEPS} launches, {pace}: added", median(added), AT_MOST, MOST_PERCENT, "%", details)


def _switches(rounds: int) -> Figure:
    """Two processes that have nothing to do with the one that is watched, and hand a core to each other."""
    without, watched = [], []
    with WorkloadProcess("latency", "--period-ms", "1000") as program:
        for _ in range(rounds):
            without.append(_hand_over_ns())
            with _watched(program.pid):
                watched.append(_hand_over_ns())
    added = [one - other for one, other in zip(watched, without, strict=True)]
    details = {"ns without": without, "ns with": watched}
    return Figure("a switch of cores between other processes: added", median(added), unit="ns", details=details)


def _hand_over_ns() -> float:
    """How long it takes from one process to another on the same core, and back: two switches."""
    there, back = os.pipe(), os.pipe()
    core = max(os.sched_getaffinity(0))
    child = os.fork()
    if child == 0:
        try:
            os.sched_setaffinity(0, {core})
            os.close(there[1])
            while os.read(there[0], 1):
                os.write(back[1], b"x")
        finally:
            os._exit(0)
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        began = time.perf_counter_ns()
        for _ in range(HAND_OVERS):
            os.write(there[1], b"x")
            os.read(back[0], 1)
        return (time.perf_counter_ns() - began) / HAND_OVERS / 2
    finally:
        os.sched_setaffinity(0, before)
        for fd in (*there, *back):
            os.close(fd)
        os.waitpid(child, 0)


def added_percent(without: float, watched: float) -> float:
    """How much longer something takes."""
    return 100.0 * (watched / without - 1.0)


def _request_us(program: WorkloadProcess, seconds: float) -> float:
    return float(median(program.measure(seconds)["latency_us"]))


@contextmanager
def _watched(pid: int) -> Iterator[Recorder]:
    """Somebody asks, and takes what is told."""
    over = threading.Event()
    with Recorder(pid, None, None, None) as recorder:

        def look() -> None:
            while not over.wait(0.1):
                recorder.look()

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield recorder
        finally:
            over.set()
            thread.join()
