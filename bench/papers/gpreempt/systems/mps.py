"""NVIDIA's MPS: the kernels of all processes run side by side, the latency-critical ones with its priority."""

from __future__ import annotations

from bench.papers.common.server import Start
from bench.papers.gpreempt.config import Workload
from bench.papers.gpreempt.systems.system import Place, System

_PRIORITY = "CUDA_MPS_CLIENT_PRIORITY"


class MpsClients(System):
    """Nothing is taken off the GPU once it runs."""

    name = "mps"
    title = "MPS"

    def refuses(self, workload: Workload, place: Place) -> str:
        del workload
        return place.mps.missing

    def group(self, workload: Workload) -> str:
        del workload
        return self.name

    def starts(self, workload: Workload, place: Place) -> list[Start]:
        return [
            place.process(task, variables={**place.mps.environment, _PRIORITY: "0" if task.urgent else "1"})
            for task in workload.tasks
        ]


SYSTEM = MpsClients()
