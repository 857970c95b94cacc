"""What the daemon costs while many tenants share many GPUs by weight; only the emulated device has so many."""

from __future__ import annotations

import contextlib
import os
import time
from unittest import mock

from bench.harness import jobs
from bench.harness.benchmark import Needs
from bench.harness.cpu import Used
from bench.harness.figures import AT_MOST, Figure, rounded
from runlist.client import Client
from runlist.emulated import EmulatedGpu
from runlist.workloads.process import WorkloadProcess

NEEDS = Needs("emulated")
GPUS, TENANTS_A_GPU = 8, 4
SETTLE_S = 3.0


def measure(seconds: float = 10.0) -> list[Figure]:
    """Busy tenants with weights 100 to 400 on each GPU, of a device of our own."""
    with contextlib.ExitStack() as stack:
        gpu = stack.enter_context(EmulatedGpu(gpus=GPUS))
        stack.enter_context(mock.patch.dict(os.environ, gpu.environment()))
        client = stack.enter_context(Client.open(start=True))
        stack.callback(client.stop)
        first = stack.enter_context(WorkloadProcess("batch"))
        tenants = [first]
        for index in range(GPUS):
            missing = TENANTS_A_GPU - (index == 0)
            tenants += jobs.like(stack, first, missing, "--gpu", str(index))
        for index, tenant in enumerate(tenants):
            client.attach(tenant.pid, "batch", settings={"weight": str(100 * (1 + index % TENANTS_A_GPU))})
        with jobs.working(tenants):
            time.sleep(SETTLE_S)
            status = client.status()
            pids = {"daemon": [status.pid], "keeper": [status.keeper_pid]}
            since = {name: Used(each) for name, each in pids.items()}
            windows = jobs.windows(tenants, seconds)
            used = {name: each.share() * 100 for name, each in since.items()}
            switches = sum(task.turns_per_s for task in client.ps())
    details = {
        "% of a core": {name: round(each, 3) for name, each in used.items()},
        "kernels/s": rounded([jobs.rate(window) for window in windows], 1),
        "switches/s": round(switches),
    }
    name = f"daemon and keeper with {len(tenants)} busy tenants on {GPUS} GPUs: CPU"
    return [Figure(name, sum(used.values()), AT_MOST, 3, "% of a core", details)]
