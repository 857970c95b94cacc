"""A service target: what it costs the batch job to keep the tail of a service under its limit while the load changes,
against the best fixed cap on the batch job.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.harness import jobs
from bench.harness.figures import AT_LEAST, Figure, p99, rounded, spread
from bench.harness.service_load import CAP_PERIOD_US, FIXED_CAPS, KEPT, LOADS, STEP_S, TARGET, Run
from runlist.client import Client
from runlist.planes.nvidia.rm.transport import choose_driver
from runlist.workloads.process import WorkloadProcess

FIXED_STEP_S = 1
"""Seconds, which are windows, at each load with each fixed cap."""

ROUNDS = 3
_FLAT_OUT = 1e5


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


def add_options(parser: argparse.ArgumentParser) -> None:
    """How much is measured."""
    parser.add_argument(
        "--service-rounds",
        type=int,
        default=ROUNDS,
        metavar="N",
        help=f"runs through all loads with the target ({ROUNDS})",
    )


def measure(options: argparse.Namespace) -> list[Figure]:
    """All windows of all rounds count. PyTorch programs where there is PyTorch on a real GPU, else the demo's own
    kernels.
    """
    torch = choose_driver().name == "nvidia" and importlib.util.find_spec("torch") is not None
    with contextlib.ExitStack() as stack:
        client = jobs.scheduler(stack)
        pair = _start(stack, torch)
        with jobs.working([pair.service]):
            alone = _with(client, pair, None, STEP_S)
            target = {"p99": f"{pair.target_us:.0f}us"}
            rounds = [_with(client, pair, {}, STEP_S, target) for _ in range(max(1, options.service_rounds))]
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
        "alone": alone.details(target_us),
        "with the target": [run.details(target_us) for run in rounds],
        "with fixed caps": {f"{cap} %": run.details(target_us) for cap, run in fixed.items()},
        "best fixed": best if fixed[best].kept(target_us) >= KEPT else f"none keeps it; compared with {best} %",
        "correct": correct,
    }
    kept = sum(run.kept(target_us) for run in rounds) / len(rounds)
    relative = sum(run.batch_rate for run in rounds) / len(rounds) / fixed[best].batch_rate
    name = "service target 1.3 × alone, load 10 to 60 %"
    return [
        Figure(f"{name}: 1 s windows in which it is kept", kept, AT_LEAST, KEPT, details=details),
        Figure(f"{name}: BE / with the best fixed cap", relative, AT_LEAST, 0.9),
        Figure(f"{name}: 1 s windows in which the service alone keeps it", alone.kept(target_us)),
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


def _with(
    client: Client,
    pair: _Pair,
    batch: Mapping[str, str] | None,
    step_s: int,
    service: Mapping[str, str] | None = None,
) -> Run:
    """All loads, one after the other, with these settings; without the batch job where there are none for it."""
    settings = {pair.service: {**jobs.LATENCY, **(service or {})}}
    if batch is not None:
        settings[pair.batch] = {**jobs.BATCH, **batch}
    tails = []
    pair.service.set_rate(LOADS[0] * pair.capacity)
    with jobs.managed(client, settings):
        if batch is not None:
            pair.batch.run()
            pair.batch.start()
        for load in LOADS:
            pair.service.set_rate(load * pair.capacity)
            for _ in range(step_s):
                responses = pair.service.measure(1.0)["response_us"]
                tails.append(p99(responses) if responses else float("inf"))
        if batch is not None:
            pair.batch.tell("stop")  # answered when its burst is done: one that hardly runs is released first
    if batch is None:
        return Run(tails, 0.0)
    rate = jobs.rate(pair.batch.answer("window"))
    pair.batch.pause()
    return Run(tails, rate)


def _best_fixed(client: Client, pair: _Pair) -> tuple[dict[int, Run], int]:
    """What each fixed cap gives, and the first that keeps the target, or the last."""
    runs: dict[int, Run] = {}
    for cap in FIXED_CAPS:
        batch = {} if cap == 100 else {"cap": f"{cap * CAP_PERIOD_US // 100} {CAP_PERIOD_US}"}
        runs[cap] = _with(client, pair, batch, FIXED_STEP_S)
        if runs[cap].kept(pair.target_us) >= KEPT:
            break
    return runs, cap
