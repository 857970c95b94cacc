"""What the daemon costs while fifty managed tasks do nothing."""

from __future__ import annotations

import contextlib
import time

from bench.harness.cpu import Used, resident_mb
from bench.harness.figures import AT_MOST, Figure
from runlist.client import Client
from runlist.workloads.process import WorkloadProcess


def measure(tasks: int = 50, seconds: float = 60.0) -> list[Figure]:
    """CPU time and resident memory of daemon and keeper together."""
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(Client.open(start=True))
        processes = [stack.enter_context(WorkloadProcess("batch", "--rounds", "1000")) for _ in range(tasks)]
        for process in processes:
            client.attach(process.pid, "normal")
        status = client.status()
        pids = [status.pid, status.keeper_pid]
        time.sleep(3)  # the last attach has settled
        used = Used(pids)
        time.sleep(seconds)
        share = used.share()
        memory = {name: resident_mb(pid) for name, pid in zip(("daemon", "keeper"), pids, strict=True)}
        for process in processes:
            client.detach(process.pid)
    return [
        Figure(f"daemon idle with {tasks} tasks: CPU", share * 100, AT_MOST, 0.2, "% of a core", {"seconds": seconds}),
        Figure(f"daemon idle with {tasks} tasks: memory", sum(memory.values()), AT_MOST, 80, "MB", memory),
    ]
