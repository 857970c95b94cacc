"""Whether the simulator tells what happens: the same cases with two and four tenants, measured and simulated."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.harness import jobs
from bench.harness.figures import AT_MOST, Figure, p99
from bench.harness.gpu_log import GpuLog
from runlist.arrivals import Periodic
from runlist.client import Client
from runlist.model import TaskClass
from runlist.policies import PolicySpec
from runlist.sim import Trace, simulate
from runlist.sim.workload import TenantSpec
from runlist.statistics import percentile
from runlist.workloads.process import WorkloadProcess

WITHIN = 0.10
SETTLE_S, WINDOW_S, ALONE_S = 0.3, 2.4, 1.0
SIMULATED_S = 10.0

# The workloads' defaults. The pause between two bursts is what a host takes to see the end and to launch again.
BATCH_KERNEL_US, BATCH_KERNELS, BATCH_GAP_US = 3_100.0, 4, 400.0
SERVICE_KERNEL_US, SERVICE_HZ = 80.0, 1e3 / 3


@dataclass(frozen=True)
class Case:
    """A batch job for each weight, and a latency-critical program or not."""

    name: str
    weights: tuple[int, ...]
    service: bool = False


CASES = (
    Case("two batch jobs", (100, 100)),
    Case("two batch jobs, weights 3:1", (300, 100)),
    Case("four batch jobs", (100,) * 4),
    Case("LC and one batch job", (100,), service=True),
    Case("LC and three batch jobs", (100,) * 3, service=True),
)

Found = Mapping[str, float]
"""Quantities by name: rates over those of a job alone, shares of what all batch jobs held, latencies in µs."""


def measure() -> list[Figure]:
    """Each case live for a short time, and simulated under the same policy file; one figure for each quantity."""
    with contextlib.ExitStack() as stack:
        client = jobs.scheduler(stack)
        log = stack.enter_context(GpuLog())
        service = stack.enter_context(WorkloadProcess("latency"))
        batches = jobs.batch_jobs(stack, max(len(case.weights) for case in CASES))
        alone = jobs.rate_alone(batches[0], ALONE_S)
        figures = []
        for case in CASES:
            live, simulated = _live(client, log, case, service, batches, alone), _simulated(case)
            for name, value in live.items():
                off = abs(simulated[name] / value - 1)
                details = {"live": round(value, 4), "simulated": round(simulated[name], 4)}
                figures.append(Figure(f"simulation, {case.name}: {name} off by", off, AT_MOST, WITHIN, details=details))
    return figures


def _live(
    client: Client,
    log: GpuLog,
    case: Case,
    service: WorkloadProcess,
    batches: Sequence[WorkloadProcess],
    alone: float,
) -> Found:
    batches = batches[: len(case.weights)]
    settings: dict[WorkloadProcess, jobs.Settings] = {service: jobs.LATENCY} if case.service else {}
    settings |= {job: {**jobs.BATCH, "weight": str(weight)} for job, weight in zip(batches, case.weights, strict=True)}
    with jobs.working(list(settings)), jobs.managed(client, settings):
        jobs.wait(SETTLE_S)
        windows, span = jobs.measured(list(settings), lambda: log.watch(WINDOW_S))
    rates = [jobs.rate(window) / alone for window in windows if "kernels" in window]
    latencies: list[float] = next((window["latency_us"] for window in windows if "latency_us" in window), [])
    return _quantities(rates, span.shares([job.pid for job in batches]), latencies)


def _simulated(case: Case) -> Found:
    tenants = [
        TenantSpec(
            f"batch {index}", TaskClass.BATCH, weight,
            kernel_us=(BATCH_KERNEL_US,) * BATCH_KERNELS, gap_us=BATCH_GAP_US,
        )
        for index, weight in enumerate(case.weights)
    ]  # fmt: skip
    if case.service:
        load = Periodic(SERVICE_HZ)
        tenants.append(TenantSpec("service", TaskClass.LATENCY, load=load, kernel_us=(SERVICE_KERNEL_US,)))
    outcome = simulate(Trace(case.name, SIMULATED_S, tenants), PolicySpec())
    batches = [tenant for tenant in outcome.result.tenants if tenant.task_class == TaskClass.BATCH]
    held = [tenant.share for tenant in batches]
    latencies = [each for series in outcome.series if series.name == "service" for each in series.latencies_us]
    return _quantities([tenant.relative for tenant in batches], [each / sum(held) for each in held], latencies)


def _quantities(rates: Sequence[float], shares: Sequence[float], latencies_us: Sequence[float]) -> Found:
    found = {"BE sum / one alone": sum(rates)}
    if len(shares) > 1:
        found["largest share of BE time"] = max(shares)
    if latencies_us:
        found |= {"LC p50": percentile(sorted(latencies_us), 50), "LC p99": p99(latencies_us)}
    return found
