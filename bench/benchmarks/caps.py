"""Caps on busy batch jobs, of kernels launched one by one and of CUDA graphs: how near the share of GPU time comes."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from bench.harness import jobs
from bench.harness.figures import AT_MOST, Figure, holds, rounded
from bench.harness.gpu_log import GpuLog, Span
from runlist.client import Client
from runlist.workloads.process import WorkloadError, WorkloadProcess

EAGER, GRAPH = "eager", "graph"
RUNS: tuple[tuple[Mapping[str, int], float], ...] = (
    ({EAGER: 10, GRAPH: 80}, 10.0),
    ({EAGER: 80, GRAPH: 10}, 10.0),
    ({EAGER: 30, GRAPH: 50}, 10.0),
    ({EAGER: 50, GRAPH: 30}, 10.0),
    ({EAGER: 30}, 5.0),
)
"""Percent by kind of job, what runs together, and seconds: never so much that a job could be short of its cap for
another reason. The job that is alone is to come as near in half the time.
"""

ALONE_S = 1.0


def measure() -> list[Figure]:
    """Each set of caps, from the moment that all jobs are managed and work."""
    found: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        client = jobs.scheduler(stack)
        log = stack.enter_context(GpuLog())
        processes, note = _both_kinds(stack)
        alone = {kind: jobs.rate_alone(process, ALONE_S) for kind, process in processes.items()}
        for run, seconds in RUNS:
            found += _capped(client, log, {kind: processes[kind] for kind in run}, run, alone, seconds)
        correct = jobs.all_correct(list(processes.values()))
        lost = log.dropped
    details = {"runs": found, "alone, kernels/s": alone, "records lost": lost, "CUDA graphs": note}
    figures = []
    for percent in sorted({one["cap"] for one in found}):
        runs = [one for one in found if one["cap"] == percent]
        off = max(abs(one["held"] - one["cap"]) for one in runs)
        worst = max(abs(held - one["cap"]) for one in runs for held in one["held by second"])
        figures += [
            Figure(f"cap {percent} %: share over 10 s off by", off, AT_MOST, 1.5, "points"),
            Figure(f"cap {percent} %: worst 1 s window off by", worst, AT_MOST, 4, "points"),
        ]
    return [*figures, holds("caps: all results are bit-exact", correct, details)]


def _both_kinds(stack: contextlib.ExitStack) -> tuple[dict[str, WorkloadProcess], str]:
    """A job of each kind; where there are no graphs, a second eager one in its place, and why."""
    eager = stack.enter_context(WorkloadProcess("batch"))
    try:
        return {EAGER: eager, GRAPH: stack.enter_context(WorkloadProcess("batch", "--graph"))}, "measured"
    except WorkloadError as error:
        return {EAGER: eager, GRAPH: jobs.like(stack, eager, 1)[0]}, f"an eager job in their place: {error}"


def _capped(
    client: Client,
    log: GpuLog,
    processes: Mapping[str, WorkloadProcess],
    caps: Mapping[str, int],
    alone: Mapping[str, float],
    seconds: float,
) -> list[dict[str, Any]]:
    """What each job held, and what it got done, in percent of the GPU."""
    settings = {process: {**jobs.BATCH, "cap": str(caps[kind])} for kind, process in processes.items()}
    with jobs.working(list(processes.values())), jobs.managed(client, settings):
        windows, span = jobs.measured(list(processes.values()), lambda: log.watch(seconds))
    together = ", ".join(f"{kind} {cap} %" for kind, cap in caps.items())
    return [
        {
            "run": together,
            "job": kind,
            "cap": caps[kind],
            "held": round(span.held(process.pid) * 100, 3),
            "held by second": rounded(_by_second(span, process.pid), 3),
            "work": round(jobs.rate(window) / alone[kind] * 100, 3),
        }
        for (kind, process), window in zip(processes.items(), windows, strict=True)
    ]


def _by_second(span: Span, pid: int) -> list[float]:
    return [window.held(pid) * 100 for window in span.windows()]
