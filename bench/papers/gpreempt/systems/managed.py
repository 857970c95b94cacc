"""Waiting until the daemon manages the programs that a system wants managed."""

from __future__ import annotations

import time
from collections.abc import Mapping

from bench.papers.common.server import Server
from runlist.client import Client

_PATIENCE_S = 10.0


def await_managed(client: Client, servers: Mapping[str, Server]) -> None:
    """Until each of them is. Raises RuntimeError that says which is not, and why."""
    wanted = {int(server.ready[name]["pid"]): name for name, server in servers.items() if name in server.ready}
    until = time.monotonic() + _PATIENCE_S
    while True:
        tasks = {task.pid: task for task in client.ps()}
        lacking = {pid: name for pid, name in wanted.items() if pid not in tasks or not tasks[pid].reached_by}
        if not lacking:
            return
        if time.monotonic() > until:
            pid, name = next(iter(lacking.items()))
            why = tasks[pid].why if pid in tasks else "the daemon does not know it"
            raise RuntimeError(f"{name} is not managed: {why}")
        time.sleep(0.05)
