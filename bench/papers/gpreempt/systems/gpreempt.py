"""GPreempt's rule, by Runlist's policy of that name: slices of 1 s for who is latency-critical, 1 µs for one other.

Its own form has contexts of one process and a patched driver. Here the programs are processes of their own; only where
there are several best-effort ones are these threads of one process, as there: two contexts at slices of 1 µs stop each
other. With the hint, the latency-critical program takes the GPU a moment before its request is due.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from bench.papers.common.server import Server, Start
from bench.papers.common.task import Task
from bench.papers.gpreempt.config import Workload
from bench.papers.gpreempt.systems.managed import await_managed
from bench.papers.gpreempt.systems.system import HINT_US, PLAIN, Place, System, check_offers
from runlist.errors import RunlistError

SWEPT_US = (50, 100, 150, 300)
"""Leads that figure 7a tries besides the usual one."""


class GPreempt(System):
    """The rule, without the hint or with one so many microseconds ahead."""

    def __init__(self, name: str, title: str, lead_us: float | None = None, published: str = "") -> None:
        self.name = name
        self.title = title
        self.published = published
        self.lead_us = lead_us

    def refuses(self, workload: Workload, place: Place) -> str:
        del place
        if self in SWEEP and workload.name != "A":
            return "leads of the hint are tried with workload A"
        return ""

    def group(self, workload: Workload) -> str:
        return PLAIN if len(workload.best_effort) == 1 else "gpreempt"

    def starts(self, workload: Workload, place: Place) -> list[Start]:
        if self.group(workload) == PLAIN:
            return super().starts(workload, place)
        hint = ("--hint-us", f"{HINT_US:g}")
        return [*(place.process(task, *hint) for task in workload.urgent), place.hosted(workload.best_effort, {})]

    def ways(self, task: Task) -> tuple[str, ...]:
        return (f"hint:{self.lead_us:g}",) if self.lead_us is not None and task.urgent else ()

    @contextmanager
    def around(self, workload: Workload, servers: Mapping[str, Server], place: Place) -> Iterator[None]:
        if self.lead_us is not None:
            check_offers(workload.urgent, servers, "hint")
        client = place.scheduler()
        pids: dict[int, str] = {}
        for task in workload.tasks:
            pids[int(servers[task.name].ready[task.name]["pid"])] = "latency" if task.urgent else "batch"
        client.use_policy("gpreempt", {})
        try:
            for pid, task_class in pids.items():
                client.attach(pid, task_class)
            await_managed(client, servers)
            yield
        finally:
            for pid in pids:
                with contextlib.suppress(RunlistError):  # it died, and that is told where it was asked
                    client.detach(pid)
            client.use_policy("priority", {})


SYSTEM = GPreempt("gpreempt", "GPreempt's rule", published="GP without hint")
HINTED = GPreempt("gpreempt-hint", "GPreempt's rule, hint", HINT_US, published="GP")
SWEEP = tuple(GPreempt(f"gpreempt-hint-{lead}", f"hint {lead} µs ahead", lead) for lead in SWEPT_US)
