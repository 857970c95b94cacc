"""Clients of one MPS server: found one by one, and suspended all together."""

from __future__ import annotations

import contextlib
import time

from bench.harness import jobs, mps
from bench.harness.benchmark import Needs
from bench.harness.figures import Figure, holds
from bench.harness.jobs import rate
from runlist.workloads.process import WorkloadProcess

NEEDS = Needs(device="nvidia", programs=(mps.CONTROL,))
WINDOW_S = 1.0


def measure() -> list[Figure]:
    """Two clients beside a process that is none; one client is suspended, then both go on."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(mps.server())
        if server.missing:
            raise RuntimeError(server.missing)
        clients = [stack.enter_context(WorkloadProcess("batch", environment=server.client())) for _ in range(2)]
        alone = stack.enter_context(WorkloadProcess("batch"))
        everybody = [*clients, alone]
        client = jobs.scheduler(stack)
        for process in everybody:
            process.run()
            client.attach(process.pid, "batch")
        time.sleep(1)
        views = {task.pid: task for task in client.ps()}
        pids = {process.pid for process in clients}
        named = all(set(views[process.pid].together) == pids - {process.pid} for process in clients)
        lonely = not views[alone.pid].together
        slices = {views[process.pid].timeslice_us for process in clients}
        before = [rate(process.measure(WINDOW_S)) for process in everybody]
        client.suspend(clients[0].pid)
        time.sleep(0.2)
        on = {task.pid for task in client.ps() if task.enabled}
        third = rate(alone.measure(WINDOW_S))
        client.resume(clients[0].pid)
        again = [rate(process.measure(WINDOW_S)) for process in everybody]
        correct = all(process.quit()["correct"] for process in everybody)
    return [
        holds(
            "`ps` says which clients run together", named and lonely, {"views": [str(one) for one in views.values()]}
        ),
        holds("they have one slice", len(slices) == 1, {"slices": [str(one) for one in slices]}),
        holds(
            "suspending one shows both as off, and the third as on",
            on == {alone.pid},
        ),
        holds("all go on after resuming it", all(rate > 0 for rate in again), {"before": before, "after": again}),
        Figure("the third, while they are suspended, beside all three", third / before[2]),
        holds("all results are bit-exact", correct),
    ]
