"""Every turn on a GPU, from its switch log, and how busy it was, from NVML."""

from __future__ import annotations

import contextlib

from runlist.errors import RunlistError
from runlist.planes.nvidia.nvml import NvmlError, Utilisation
from runlist.planes.nvidia.rm.transport import Driver
from runlist.planes.nvidia.switch_log import SwitchLog
from runlist.planes.nvidia.usage.residencies import Residencies
from runlist.planes.usage import Reading


class TurnLog:
    """The turns on one GPU from now on."""

    def __init__(self, driver: Driver, gpu: str) -> None:
        self._log = SwitchLog.open(driver, gpu)
        self._residencies = Residencies(self._log.now_ns())
        self._sampled_us = self._log.now_ns() // 1000
        self._utilisation: Utilisation | None = None
        with contextlib.suppress(NvmlError, RunlistError):
            self._utilisation = Utilisation(driver, gpu)
        self.samples_busy = self._utilisation is not None

    def read(self) -> Reading:
        return self._residencies.feed(self._log.read())

    def busy(self) -> list[tuple[int, int]]:
        if self._utilisation is None:
            return []
        with contextlib.suppress(NvmlError):
            samples = self._utilisation.device(self._sampled_us)
            self._sampled_us = max((end_us for end_us, _ in samples), default=self._sampled_us)
            return [(end_us * 1000, percent) for end_us, percent in samples]
        return []

    def close(self) -> None:
        self._log.close()
        if self._utilisation is not None:
            self._utilisation.close()
