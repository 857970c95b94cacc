"""What a tenant's own driver calls cost while the daemon is at its busiest: its controls hold a lock of the driver."""

from __future__ import annotations

import contextlib

from bench.harness import jobs
from bench.harness.figures import AT_MOST, Figure, p99, spread
from runlist.workloads.process import WorkloadProcess

BATCHES = 8
WINDOW_S = 2.0
SETTLE_S = 0.2
CAP = "30"


def measure(rounds: int = 3) -> list[Figure]:
    """A tenant that allocates and frees 1 MiB over and over, beside eight BE, one of them capped, and an LC: rounds of
    all managed (so that the BE take turns and the capped one is throttled), and none, with the same load on the GPU.
    """
    samples: dict[str, list[float]] = {"managed": [], "no daemon's doing": []}
    with contextlib.ExitStack() as stack:
        client = jobs.scheduler(stack)
        tenant = stack.enter_context(WorkloadProcess("alloc"))
        critical = stack.enter_context(WorkloadProcess("latency"))
        batches = jobs.batch_jobs(stack, BATCHES)
        alone = _calls(tenant)
        settings = {
            tenant: jobs.LATENCY,
            critical: jobs.LATENCY,
            **dict.fromkeys(batches, jobs.BATCH),
            batches[-1]: {**jobs.BATCH, "cap": CAP},
        }
        for _ in range(rounds):
            with jobs.working([critical, *batches]):
                samples["no daemon's doing"] += _calls(tenant)
                with jobs.managed(client, settings):
                    samples["managed"] += _calls(tenant)
    details = {"alone on the GPU, µs": spread(alone), **{f"{name}, µs": spread(each) for name, each in samples.items()}}
    ratio = p99(samples["managed"]) / p99(samples["no daemon's doing"])
    return [
        Figure("cuMemAlloc+cuMemFree p99, daemon at its busiest / without it", ratio, AT_MOST, 1.2, details=details)
    ]


def _calls(tenant: WorkloadProcess) -> list[float]:
    """Microseconds of each pair of calls in one window."""
    with jobs.working([tenant]):
        jobs.wait(SETTLE_S)
        latencies: list[float] = tenant.measure(WINDOW_S)["latency_us"]
    return latencies
