"""How long `runlist attach` takes on a running process: from the command to in force, and discovery within it."""

from __future__ import annotations

import json
import subprocess
import sys
import time

from bench.harness.figures import AT_MOST, Figure, spread
from runlist.client import Client
from runlist.workloads.process import WorkloadProcess


def measure(repeats: int = 20) -> list[Figure]:
    """Attach and detach a working batch program, with the daemon running."""
    command_ms, discovery_ms = [], []
    with Client.open(start=True) as client, WorkloadProcess("batch") as batch:
        batch.run()
        for _ in range(repeats):
            began = time.perf_counter()
            words = [sys.executable, "-m", "runlist.cli", "attach", str(batch.pid), "--class", "batch", "--json"]
            output = subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout
            command_ms.append((time.perf_counter() - began) * 1e3)
            discovery_ms.append(json.loads(output)[0]["discovery_ms"])
            client.detach(batch.pid)
    return [
        Figure("attach: command to in force, slowest", max(command_ms), AT_MOST, 400, "ms", spread(command_ms)),
        Figure("attach: discovery, slowest", max(discovery_ms), AT_MOST, 100, "ms", spread(discovery_ms)),
    ]
