"""Suspending and resuming a working job a thousand times; its result must stay right bit for bit."""

from __future__ import annotations

import random
import time

from bench.harness.figures import AT_MOST, Figure, holds, spread
from runlist.client import Client
from runlist.workloads.process import WorkloadProcess


def measure(repeats: int = 1000) -> list[Figure]:
    """From the client's call to the daemon's answer, with the control in force."""
    pauses = random.Random(1)  # noqa: S311 (no secret)
    suspend_ms, resume_ms = [], []
    with Client.open(start=True) as client, WorkloadProcess("batch") as batch:
        batch.run()
        client.attach(batch.pid, "batch")
        for _ in range(repeats):
            began = time.perf_counter()
            client.suspend(batch.pid)
            suspended = time.perf_counter()
            time.sleep(pauses.uniform(0, 0.002))
            resuming = time.perf_counter()
            client.resume(batch.pid)
            resumed = time.perf_counter()
            time.sleep(pauses.uniform(0, 0.004))
            suspend_ms.append((suspended - began) * 1e3)
            resume_ms.append((resumed - resuming) * 1e3)
        client.detach(batch.pid)
        correct = batch.quit()["correct"]
    suspend, resume = spread(suspend_ms), spread(resume_ms)
    return [
        Figure(f"suspend, p99 of {repeats}", suspend["p99"], AT_MOST, 1.5, "ms", suspend),
        Figure(f"resume, p99 of {repeats}", resume["p99"], AT_MOST, 1.5, "ms", resume),
        holds("the job's result after that is bit-exact", correct),
    ]
