"""NVIDIA's plane: everything below `planes.nvidia`, behind the one interface. What a method needs is imported there, so
that a process which needs little, such as the keeper, stays small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from runlist.planes.nvidia.rm.transport import Driver, OpenFile

if TYPE_CHECKING:
    from runlist.model import SliceLimits
    from runlist.planes import interface
    from runlist.planes.usage import TurnLog, UsageSource


class NvidiaPlane:
    """The plane over a driver, which is the kernel's or an emulated GPU's."""

    AHEAD: ClassVar = {
        "daemon": (
            "runlist.planes.nvidia.census",
            "runlist.planes.nvidia.slices",
            "runlist.planes.nvidia.usage.nvml",
            "runlist.planes.nvidia.usage.switch_log",
        ),
        "keeper": ("runlist.planes.nvidia.undo",),
    }

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    @property
    def name(self) -> str:
        return self.driver.name

    @property
    def slices(self) -> SliceLimits:
        from runlist.planes.nvidia.slices import SLICES

        return SLICES

    def check(self) -> None:
        self.driver.open().close()

    def finder(self) -> interface.Finder:
        from runlist.planes.nvidia.discover import Discoverer

        return Discoverer(self.driver)

    def adopt(self, fd: int) -> OpenFile | None:
        return self.driver.adopt(fd)

    def replayer(self, fd: int) -> interface.Replayer | None:
        from runlist.planes.nvidia.undo import Replayer

        file = self.driver.adopt(fd)
        return None if file is None else Replayer(file)

    def usage_sources(self, gpu: str) -> Sequence[tuple[str, Callable[[], UsageSource]]]:
        from runlist.planes.nvidia.usage import nvml, switch_log

        return (
            (switch_log.SwitchLogUsage.name, lambda: switch_log.SwitchLogUsage(self.driver, gpu)),
            (nvml.NvmlUsage.name, lambda: nvml.open_usage(self.driver, gpu)),
        )

    def turn_log(self, gpu: str) -> TurnLog:
        from runlist.planes.nvidia import turns

        return turns.TurnLog(self.driver, gpu)

    def census(self) -> interface.Census:
        from runlist.planes.nvidia.census import NvmlCensus

        return NvmlCensus(self.driver)

    def gpu_numbers(self) -> dict[int, str]:
        from runlist.planes.nvidia.gpu_numbers import gpu_numbers

        return gpu_numbers(self.driver)

    def watch_gpus(self) -> interface.GpuWatch:
        from runlist.planes.nvidia.health import Health

        return Health(self.driver)

    def rescue(self, pid: int) -> list[str]:
        from runlist.planes.nvidia.rescue import rescue

        return rescue(self.driver, pid)

    def checks(self) -> Iterator[tuple[str, Callable[[], str]]]:
        from runlist.planes.nvidia import checks

        return checks.checks(self.driver)

    def environment(self) -> dict[str, str]:
        return self.driver.environment()

    def watch_paths(self) -> list[Path]:
        return self.driver.watch_paths()

    def state_dir(self) -> Path | None:
        return self.driver.state_dir()

    def capture(self) -> interface.Capture | None:
        files = self.driver.files_of_requests()
        if files is None:
            return None
        import msgspec

        from runlist.planes.nvidia.capture import CAPTURE

        return msgspec.structs.replace(CAPTURE, files=files)
