"""Several batch jobs beside one latency-critical program, against one batch job."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from bench.harness import jobs, mps
from bench.harness.figures import AT_LEAST, AT_MOST, Figure, p99, rounded, spread
from runlist.client import Client
from runlist.workloads.process import WorkloadProcess

ALONE_S, ONE_S = 1.0, 2.0
COMPARED_S = 1.5


@dataclass(frozen=True)
class Case:
    """So many batch jobs, and windows of so many seconds; each figure's target, or None."""

    name: str
    batches: int
    window_s: float
    rounds: int
    p99: float
    total: float | None = None
    smallest: float | None = None
    compared: bool = False


@dataclass
class _Samples:
    """What the windows of one configuration gave: latencies in µs, and kernels/s of each batch job by round."""

    latency: list[float] = field(default_factory=list)
    rates: list[list[float]] = field(default_factory=list)


def measure(case: Case) -> list[Figure]:
    """Rounds of: one BE alone; LC with one BE; LC with all; all but the first under Runlist."""
    alone: list[float] = []
    one, many = _Samples(), _Samples()
    compared: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(Client.open(start=True))
        critical = stack.enter_context(WorkloadProcess("latency"))
        batches = jobs.batch_jobs(stack, case.batches)
        for _ in range(case.rounds):
            alone.append(jobs.rate_alone(batches[0], ALONE_S))
            for samples, some, seconds in ((one, batches[:1], ONE_S), (many, batches, case.window_s)):
                settings = {critical: jobs.LATENCY, **dict.fromkeys(some, jobs.BATCH)}
                with jobs.managed(client, settings):
                    _window(samples, [critical, *some], seconds)
        if case.compared:
            compared = {
                "default time slicing": _compared([critical, *batches]),
                "MPS": _under_mps(critical, batches[0], case.batches),
            }
        correct = jobs.all_correct([critical, *batches])
    rates = [fmean(each) for each in zip(*many.rates, strict=True)]
    details = {
        "LC with one BE, µs": spread(one.latency),
        f"LC with {case.name} BE, µs": spread(many.latency),
        "BE alone, kernels/s": rounded(alone, 2),
        f"{case.name} BE, kernels/s by round": [rounded(each, 2) for each in many.rates],
        "compared": compared,
        "correct": correct,
    }
    name = f"{case.name} BE + LC"
    ratio = p99(many.latency) / p99(one.latency)
    return [
        Figure(f"{name}: LC p99 / with one BE", ratio, AT_MOST, case.p99, details=details),
        Figure(f"{name}: BE sum / one alone", sum(rates) / fmean(alone), AT_LEAST, case.total),
        Figure(f"{name}: smallest BE / equal share", min(rates) * case.batches / sum(rates), AT_LEAST, case.smallest),
    ]


def _window(samples: _Samples, processes: Sequence[WorkloadProcess], seconds: float) -> None:
    with jobs.working(processes):
        windows = jobs.windows(processes, seconds)
    samples.latency += windows[0]["latency_us"]
    samples.rates.append([jobs.rate(window) for window in windows[1:]])


def _compared(processes: Sequence[WorkloadProcess]) -> dict[str, Any]:
    samples = _Samples()
    _window(samples, processes, COMPARED_S)
    return {
        "LC, µs": spread(samples.latency) if samples.latency else "no request was answered",
        "BE, kernels/s": rounded(samples.rates[0], 2),
    }


def _under_mps(critical: WorkloadProcess, batch: WorkloadProcess, count: int) -> dict[str, Any]:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(mps.server())
        if server.missing:
            return {"missing": server.missing}
        clients = [
            client
            for like, number in ((critical, 1), (batch, count))
            for client in jobs.like(stack, like, number, environment=server.client())
        ]
        return _compared(clients)
