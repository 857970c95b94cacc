"""NP: all programs as threads of one process, the streams of the latency-critical ones with the highest priority."""

from __future__ import annotations

from bench.papers.common.programs.serving import LAST
from bench.papers.common.server import Start
from bench.papers.gpreempt.config import Workload
from bench.papers.gpreempt.systems.system import Place, System


class OneProcess(System):
    """No preemption but that of stream priorities, between blocks. Python's lock is part of it."""

    name = "one-process"
    title = "NP (one process)"
    published = "NP"

    def group(self, workload: Workload) -> str:
        del workload
        return self.name

    def starts(self, workload: Workload, place: Place) -> list[Start]:
        priorities = {task.name: ("--priority", str(LAST)) for task in workload.urgent}
        return [place.hosted(workload.tasks, priorities)]


SYSTEM = OneProcess()
