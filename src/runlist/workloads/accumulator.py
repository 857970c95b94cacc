"""Work of a chosen length on a GPU: the kernel `accumulate_lcg` on an array, counted so that it can be checked."""

from __future__ import annotations

from collections.abc import Callable

from runlist.workloads import lcg
from runlist.workloads.calibration import microseconds_per_round
from runlist.workloads.gpu import BLOCK, Gpu, Graph, Stopwatch, synchronize


class Accumulator:
    """An array of one u32 a thread for `blocks` blocks, on a stream of its own, with a priority as CUDA counts them."""

    def __init__(self, gpu: Gpu, blocks: int, priority: int = 0) -> None:
        self._gpu = gpu
        self._blocks = blocks
        self._kernel = gpu.kernel("accumulate_lcg")
        self._count = blocks * BLOCK
        self._state = gpu.upload(lcg.initial(self._count))
        self._done = 0  # rounds queued so far
        self.stream = gpu.stream(priority)

    def launch(self, rounds: int) -> None:
        """Queues one kernel of `rounds` rounds; does not wait."""
        self._kernel.launch(self.stream, self._blocks, self._state, self._count, rounds)
        self._done += rounds

    def graph(self, kernels: int, rounds: int) -> Callable[[], None]:
        """What queues a CUDA graph of so many kernels when it is called. Raises GpuError where there are no graphs."""
        self.launch(1)  # a first launch loads code, which a capture does not allow
        self.synchronize()
        done = self._done
        with Graph(self.stream) as graph:
            for _ in range(kernels):
                self.launch(rounds)
        self._done = done  # captured, not run

        def launch() -> None:
            graph.launch()
            self._done += kernels * rounds

        return launch

    def synchronize(self) -> None:
        """Waits for the kernels queued."""
        synchronize(self.stream)

    def rounds_for(self, microseconds: float) -> int:
        """Rounds for which one kernel runs `microseconds` on this GPU when alone; measured, in some 60 ms.

        Raises GpuError where that cannot be measured.
        """
        watch = Stopwatch()

        def timed(rounds: int) -> float:
            """µs by the GPU's own clock: a busy processor, which launches and wakes late, has no part in it."""
            watch.start(self.stream)
            self.launch(rounds)
            watch.stop(self.stream)
            return watch.seconds() * 1e6

        return max(1, round(microseconds / microseconds_per_round(timed)))

    def correct(self) -> bool:
        """Whether the array holds, bit for bit, what all the rounds so far must give. Waits for them."""
        self.synchronize()
        expected = lcg.advanced(self._count, self._done)
        return self._gpu.download(self._state, expected) == expected
