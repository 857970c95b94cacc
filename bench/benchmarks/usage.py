"""Whether the usage that is read is true, and what reading it costs."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from bench.harness import jobs
from bench.harness.contexts import contexts_of, put_back
from bench.harness.figures import AT_MOST, Figure, rounded
from bench.harness.gpu_log import GpuLog
from runlist.planes.nvidia.rm.transport import choose_driver
from runlist.planes.nvidia.switch_log import SwitchLog
from runlist.workloads.process import WorkloadProcess

REPEATS = 3
SLICE_US = 1000
"""Two jobs at this slice switch 900 times a second."""

BEGUN_S = 0.05
"""A burst takes longer than this; so there is one, and no second."""

COST_S = 2.5
PACES_S = (0.02, 0.25)


def measure() -> list[Figure]:
    """A job that knows how long it kept the GPU; then the CPU time of a reader while two jobs switch fast."""
    with GpuLog() as log:
        errors, runs = _true(log)
    costs = _cost()
    fastest = min(PACES_S)
    return [
        Figure(f"usage: a job of known duration, off by, worst of {REPEATS}", max(errors) * 100, AT_MOST, 1, "%",
               {"runs": runs}),
        Figure(f"usage: reading every {fastest * 1e3:g} ms at some 1,000 switches/s", costs[fastest]["% of a core"],
               AT_MOST, 1, "% of a core", {f"every {pace * 1e3:g} ms": cost for pace, cost in costs.items()}),
    ]  # fmt: skip


def _true(log: GpuLog) -> tuple[list[float], list[dict[str, float]]]:
    """Relative errors: one burst of kernels, against the residencies from its start until it is suspended."""
    errors, runs = [], []
    with contextlib.ExitStack() as stack:
        job = stack.enter_context(WorkloadProcess("timed"))
        (context,) = contexts_of(job.pid, stack)
        for _ in range(REPEATS):
            context.suspend()  # when it is resumed it holds nothing until it has work
            context.resume()
            began = log.forget()
            job.start()
            job.run()
            jobs.wait(BEGUN_S)
            job.pause()  # answered when the burst is done
            context.suspend()  # ends its residency, which would go on otherwise
            span = log.span(began)
            known = sum(job.stop()["busy_s"])
            context.resume()
            held = span.held(job.pid) * span.seconds
            errors.append(abs(held / known - 1))
            runs.append({"by its own events, s": round(known, 6), "by the switch log, s": round(held, 6)})
    return errors, runs


def _cost() -> dict[float, dict[str, Any]]:
    """CPU time of this process, which does nothing but read, by pace."""
    costs = {}
    with contextlib.ExitStack() as stack:
        pair = jobs.batch_jobs(stack, 2)
        contexts = [context for job in pair for context in contexts_of(job.pid, stack)]
        with jobs.working(pair):
            for context in contexts:
                context.set_timeslice(SLICE_US)
            try:
                for pace in PACES_S:
                    costs[pace] = _read_at(pace, [job.pid for job in pair])
            finally:
                for context in contexts:
                    put_back(context)
    return costs


def _read_at(pace: float, pids: list[int]) -> dict[str, Any]:
    with GpuLog() as log:
        began_ns, began, cpu = log.forget(), time.perf_counter(), time.process_time()
        while time.perf_counter() < began + COST_S:
            time.sleep(pace)
            log.read()
        used, elapsed = time.process_time() - cpu, time.perf_counter() - began
        span = log.span(began_ns)
        return {
            "% of a core": round(used / elapsed * 100, 4),
            "of that by the driver": _flush_at(pace, log.uuid),
            "switches/s": round(span.switches() / elapsed, 1),
            "held": rounded([span.held(pid) for pid in pids]),
            "records lost": log.dropped,
        }


def _flush_at(pace: float, uuid: str) -> float:
    """What the driver's part of readings takes at this pace, in % of a core."""
    log = SwitchLog.open(choose_driver(), uuid)
    try:
        began, cpu = time.perf_counter(), time.process_time()
        while time.perf_counter() < began + COST_S:
            time.sleep(pace)
            log.flush()
        return round((time.process_time() - cpu) / (time.perf_counter() - began) * 100, 4)
    finally:
        log.close()
