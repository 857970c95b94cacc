"""How soon a process that was checkpointed and restored has Runlist's slices again, and what its neighbour sees.

The driver restores a context with its own slices. It also takes kernels of such a context off only at their end, which
no control changes: the neighbour's latency, without a target, tells that.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

from bench.harness import jobs
from bench.harness.benchmark import Needs
from bench.harness.checkpoints import checkpoint_and_restore
from bench.harness.figures import AT_MOST, Figure, holds, p99, spread
from runlist.client import Client
from runlist.workloads.process import WorkloadProcess

NEEDS = Needs(device="nvidia")
POLL_S = 0.002
PATIENCE_S = 10.0
WINDOW_S = 1.0


def measure(repeats: int = 8) -> list[Figure]:
    """So many checkpoints of a batch job beside a latency-critical one, every other one after a suspend and resume."""
    with contextlib.ExitStack() as stack:
        client = jobs.scheduler(stack)
        critical = stack.enter_context(WorkloadProcess("latency"))
        batch = stack.enter_context(WorkloadProcess("batch"))
        with jobs.working([critical, batch]), jobs.managed(client, {batch: jobs.BATCH, critical: jobs.LATENCY}):
            time.sleep(1)
            before = critical.measure(WINDOW_S)["latency_us"]
            runs = [_once(client, batch, suspended=bool(index % 2)) for index in range(repeats)]
            after = critical.measure(WINDOW_S)["latency_us"]
        correct = batch.quit()["correct"]
    details = {"runs": runs, "LC before, µs": spread(before), "LC after, µs": spread(after)}
    return [
        Figure("restored to in force, slowest", max(run["in_force_ms"] for run in runs), AT_MOST, 100, "ms", details),
        Figure("LC p99 beside a batch job that was restored", p99(after), unit="µs"),
        holds("the job's result after that is bit-exact", correct),
    ]


def _once(client: Client, batch: WorkloadProcess, suspended: bool) -> dict[str, Any]:
    """Milliseconds from the end of the restore until `ps` shows a slice of ours in force on the new contexts."""
    if suspended:
        client.suspend(batch.pid)
        client.resume(batch.pid)
    wanted = client.ps()
    slice_us = next(task.timeslice_us for task in wanted if task.pid == batch.pid)
    began = time.perf_counter()
    restored = checkpoint_and_restore(batch.pid)
    while not any(task.pid == batch.pid and task.timeslice_us == slice_us for task in client.ps()):
        if time.perf_counter() - restored > PATIENCE_S:
            raise RuntimeError(f"process {batch.pid} was restored and is not managed again")
        time.sleep(POLL_S)
    in_force = time.perf_counter()
    time.sleep(0.3)
    return {
        "whole_ms": round((restored - began) * 1e3, 1),
        "in_force_ms": round((in_force - restored) * 1e3, 1),
        "after suspend and resume": suspended,
    }
