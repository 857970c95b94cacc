"""Operations of one kind, so many a request: products of matrices, which the SMs bound; sums of large vectors, which
the memory bounds; sums of small ones, which the launch bounds.
"""

from __future__ import annotations

import argparse

from bench.papers.common.programs import serving
from bench.papers.orion.programs.tensors import TensorProgram, add_device
from runlist.workloads import options as workload_options

GEMM, MEMORY, SMALL = "gemm", "memory", "small"
_SHOWN = 1 << 16
"""So many numbers of a large vector's ends are in the digest."""


class Work(TensorProgram):
    """`size` is the side of a matrix, or the numbers of a vector."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._kind, self._times, self._waits = options.kind, options.operations, options.wait
        side = options.size
        width = side if self._kind == GEMM else min(side, 1024)
        super().__init__(options, width, "float32")
        if self._kind == GEMM:
            self._first, self._second = (self.random(side, side, scale=side**-0.5) for _ in range(2))
            self._head = self._first[0]
        else:
            self._first, self._second = self.random(side), self.random(side)
            self._head = self._first[:width]
        self._result = self.torch.empty_like(self._first)
        self.warm(3)

    def infer(self) -> None:
        self._head.copy_(self.given)
        operation = self.torch.mm if self._kind == GEMM else self.torch.add
        for _ in range(self._times):
            operation(self._first, self._second, out=self._result)
            if self._waits:
                self.synchronize()

    def check(self) -> str | None:
        result = self._result.view(-1)
        return self.digest(result if self._kind == GEMM else result[:_SHOWN], result[-_SHOWN:])


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("kind", choices=(GEMM, MEMORY, SMALL))
    add("--size", type=workload_options.positive_int, default=2048, metavar="N", help="side of a matrix, or numbers")
    add("--operations", type=workload_options.positive_int, default=10, metavar="N", help="in a request (10)")
    add("--wait", action="store_true", help="for each operation, and not for all of a request")
    add_device(parser)


if __name__ == "__main__":
    serving.main(Work, __doc__, _add_options)
