"""Opening the best source of usage that works."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from runlist.daemon.gpu.book import BookUsage
from runlist.errors import RunlistError
from runlist.planes.nvidia.nvml import NvmlError, Utilisation
from runlist.planes.nvidia.rm.transport import Driver
from runlist.planes.nvidia.usage.nvml import NvmlUsage
from runlist.planes.nvidia.usage.switch_log import SwitchLogUsage
from runlist.planes.usage import UsageSource


class Choice(NamedTuple):
    """A source, and why each better one does not work, one line each."""

    source: UsageSource
    refusals: tuple[str, ...]


def open_source(driver: Driver, gpu_uuid: str) -> Choice:
    """The best source that works for a GPU: the switch log, else NVML, else the daemon's own book."""
    better: list[tuple[str, Callable[[], UsageSource]]] = [
        (SwitchLogUsage.name, lambda: SwitchLogUsage(driver, gpu_uuid)),
        (NvmlUsage.name, lambda: _nvml(driver, gpu_uuid)),
    ]
    refusals: list[str] = []
    for name, open_ in better:
        try:
            return Choice(open_(), tuple(refusals))
        except (RunlistError, NvmlError, OSError) as error:
            refusals.append(f"{name}: {error}")
    return Choice(BookUsage(), tuple(refusals))


def _nvml(driver: Driver, gpu_uuid: str) -> UsageSource:
    utilisation = Utilisation(driver, gpu_uuid)
    try:
        return NvmlUsage(utilisation)
    except BaseException:
        utilisation.close()
        raise
