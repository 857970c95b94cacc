"""Usage from the GPU's own log of context switches: every turn of every process, to the nanosecond."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

import structlog

from runlist.errors import RunlistError
from runlist.model import Usage
from runlist.planes.nvidia.nvml import DeviceSample, NvmlError, Utilisation
from runlist.planes.nvidia.rm.transport import Driver
from runlist.planes.nvidia.switch_log import SwitchLog, hides_others
from runlist.planes.nvidia.usage.idle import IdleTime, Sample
from runlist.planes.nvidia.usage.residencies import Residencies
from runlist.planes.usage import Reading
from runlist.proc.pool import Pool

_log = structlog.get_logger()


class Submit(Protocol):
    """Has NVML asked, now or later."""

    def __call__(self, ask: Callable[[int], list[DeviceSample]], since_us: int, /) -> Future[list[DeviceSample]]:
        """The answer to `ask(since_us)`."""


class SwitchLogUsage:
    """Time on the GPU as the GPU logged it; idle time of a lone holder as NVML tells it, where there is an NVML.

    A context that was on the GPU before the source was opened, and that nobody has disturbed since, is not in the log:
    its time counts from its first switch on. Preempting it once makes it known.

    NVML is asked by way of `submit`, in a thread: its answer can take 2 ms, for which the scheduler must not wait.
    """

    name = "switch log"

    def __init__(self, driver: Driver, gpu_uuid: str, submit: Submit | None = None) -> None:
        self._log = SwitchLog.open(driver, gpu_uuid)
        if why := hides_others():
            _log.warning("what others use of a GPU is not known", gpu=gpu_uuid, reason=why)
        self._residencies = Residencies(self._log.now_ns())
        self._idle = IdleTime()
        self._utilisation: Utilisation | None = None
        self._thread = Pool(1, "nvml")
        self._submit = submit or self._thread.submit
        self._answer: Future[list[DeviceSample]] | None = None
        with contextlib.suppress(NvmlError, RunlistError):
            self._utilisation = Utilisation(driver, gpu_uuid)

    def read(self) -> Reading:
        batch = self._log.read()
        reading = self._residencies.feed(batch)
        self._idle.note(reading.residencies, batch.until_ns)
        if self._utilisation is not None:
            self._find_idle_time(self._utilisation, reading, batch.until_ns)
        return reading

    def close(self) -> None:
        self._log.close()
        self._thread.shutdown()
        if self._utilisation is not None and not self._thread.hangs:
            self._utilisation.close()

    def _find_idle_time(self, utilisation: Utilisation, reading: Reading, until_ns: int) -> None:
        """Add the idle time that samples tell, and ask for more samples where they could tell something."""
        if self._answer is None and self._idle.wants_samples(until_ns):
            self._answer = self._submit(utilisation.device, self._idle.sampled_ns // 1000)
        elif self._answer is None and self._idle.may_presume:
            for pid, seconds in self._idle.presume(utilisation.newest()).items():
                reading.add(pid, Usage(idle_s=seconds))
        if self._answer is None or not self._answer.done():
            return
        answer, self._answer = self._answer, None
        try:
            samples = answer.result()
        except NvmlError:  # it will not get better
            utilisation.close()
            self._utilisation = None
            return
        for pid, seconds in self._idle.compare(Sample(end_us * 1000, percent) for end_us, percent in samples).items():
            reading.add(pid, Usage(idle_s=seconds))
