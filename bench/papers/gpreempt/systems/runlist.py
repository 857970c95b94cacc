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
    """As a user has it."""

    name = "runlist"
    title = "Runlist"

    def group(self, workload: Workload) -> str:
        del workload
        return self.name

    def starts(self, workload: Workload, place: Place) -> list[Start]:
        words = (sys.executable, "-m", "runlist.cli", "run", "--class")
        return [
            place.process(task, before=(*words, "latency" if task.urgent else "batch", "--")) for task in workload.tasks
        ]

    @contextmanager
    def around(self, workload: Workload, servers: Mapping[str, Server], place: Place) -> Iterator[None]:
        del workload
        client = place.scheduler()
        client.use_policy("priority", {})
        await_managed(client, servers)
        yield


SYSTEM = Runlist()
