"""LC only: the latency-critical programs, while the others are idle."""

from __future__ import annotations

from collections.abc import Sequence

from bench.papers.common.task import Task
from bench.papers.gpreempt.config import Workload
from bench.papers.gpreempt.systems.system import System


class Alone(System):
    """What the others are compared with."""

    name = "alone"
    title = "LC only"
    published = "LC-only"

    def tasks(self, workload: Workload) -> Sequence[Task]:
        return workload.urgent


SYSTEM = Alone()
