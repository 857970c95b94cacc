"""`kill -9` of the daemon at random moments under load: every managed process must have its slices back and run."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
import time

from bench.harness.contexts import contexts_of
from bench.harness.figures import AT_MOST, Figure, holds, spread
from runlist.client import Client
from runlist.planes.nvidia.rm.transport import choose_driver
from runlist.workloads.process import WorkloadProcess

KILLS = {"nvidia": 100, "emulated": 200}
CLASSES = ("latency", "batch", "batch")
_PROGRESS_PATIENCE_S = 3.0
_SLICES_PATIENCE_S = 5.0


def measure(kills: int | None = None) -> list[Figure]:
    """One latency and two batch programs; the daemon is killed while it attaches, rotates, suspends or does nothing."""
    driver = choose_driver()
    kills = kills or KILLS[driver.name]
    moments = random.Random(7)  # noqa: S311 (no secret)
    restored_ms, lost = [], 0
    with contextlib.ExitStack() as stack:
        critical = stack.enter_context(WorkloadProcess("latency"))
        first = stack.enter_context(WorkloadProcess("batch"))
        second = stack.enter_context(WorkloadProcess("batch", "--rounds", str(first.ready["rounds"])))
        processes = [critical, first, second]
        contexts = [context for process in processes for context in contexts_of(process.pid, stack)]
        for process in processes:
            process.run()
        for _ in range(kills):
            _manage_and_kill(processes, moments)
            killed = time.perf_counter()
            while any(context.wrong_timeslices(None) for context in contexts):
                if time.perf_counter() - killed > _SLICES_PATIENCE_S:
                    break
                time.sleep(0.002)
            restored_ms.append((time.perf_counter() - killed) * 1e3)
            lost += sum(not _progresses(process) for process in processes)
        correct = all(process.quit()["correct"] for process in processes)
    return [
        Figure(f"{kills} × kill -9 of the daemon: slices back, slowest", max(restored_ms), AT_MOST, 1000, "ms",
               spread(restored_ms)),
        Figure(f"{kills} × kill -9 of the daemon: processes lost", lost, AT_MOST, 0),
        holds("results after the kills are bit-exact", correct),
    ]  # fmt: skip


def _manage_and_kill(processes: list[WorkloadProcess], moments: random.Random) -> None:
    """Start a daemon, have it manage everything, and kill it at a random moment on the way or after."""
    with Client.open(start=True) as client:
        daemon = client.status().pid
        victim_at = time.perf_counter() + moments.uniform(0.0, 0.4)
        steps = [
            functools.partial(client.attach, process.pid, name)
            for process, name in zip(processes, CLASSES, strict=True)
        ]
        if moments.random() < 0.5:
            steps.append(functools.partial(client.suspend, processes[1].pid))
        for step in steps:
            if time.perf_counter() >= victim_at:
                break
            step()
        time.sleep(max(0.0, victim_at - time.perf_counter()))
        os.kill(daemon, signal.SIGKILL)


def _progresses(process: WorkloadProcess) -> bool:
    """Whether a working process finishes something within the patience."""
    deadline = time.perf_counter() + _PROGRESS_PATIENCE_S
    while time.perf_counter() < deadline:
        window = process.measure(0.05)
        if window.get("kernels") or window.get("latency_us"):
            return True
    return False
