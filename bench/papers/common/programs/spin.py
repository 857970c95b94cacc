"""A program that spins for a chosen time: kernels of this project's own, which also run on an emulated GPU.

Its results tell every round that was lost or done twice.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Mapping
from typing import Any

from bench.papers.common.programs import serving
from runlist.workloads import options as workload_options
from runlist.workloads.accumulator import Accumulator
from runlist.workloads.gpu import Gpu, PageLocked, synchronize

_BYTES = 1 << 14


class Spin(serving.Hinted):
    """A request copies 16 KiB in, runs some kernels, and copies the same out."""

    ways = frozenset({"hint"})

    def __init__(self, options: argparse.Namespace) -> None:
        self._gpu = Gpu(options.gpu)
        blocks = options.grid or self._gpu.sm_count
        self._work = Accumulator(self._gpu, blocks=blocks, priority=options.priority)
        self._rounds = options.rounds or self._work.rounds_for(options.kernel_us)
        self._kernels = options.kernels
        self._waits = options.wait
        self._blocks = blocks
        self._seed = options.seed
        self._host = PageLocked(_BYTES)
        self._aside = self._gpu.stream()
        for number in range(3):
            self.prepare(number)
            self.copy_input()
            self.infer()
            self.copy_output()
            self.synchronize()

    @property
    def stream(self) -> int:
        return int(self._work.stream)

    def facts(self) -> Mapping[str, Any]:
        return {
            "repeats": True,
            "gpu": self._gpu.name,
            "rounds": self._rounds,
            "kernels": self._kernels,
            "blocks": self._blocks,
        }

    def prepare(self, request: int) -> None:
        self._host.fill(hashlib.sha256(f"{self._seed} {request}".encode()).digest())

    def copy_input(self) -> None:
        self._host.copy_in(self._work.stream)

    def copy_input_aside(self) -> None:
        self._host.copy_in(self._aside)
        synchronize(self._aside)

    def infer(self) -> None:
        for _ in range(self._kernels):
            self._work.launch(self._rounds)
            if self._waits:
                self.synchronize()

    def copy_output(self) -> None:
        self._host.copy_out(self._work.stream)

    def synchronize(self) -> None:
        self._work.synchronize()

    def check(self) -> str | None:
        return hashlib.sha256(self._host.result()).hexdigest()[:16]

    def correct(self) -> bool:
        return self._work.correct()


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--kernel-us", type=workload_options.positive, default=500.0, metavar="US", help="length of a kernel alone")
    add("--rounds", type=workload_options.positive_int, metavar="N", help="rounds of a kernel, instead of --kernel-us")
    add("--kernels", type=workload_options.positive_int, default=1, metavar="N", help="kernels a request (1)")
    add("--wait", action="store_true", help="for each kernel, and not for all of a request")
    add("--grid", type=workload_options.positive_int, metavar="N", help="blocks of a kernel (one for each SM)")


if __name__ == "__main__":
    serving.main(Spin, __doc__, _add_options)
