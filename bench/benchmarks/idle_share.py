"""What becomes of the share of a tenant that pauses: how much of it the others take, and how soon."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from bench.harness import jobs
from bench.harness.figures import AT_LEAST, Figure, rounded
from bench.harness.gpu_log import GpuLog, Span
from runlist.workloads.process import WorkloadProcess

TENANTS = 3
BEFORE_S, AFTER_S = 1.2, 2.0
TIME_TO_TAKE_S = 0.5
TARGET = 0.95
_STEP_S, _LOOK_S = 0.01, 0.1


def measure(rounds: int = 2) -> list[Figure]:
    """Three equal batch jobs, one of which pauses; then the same beside a latency-critical program."""
    figures = []
    with contextlib.ExitStack() as stack:
        client = jobs.scheduler(stack)
        log = stack.enter_context(GpuLog())
        critical = stack.enter_context(WorkloadProcess("latency"))
        batches = jobs.batch_jobs(stack, TENANTS)
        for name, others, times in (("", [], rounds), (" beside an LC", [critical], 1)):
            settings = {**dict.fromkeys(others, jobs.LATENCY), **dict.fromkeys(batches, jobs.BATCH)}
            runs = []
            for index in range(times):
                with jobs.working([*others, *batches]), jobs.managed(client, settings):
                    runs.append(_pause_one(log, batches, batches[index % TENANTS]))
            taken = fmean(run["taken"] for run in runs)
            title = f"idle share{name}: part taken by the others, from {TIME_TO_TAKE_S * 1e3:g} ms on"
            figures.append(Figure(title, taken, AT_LEAST, TARGET, details={"runs": runs}))
    return figures


def _pause_one(log: GpuLog, tenants: Sequence[WorkloadProcess], idle: WorkloadProcess) -> dict[str, Any]:
    """The part of its share that the others hold after it has paused, beyond what they held before."""
    jobs.wait(TIME_TO_TAKE_S)
    before = log.watch(BEFORE_S)
    idle.pause()  # it is when its last burst is done
    after = log.watch(AFTER_S)
    others = [tenant.pid for tenant in tenants if tenant is not idle]
    held, gone = _sum(before, others), before.held(idle.pid)
    return {
        "held before": rounded([before.held(tenant.pid) for tenant in tenants]),
        "held after": rounded([after.part(TIME_TO_TAKE_S).held(tenant.pid) for tenant in tenants]),
        "taken": (_sum(after.part(TIME_TO_TAKE_S), others) - held) / gone if gone else 0.0,
        f"{TARGET:.0%} taken after, s": _taken_after(after, others, held + TARGET * gone),
    }


def _taken_after(span: Span, pids: Sequence[int], wanted: float) -> float | None:
    """When a stretch of 100 ms begins in which these processes hold that much; None when there is none."""
    for step in range(int((span.seconds - _LOOK_S) / _STEP_S)):
        if _sum(span.part(step * _STEP_S, step * _STEP_S + _LOOK_S), pids) >= wanted:
            return round(step * _STEP_S, 3)
    return None


def _sum(span: Span, pids: Sequence[int]) -> float:
    return sum(span.held(pid) for pid in pids)
