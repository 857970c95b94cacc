"""Three batch jobs beside one latency-critical program, against one batch job."""

from __future__ import annotations

import contextlib
import time
from statistics import fmean

from bench.figures import AT_LEAST, AT_MOST, Figure, spread
from runlist.client import Client
from runlist.demo.statistics import percentile
from runlist.workloads.process import WorkloadProcess

BATCHES = 3
WINDOW_S = 2.0


def measure(rounds: int = 4) -> list[Figure]:
    """Rounds of: one BE alone; LC with one BE; LC with three BE; all but the first under Runlist."""
    alone: list[float] = []
    latency: dict[int, list[float]] = {1: [], BATCHES: []}
    rates: list[list[float]] = [[] for _ in range(BATCHES)]
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(Client.open(start=True))
        critical = stack.enter_context(WorkloadProcess("latency"))
        first = stack.enter_context(WorkloadProcess("batch"))
        same = str(first.ready["rounds"])
        batches = [first] + [
            stack.enter_context(WorkloadProcess("batch", "--rounds", same)) for _ in range(BATCHES - 1)
        ]
        for _ in range(rounds):
            first.run()
            alone.append(_rate(first.measure(WINDOW_S)))
            first.pause()
            for count in (1, BATCHES):
                working = [critical, *batches[:count]]
                for process in working:
                    client.attach(process.pid, "latency" if process is critical else "batch")
                for process in working:
                    process.run()
                for process in working:
                    process.start()
                time.sleep(WINDOW_S * count)
                windows = [process.stop() for process in working]
                latency[count] += windows[0]["latency_us"]
                if count == BATCHES:
                    for index, window in enumerate(windows[1:]):
                        rates[index].append(_rate(window))
                for process in working:
                    client.detach(process.pid)
                for process in working:
                    process.pause()
        correct = all(process.quit()["correct"] for process in (critical, *batches))
    p99 = {count: percentile(sorted(samples), 99) for count, samples in latency.items()}
    mean_rates = [fmean(rate) for rate in rates]
    total = sum(mean_rates)
    details = {
        "LC with one BE, µs": spread(latency[1]),
        "LC with three BE, µs": spread(latency[BATCHES]),
        "BE alone, kernels/s": alone,
        "three BE, kernels/s by round": rates,
        "correct": correct,
    }
    return [
        Figure("three BE + LC: LC p99 / with one BE", p99[BATCHES] / p99[1], AT_MOST, 1.4, details=details),
        Figure("three BE + LC: BE sum / one alone", total / fmean(alone), AT_LEAST, 0.85),
        Figure("three BE + LC: smallest BE / equal share", min(mean_rates) * BATCHES / total, AT_LEAST, 0.8),
    ]


def _rate(window: dict[str, float]) -> float:
    return window["kernels"] / window["seconds"]
