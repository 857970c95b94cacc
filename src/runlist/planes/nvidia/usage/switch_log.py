"""Usage from the GPU's own log of context switches: every turn of every process, to the nanosecond."""

from __future__ import annotations

import contextlib

from runlist.errors import RunlistError
from runlist.model import Usage
from runlist.planes.nvidia.nvml import NvmlError, Utilisation
from runlist.planes.nvidia.rm.transport import Driver
from runlist.planes.nvidia.switch_log import SwitchLog
from runlist.planes.nvidia.usage.idle import IdleTime, Sample
from runlist.planes.nvidia.usage.residencies import Residencies
from runlist.planes.usage import Reading


class SwitchLogUsage:
    """Time on the GPU as the GPU logged it; idle time of a lone holder as NVML tells it, where there is an NVML.

    A context that was on the GPU before the source was opened, and that nobody has disturbed since, is not in the log:
    its time counts from its first switch on. Preempting it once makes it known.
    """

    name = "switch log"

    def __init__(self, driver: Driver, gpu_uuid: str) -> None:
        self._log = SwitchLog.open(driver, gpu_uuid)
        self._residencies = Residencies(self._log.now_ns())
        self._idle = IdleTime()
        self._utilisation: Utilisation | None = None
        with contextlib.suppress(NvmlError, RunlistError):
            self._utilisation = Utilisation(driver, gpu_uuid)

    def read(self) -> Reading:
        batch = self._log.read()
        reading = self._residencies.feed(batch)
        if self._utilisation is not None:
            self._find_idle_time(self._utilisation, reading, batch.until_ns)
        return reading

    def close(self) -> None:
        self._log.close()
        if self._utilisation is not None:
            self._utilisation.close()

    def _find_idle_time(self, utilisation: Utilisation, reading: Reading, until_ns: int) -> None:
        self._idle.note(reading.residencies, until_ns)
        if not self._idle.wants_samples(until_ns):
            return
        try:
            samples = utilisation.device(self._idle.sampled_ns // 1000)
        except NvmlError:  # it will not get better
            utilisation.close()
            self._utilisation = None
            return
        for pid, seconds in self._idle.compare(Sample(end_us * 1000, percent) for end_us, percent in samples).items():
            reading.add(pid, Usage(idle_s=seconds))
