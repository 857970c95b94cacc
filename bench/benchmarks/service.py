"""A service target: what it costs the batch job to keep the tail of a service under its limit while the load changes,
against the best fixed cap on the batch job.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.harness import jobs
from bench.harness.figures import AT_LEAST, Figure, p99, rounded, spread
from runlist.client import Client
from runlist.planes.nvidia.rm.transport import choose_driver
from runlist.workloads.process import WorkloadProcess

LOADS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
"""Of what the service can answer alone."""

STEP_S = 4
FIXED_STEP_S = 1
"""Seconds, which are windows, at each load: with the target, and with each fixed cap."""

TARGET = 1.3
"""Times the service's own p99, alone at the highest load."""

KEPT = 0.99
FIXED_CAPS = (100, 60, 35, 20, 10)
"""Percent, tried in this order until one keeps the target: with a smaller one the batch job gets less."""

CAP_PERIOD_US = 50_000
_FLAT_OUT = 1e6


@dataclass(frozen=True)
class _Pair:
    """The two programs, and what the service can do alone: requests a second, and response times in µs at the highest
    load, by 1 s window.
    """

    service: WorkloadProcess
    batch: WorkloadProcess
    capacity: float
    alone_us: Sequence[Sequence[float]]

    @property
    def target_us(self) -> float:
        return TARGET * p99(self.all_alone_us)

    @property
    def all_alone_us(self) -> list[float]:
        return [each for window in self.alone_us for each in window]


@dataclass(frozen=True)
class _Run:
    """p99 of each window in µs, in the order of the loads, and the batch job's rate over all of them."""

    p99_us: Sequence[float]
    batch_rate: float

    def kept(self, target_us: float) -> float:
        """Part of the windows within the target."""
        return sum(each <= target_us for each in self.p99_us) / len(self.p99_us)

    def details(self, target_us: float) -> dict[str, Any]:
        return {
            "p99 by window, µs": rounded(self.p99_us, 1),
            "kept": round(self.kept(target_us), 4),
            "BE, kernels/s": round(self.batch_rate, 2),
        }


def measure() -> list[Figure]:
    """PyTorch programs where there is PyTorch on a real GPU, else the demo's own kernels."""
    torch = choose_driver().name == "nvidia" and importlib.util.find_spec("torch") is not None
    with contextlib.ExitStack() as stack:
        client = jobs.scheduler(stack)
        pair = _start(stack, torch)
        with jobs.working([pair.service]):
            with_target = _with(client, pair, {"p99": f"{pair.target_us:.0f}us"}, {}, STEP_S)
            fixed, best = _best_fixed(client, pair)
        correct = jobs.all_correct([pair.service, pair.batch])
    target_us = pair.target_us
    details = {
        "programs": "PyTorch transformer as a CUDA graph, bf16 matrix products" if torch else "the demo's kernels",
        "loads": LOADS,
        "capacity alone, requests/s": round(pair.capacity, 1),
        f"alone at {LOADS[-1]:.0%}, µs": spread(pair.all_alone_us),
        f"alone at {LOADS[-1]:.0%}, p99 by window, µs": rounded([p99(window) for window in pair.alone_us], 1),
        "target, µs": round(target_us, 1),
        "with the target": with_target.details(target_us),
        "with fixed caps": {f"{cap} %": run.details(target_us) for cap, run in fixed.items()},
        "best fixed": best if fixed[best].kept(target_us) >= KEPT else f"none keeps it; compared with {best} %",
        "correct": correct,
    }
    relative = with_target.batch_rate / fixed[best].batch_rate
    name = "service target 1.3 × alone, load 10 to 60 %"
    return [
        Figure(
            f"{name}: 1 s windows in which it is kept", with_target.kept(target_us), AT_LEAST, KEPT, details=details
        ),
        Figure(f"{name}: BE / with the best fixed cap", relative, AT_LEAST, 0.9),
    ]


def _start(stack: contextlib.ExitStack, torch: bool) -> _Pair:
    options = ("--poisson", "--report")
    if torch:
        service, batch = jobs.start(
            stack, [lambda: WorkloadProcess("torch_latency", *options), lambda: WorkloadProcess("torch_batch")]
        )
    else:  # one after the other: they measure how long a kernel is
        service = stack.enter_context(WorkloadProcess("latency", "--kernel-us", "500", *options))
        batch = stack.enter_context(WorkloadProcess("batch"))
    with jobs.working([service]):
        service.set_rate(_FLAT_OUT)
        window = service.measure(1.0)
        capacity = len(window["response_us"]) / window["seconds"]
        service.set_rate(LOADS[-1] * capacity)
        jobs.wait(0.2)
        alone = [service.measure(1.0)["response_us"] for _ in range(STEP_S)]
    return _Pair(service, batch, capacity, alone)


def _with(client: Client, pair: _Pair, service: Mapping[str, str], batch: Mapping[str, str], step_s: int) -> _Run:
    """All loads, one after the other, with these settings."""
    settings = {pair.service: {**jobs.LATENCY, **service}, pair.batch: {**jobs.BATCH, **batch}}
    tails = []
    pair.service.set_rate(LOADS[0] * pair.capacity)
    with jobs.managed(client, settings):
        pair.batch.run()
        pair.batch.start()
        for load in LOADS:
            pair.service.set_rate(load * pair.capacity)
            for _ in range(step_s):
                responses = pair.service.measure(1.0)["response_us"]
                tails.append(p99(responses) if responses else float("inf"))
        pair.batch.tell("stop")  # answered when its burst is done: one that hardly runs is released first
    rate = jobs.rate(pair.batch.answer("window"))
    pair.batch.pause()
    return _Run(tails, rate)


def _best_fixed(client: Client, pair: _Pair) -> tuple[dict[int, _Run], int]:
    """What each fixed cap gives, and the first that keeps the target, or the last."""
    runs: dict[int, _Run] = {}
    for cap in FIXED_CAPS:
        batch = {} if cap == 100 else {"cap": f"{cap * CAP_PERIOD_US // 100} {CAP_PERIOD_US}"}
        runs[cap] = _with(client, pair, {}, batch, FIXED_STEP_S)
        if runs[cap].kept(pair.target_us) >= KEPT:
            break
    return runs, cap
