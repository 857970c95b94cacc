"""How soon a latency-critical program that has just started is under control, among batch jobs that share by weight."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Any

from bench.harness import jobs
from bench.harness.figures import AT_MOST, Figure, p99, spread
from runlist.client import Client
from runlist.views.structs import TaskView
from runlist.workloads.process import WorkloadProcess

WEIGHTS = (100, 200, 300, 400)
POLL_S = 0.005
FIRST_S = 0.3
MANAGED_S = 5.0


def measure(repeats: int = 10) -> list[Figure]:
    """Start it so many times under management that waits for its first context."""
    with contextlib.ExitStack() as stack:
        client = jobs.scheduler(stack)
        with WorkloadProcess("latency") as sized:
            rounds = str(sized.ready["rounds"])
        batches = jobs.batch_jobs(stack, len(WEIGHTS))
        weights = {job: {**jobs.BATCH, "weight": str(weight)} for job, weight in zip(batches, WEIGHTS, strict=True)}
        with jobs.working(batches), jobs.managed(client, weights):
            runs = [_start_one(client, rounds) for _ in range(repeats)]
    in_force = [run["attach_ms"] for run in runs]
    room = [run["room_ms"] for run in runs if run["room_ms"] is not None]
    details = {
        "from its first channel group seen, ms": spread(in_force),
        f"from its first context call to seen in `ps`, every {POLL_S * 1e3:g} ms, ms": spread(_of(runs, "whole_ms")),
        f"p99 of its first {FIRST_S:g} s, µs": spread(_of(runs, "p99_us")),
        "runs": runs,
    }
    name = f"reaction to a new LC: first channel group seen to in force, slowest of {repeats}"
    figures = [Figure(name, max(in_force), AT_MOST, 20, "ms", details)]
    if room:  # the kernel plane tells of the group
        name = f"reaction to a new LC: first channel group made to the batch jobs off, slowest of {len(room)}"
        figures.append(Figure(name, max(room), AT_MOST, 2, "ms", {"ms": spread(room)}))
    return figures


class _Seen(threading.Thread):
    """Looks for a process in `ps`, on a connection of its own. `at` is when it was there (time.perf_counter). To answer
    takes the daemon a ms, for which the kernel's events wait: nobody looks before the process has its context.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.at = float("nan")
        self.view: TaskView | None = None
        self._pid = pid
        self.start()

    def run(self) -> None:
        with Client.open() as client:
            while self.view is None:
                time.sleep(POLL_S)
                self.view = next((task for task in client.ps() if task.pid == self._pid), None)
                self.at = time.perf_counter()


def _start_one(client: Client, rounds: str) -> dict[str, Any]:
    def manage(pid: int) -> None:
        client.attach(pid, None, wait=True, settings=jobs.LATENCY)

    with WorkloadProcess("latency", "--rounds", rounds, on_start=manage) as critical:
        seen = _Seen(critical.pid)
        critical.run()
        window = critical.measure(FIRST_S)
        seen.join(MANAGED_S)
        view = seen.view
        if view is None:
            raise RuntimeError(f"process {critical.pid} made a context and was not managed")
        critical.quit()
    return {
        "attach_ms": view.attach_ms,
        "room_ms": view.room_ms,
        "discovery_ms": view.discovery_ms,
        "whole_ms": round((seen.at - critical.ready["context_at"]) * 1e3, 3),
        "p99_us": round(p99(window["latency_us"]), 1),
    }


def _of(runs: Sequence[dict[str, Any]], name: str) -> list[float]:
    return [run[name] for run in runs]
