"""Every turn on a GPU, from its switch log, and how busy it was, from NVML."""

from __future__ import annotations

import contextlib
import os

from runlist.errors import RunlistError
from runlist.planes.nvidia.nvml import NvmlError, Utilisation, memory_by_pid
from runlist.planes.nvidia.rm.transport import Driver
from runlist.planes.nvidia.switch_log import SwitchLog
from runlist.planes.nvidia.usage.residencies import Residencies
from runlist.planes.usage import Reading, Residency
from runlist.proc.process import owner_of

_SAMPLE_US = 1_000_000
"""How old a process' sample may be: one is taken at least so often."""


class TurnLog:
    """The turns on one GPU from now on."""

    def __init__(self, driver: Driver, gpu: str) -> None:
        self._gpu = gpu
        self._log = SwitchLog.open(driver, gpu)
        self._since_ns = self._until_ns = self._log.now_ns()
        self._residencies = Residencies(self._since_ns)
        self._sampled_us = self._since_ns // 1000
        self._had_work = False
        self._utilisation: Utilisation | None = None
        with contextlib.suppress(NvmlError, RunlistError):
            self._utilisation = Utilisation(driver, gpu)
        self.samples_busy = self._utilisation is not None

    def read(self) -> Reading:
        batch = self._log.read()
        self._until_ns = max(self._until_ns, batch.until_ns)
        return self._residencies.feed(batch)

    def unswitched(self) -> Residency | None:
        """Where nobody was switched one process at most had work: NVML's samples tell which."""
        if not self._residencies.blank or self._utilisation is None or self._until_ns == self._since_ns:
            return None
        try:
            samples = self._utilisation.processes(self._since_ns // 1000 - _SAMPLE_US)
            found = {sample.pid for sample in samples if sample.percent}
            if not found and self._had_work:  # a short trace: its work was sampled, its process not yet
                found = set(memory_by_pid(self._gpu))
        except NvmlError:
            return None
        if len(found) != 1:
            return None
        pid = found.pop()
        return Residency(pid if os.geteuid() in (0, owner_of(pid)) else 0, 0, self._since_ns, self._until_ns)

    def busy(self) -> list[tuple[int, int]]:
        if self._utilisation is None:
            return []
        with contextlib.suppress(NvmlError):
            samples = self._utilisation.device(self._sampled_us)
            self._had_work = self._had_work or any(percent for _, percent in samples)
            self._sampled_us = max((end_us for end_us, _ in samples), default=self._sampled_us)
            return [(end_us * 1000, percent) for end_us, percent in samples]
        return []

    def close(self) -> None:
        self._log.close()
        if self._utilisation is not None:
            self._utilisation.close()
