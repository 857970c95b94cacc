"""Usage from NVML's utilisation of each process: coarse, but there without the switch log."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from runlist.model import Usage
from runlist.planes.nvidia.nvml import ProcessSample, Utilisation
from runlist.planes.nvidia.rm.transport import Driver
from runlist.planes.usage import Reading

_ASK_S = 0.4
_STALE_S = 2.0  # a sample comes at least once a second while a process has work


class ProcessUtilisation(Protocol):
    """The used part of `runlist.planes.nvidia.nvml.Utilisation`."""

    def processes(self, since_us: int) -> list[ProcessSample]:
        """The newest sample of each process that has one newer than `since_us` (µs since the epoch)."""

    def close(self) -> None:
        """Let go of NVML."""


class NvmlUsage:
    """A process counts as holding the GPU for as much of the time as NVML last said that its kernels ran.

    Turns are not seen, and work of less than a sample's length (a sixth of a second to a second) is told late.
    """

    name = "nvml"

    def __init__(
        self,
        utilisation: ProcessUtilisation,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` is that of the samples, and may be set; `steady` is not."""
        self._utilisation = utilisation
        self._clock, self._steady = clock, steady
        self._asked, self._read_at = clock(), steady()
        self._newest: dict[int, ProcessSample] = {}
        self._ask(self._asked)  # an error shows here, not later

    def read(self) -> Reading:
        now, read_at = self._clock(), self._steady()
        elapsed, self._read_at = read_at - self._read_at, read_at
        if not 0 <= now - self._asked < _ASK_S:
            self._ask(now)
        # Samples of processes are taken at different times: their sum may pass the whole.
        whole = max(100, sum(sample.percent for sample in self._newest.values()))
        reading = Reading(now)
        for pid, sample in self._newest.items():
            if sample.percent:
                reading.add(pid, Usage(elapsed * sample.percent / whole))
        return reading

    def close(self) -> None:
        self._utilisation.close()

    def _ask(self, now: float) -> None:
        self._asked = now
        stale_us = int((now - _STALE_S) * 1e6)
        for sample in self._utilisation.processes(stale_us):
            self._newest[sample.pid] = sample
        self._newest = {pid: sample for pid, sample in self._newest.items() if sample.end_us >= stale_us}


def open_usage(driver: Driver, gpu: str) -> NvmlUsage:
    """The source for a GPU. Raises NvmlError."""
    utilisation = Utilisation(driver, gpu)
    try:
        return NvmlUsage(utilisation)
    except BaseException:
        utilisation.close()
        raise
