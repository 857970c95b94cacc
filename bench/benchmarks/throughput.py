"""What equal batch jobs get done together, against one alone: under Runlist, default time slicing, and MPS."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from statistics import fmean

from bench.harness import jobs, mps
from bench.harness.figures import AT_LEAST, Figure, holds, rounded
from runlist.workloads.process import WorkloadProcess

TARGETS = {2: 0.95, 4: 0.93, 8: 0.90}
WINDOW_S = 1.5
SETTLE_S = 0.2
ROUNDS = 2


def measure(rounds: int = ROUNDS) -> list[Figure]:
    """Rounds of: one alone; then 2, 4 and 8 under Runlist and, in the first round, by default and under MPS; all from
    the same processes, but for MPS's own.
    """
    most = max(TARGETS)
    alone: list[float] = []
    sums: dict[tuple[str, int], list[list[float]]] = {}
    with contextlib.ExitStack() as stack:
        client = jobs.scheduler(stack)
        batches = jobs.batch_jobs(stack, most)
        server = stack.enter_context(mps.server())
        clients = [] if server.missing else jobs.like(stack, batches[0], most, environment=server.client())
        for index in range(rounds):
            alone += _rates(batches[:1])
            for count in TARGETS:
                some = batches[:count]
                with jobs.managed(client, dict.fromkeys(some, jobs.BATCH)):
                    sums.setdefault(("Runlist", count), []).append(_rates(some))
                if index:
                    continue  # once is enough for what is only compared with
                sums.setdefault(("default time slicing", count), []).append(_rates(some))
                if clients:
                    sums.setdefault(("MPS", count), []).append(_rates(clients[:count]))
        correct = jobs.all_correct([*batches, *clients])
    one = fmean(alone)
    figures = []
    for count, target in TARGETS.items():
        relative = {name: fmean(map(sum, runs)) / one for (name, jobs_), runs in sums.items() if jobs_ == count}
        details = {
            "sum / alone": {name: round(value, 4) for name, value in relative.items()},
            "kernels/s by round": {
                name: [rounded(run, 2) for run in runs] for (name, n), runs in sums.items() if n == count
            },
            "one alone, kernels/s": rounded(alone, 2),
            "MPS": server.missing or "a server of its own",
        }
        name = f"throughput: sum of {count} equal batch jobs / one alone"
        figures.append(Figure(name, relative["Runlist"], AT_LEAST, target, details=details))
    return [*figures, holds("throughput: all results are bit-exact", correct)]


def _rates(processes: Sequence[WorkloadProcess]) -> list[float]:
    with jobs.working(processes):
        jobs.wait(SETTLE_S)
        return [jobs.rate(window) for window in jobs.windows(processes, WINDOW_S)]
