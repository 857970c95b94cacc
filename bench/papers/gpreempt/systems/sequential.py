"""SEQ: one request on the GPU at a time, by a lock that latency-critical programs get first."""

from __future__ import annotations

from bench.papers.common.task import Task
from bench.papers.gpreempt.systems.system import System


class Sequential(System):
    """Nothing is preempted: a request waits for the one that is there."""

    name = "sequential"
    title = "SEQ (lock)"
    published = "SEQ"

    def ways(self, task: Task) -> tuple[str, ...]:
        del task
        return ("turn",)


SYSTEM = Sequential()
