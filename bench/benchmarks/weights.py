"""Shares by weight between backlogged batch jobs, by the GPU's own log and by work done."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from bench.harness import jobs, mps
from bench.harness.figures import AT_MOST, Figure, holds, rounded
from bench.harness.gpu_log import GpuLog, as_details, points, worst_points
from runlist.client import Client
from runlist.workloads.process import WorkloadProcess

WEIGHTS = ((300, 100), (1000, 100), (100, 100, 100, 100))
SECONDS = 10.0
COMPARED_S = 1.5


def measure(seconds: float = SECONDS) -> list[Figure]:
    """Each set of weights for so many seconds, from the moment that all jobs are managed and work; then the same jobs
    without Runlist, and 3:1 as MPS can have it, by a limit on each client's SMs.
    """
    figures = []
    most = max(len(weights) for weights in WEIGHTS)
    with contextlib.ExitStack() as stack:
        client = jobs.scheduler(stack)
        log = stack.enter_context(GpuLog())
        batches = jobs.batch_jobs(stack, most)
        for weights in WEIGHTS:
            figures += _weighted(client, log, batches[: len(weights)], weights, seconds)
        compared = {
            "default time slicing, 2 jobs": _unmanaged(log, batches[:2]),
            f"default time slicing, {most} jobs": _unmanaged(log, batches),
            "MPS, active thread percentage 75:25": _under_mps(batches[0]),
        }
        correct = jobs.all_correct(batches)
    return [*figures, holds("weights: all results are bit-exact", correct, {"compared": compared})]


def _weighted(
    client: Client, log: GpuLog, batches: Sequence[WorkloadProcess], weights: Sequence[int], seconds: float
) -> list[Figure]:
    settings = {
        process: {**jobs.BATCH, "weight": str(weight)} for process, weight in zip(batches, weights, strict=True)
    }
    with jobs.working(batches), jobs.managed(client, settings):
        windows, span = jobs.measured(batches, lambda: log.watch(seconds))
    pids = [process.pid for process in batches]
    wanted = [weight / sum(weights) for weight in weights]
    shares = span.shares(pids)
    work = _work_shares(windows)
    by_second = span.windows()
    ratio = ":".join(str(weight // min(weights)) for weight in weights)
    details = {
        "seconds": span.seconds,
        "wanted": rounded(wanted),
        "GPU time": rounded(shares),
        "GPU time by second": as_details(by_second, pids),
        "held, of all time": rounded([span.held(pid) for pid in pids]),
        "work": rounded(work),
        "kernels/s": rounded([jobs.rate(window) for window in windows], 2),
        "switches/s": round(span.switches() / span.seconds, 1),
        "records lost": log.dropped,
    }
    name = f"weights {ratio}"
    return [
        Figure(f"{name}: share of GPU time over {seconds:g} s off by", points(shares, wanted), AT_MOST, 2, "points",
               details),
        Figure(f"{name}: worst 1 s window after the first off by", worst_points(by_second[1:], pids, wanted), AT_MOST,
               5, "points"),
        Figure(f"{name}: share of work over {seconds:g} s off by", points(work, wanted), unit="points"),
    ]  # fmt: skip


def _unmanaged(log: GpuLog, batches: Sequence[WorkloadProcess]) -> dict[str, Any]:
    with jobs.working(batches):
        windows, span = jobs.measured(batches, lambda: log.watch(COMPARED_S))
    pids = [process.pid for process in batches]
    return {"GPU time": rounded(span.shares(pids)), "work": rounded(_work_shares(windows))}


def _under_mps(like: WorkloadProcess) -> dict[str, Any]:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(mps.server())
        if server.missing:
            return {"missing": server.missing}
        pair = [jobs.like(stack, like, 1, environment=server.client(percent))[0] for percent in (75, 25)]
        with jobs.working(pair):
            windows = jobs.windows(pair, COMPARED_S)
        return {"work": rounded(_work_shares(windows)), "kernels/s": rounded([jobs.rate(one) for one in windows], 2)}


def _work_shares(windows: Sequence[dict[str, Any]]) -> list[float]:
    """Of the kernels of all (they are equal), the part of each."""
    rates = [jobs.rate(window) for window in windows]
    return [rate / sum(rates) if sum(rates) else 0.0 for rate in rates]
