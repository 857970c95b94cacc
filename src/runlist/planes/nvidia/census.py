"""Who is on which GPU, as NVML tells."""

from __future__ import annotations

from pathlib import Path

from runlist.planes.interface import GpuInfo
from runlist.planes.nvidia import nvml
from runlist.planes.nvidia.rm.transport import Driver


class NvmlCensus:
    """A session of NVML. Raises CensusError when there can be none."""

    def __init__(self, driver: Driver) -> None:
        self._session = nvml.open_session(driver)

    def gpus(self) -> list[GpuInfo]:
        return nvml.gpus()

    def memory(self, gpu: str) -> dict[int, int]:
        return nvml.memory_by_pid(gpu)

    def used(self, gpu: str) -> int:
        return nvml.memory_used(gpu)

    def pids(self) -> set[int]:
        return nvml.compute_pids()

    def mps_clients(self, gpu: str) -> set[int]:
        return nvml.mps_pids(gpu)

    def limits_memory(self, cgroup: Path) -> bool:
        return nvml.memory_limits_supported(cgroup)

    def limit_memory(self, gpu: str, cgroup: Path, limit: int | None) -> None:
        nvml.set_memory_limit(gpu, cgroup, limit)

    def close(self) -> None:
        self._session.close()
