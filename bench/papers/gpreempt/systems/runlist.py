"""Runlist: `runlist run` in front of each program, with its class, under the policy `priority`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from bench.papers.common.server import Server, Start
from bench.papers.gpreempt.config import Workload
from bench.papers.gpreempt.systems.managed import await_managed
from bench.papers.gpreempt.systems.system import Place, System


class Runlist(System):
    """As a user has it. `by_mps`: the best-effort programs are clients of one MPS server. To the GPU's own scheduler
    they are then one, which takes turns with nobody, and whose kernels fill the GPU together.
    """

    def __init__(self, name: str, title: str, by_mps: bool = False) -> None:
        self.name = name
        self.title = title
        self.by_mps = by_mps

    def refuses(self, workload: Workload, place: Place) -> str:
        if not self.by_mps:
            return ""
        if len(workload.best_effort) < 2:
            return "one best-effort program has nobody to share the SMs with"
        return place.mps.missing

    def group(self, workload: Workload) -> str:
        del workload
        return self.name

    def starts(self, workload: Workload, place: Place) -> list[Start]:
        words = (sys.executable, "-m", "runlist.cli", "run", "--class")
        shared = place.mps.environment if self.by_mps else {}
        return [
            place.process(
                task,
                before=(*words, "latency" if task.urgent else "batch", "--"),
                variables={} if task.urgent else shared,
            )
            for task in workload.tasks
        ]

    @contextmanager
    def around(self, workload: Workload, servers: Mapping[str, Server], place: Place) -> Iterator[None]:
        del workload
        client = place.scheduler()
        client.use_policy("priority", {})
        await_managed(client, servers)
        yield


SYSTEM = Runlist("runlist", "Runlist")
OVER_MPS = Runlist("runlist-mps", "Runlist, best effort by MPS", by_mps=True)
