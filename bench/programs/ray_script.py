"""A script of Ray's that knows nothing of Runlist: actors with parts of a GPU, which work.

`python -m bench.programs.ray_script` answers lines on its standard input: `start PART…` starts actors with these parts
of one GPU, which work, `stop` ends them and says whether their numbers are right, `take PART` what a new one gets when
it asks for more memory than its part, and for less.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import ray

from bench.harness.child import serve
from runlist.workloads.accumulator import Accumulator
from runlist.workloads.gpu import Gpu

KERNEL_US = 3200.0
AHEAD = 16
BLOCKS_PER_SM = 8
MARGIN = 0.05
START_S = 120.0


class Work(threading.Thread):
    """Kernels, one after the other, some of them always ahead."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.ending = threading.Event(), threading.Event()
        self.correct = False

    def run(self) -> None:
        """Until it is told to end."""
        gpu = Gpu(0, blocking=True)
        work = Accumulator(gpu, BLOCKS_PER_SM * gpu.sm_count)
        rounds = work.rounds_for(KERNEL_US)
        self.begun.set()
        while not self.ending.is_set():
            for _ in range(AHEAD):
                work.launch(rounds)
            work.synchronize()
        self.correct = work.correct()


@ray.remote(num_cpus=0)
class Actor:
    """One that has a part of a GPU."""

    def start(self) -> int:
        """Begin to work; the process."""
        self.work = Work()
        self.work.start()
        if not self.work.begun.wait(START_S):
            raise RuntimeError("it does not begin")
        return os.getpid()

    def stop(self) -> bool:
        """Whether the numbers are right."""
        self.work.ending.set()
        self.work.join()
        return self.work.correct

    def take(self, part: float) -> list[bool]:
        """Whether more than a part of the GPU's memory could be had, and less."""
        from cuda.bindings import driver

        self.gpu = Gpu(0)
        _, whole = driver.cuDeviceTotalMem(self.gpu.device)
        limit = int(os.environ.get("BENCH_GPU_BYTES", whole)) * part
        got = []
        for share in (1 + MARGIN, 1 - MARGIN):
            error, address = driver.cuMemAlloc(int(limit * share))
            got.append(int(error) == 0)
            if got[-1]:
                driver.cuMemFree(address)
        return got


def _an_actor(part: str) -> Any:
    actor: Any = Actor
    return actor.options(num_gpus=float(part)).remote()


class Script:
    """The lines."""

    def __init__(self) -> None:
        self._actors: list[Any] = []

    def __call__(self, line: str) -> dict[str, Any]:
        """Answer one."""
        word, *parts = line.split()
        if word == "start":
            self._actors = [_an_actor(part) for part in parts]
            return {"pids": ray.get([actor.start.remote() for actor in self._actors], timeout=START_S)}
        if word == "take":
            actor = _an_actor(parts[0])
            got = ray.get(actor.take.remote(float(parts[0])), timeout=START_S)
            ray.kill(actor)
            return {"more": got[0], "less": got[1]}
        correct = ray.get([actor.stop.remote() for actor in self._actors], timeout=START_S)
        for actor in self._actors:
            ray.kill(actor)
        self._actors = []
        return {"correct": all(correct)}


if __name__ == "__main__":
    ray.init(num_cpus=4, num_gpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=80 << 20)
    serve(Script())
