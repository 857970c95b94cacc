"""WB: best-effort programs stop between two blocks of a kernel when a latency-critical one wants the GPU, and go on
from there (`runlist.blocks`). For programs that are written so; the others refuse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from bench.papers.common.server import Server, Start
from bench.papers.common.task import Task
from bench.papers.gpreempt.catalogue import PROGRAMS
from bench.papers.gpreempt.config import Workload
from bench.papers.gpreempt.systems.system import Place, System, check_offers


class Blocks(System):
    """Preemption by the programs themselves."""

    name = "blocks"
    title = "WB (blocks)"
    published = "WB"
    way: str = "blocks"

    def refuses(self, workload: Workload, place: Place) -> str:
        lacking = {one.program for one in workload.best_effort if self.way not in offered(one, place)}
        return f"{', '.join(sorted(lacking))}: no {self.what}" if lacking else ""

    @property
    def what(self) -> str:
        """What a program has to have, in words."""
        return "preemption between blocks"

    def group(self, workload: Workload) -> str:
        del workload
        return self.name

    def starts(self, workload: Workload, place: Place) -> list[Start]:
        option = (f"--{self.way}", str(place.folder / self.way))
        return [place.process(task, *option, *(("--urgent",) if task.urgent else ())) for task in workload.tasks]

    @contextmanager
    def around(self, workload: Workload, servers: Mapping[str, Server], place: Place) -> Iterator[None]:
        del place
        check_offers(workload.best_effort, servers, self.way)
        yield


def offered(task: Task, place: Place) -> frozenset[str]:
    """The ways of a task's program."""
    return PROGRAMS[task.program].offers(place.emulated)


SYSTEM = Blocks()
