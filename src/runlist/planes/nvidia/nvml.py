"""The little that is asked of NVML, through nvidia-ml-py: which GPUs there are, and how busy one is.

The emulated GPU brings an NVML of its own; loading it first makes nvidia-ml-py use it.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pynvml

from runlist.planes.nvidia.rm.transport import Driver, EmulatedDriver

_UNLIMITED = (1 << 64) - 1


class NvmlError(Exception):
    """NVML is missing or refused; the message says what to do."""


@dataclass(frozen=True)
class GpuInfo:
    """A GPU: UUID, product name, and memory in bytes."""

    uuid: str
    name: str
    memory: int


class DeviceSample(NamedTuple):
    """How busy a GPU was, in percent of the time up to `end_us` (µs since the epoch) from the sample before."""

    end_us: int
    percent: int


class ProcessSample(NamedTuple):
    """How busy a process kept a GPU's SMs, in percent, lately before `end_us` (µs since the epoch)."""

    pid: int
    end_us: int
    percent: int


@contextlib.contextmanager
def session(driver: Driver) -> Iterator[None]:
    """NVML initialised for a driver. Raises NvmlError."""
    try:
        if isinstance(driver, EmulatedDriver):
            from runlist.emulated import artefacts

            ctypes.CDLL(str(artefacts() / "libnvidia-ml.so.1"))
        pynvml.nvmlInit()
    except (pynvml.NVMLError, OSError) as error:
        raise NvmlError(f"NVML: {error}: install or load the NVIDIA driver") from None
    try:
        yield
    except pynvml.NVMLError as error:
        raise NvmlError(f"NVML: {error}") from None
    finally:
        pynvml.nvmlShutdown()


def driver_version() -> str:
    """The driver's version."""
    return _text(pynvml.nvmlSystemGetDriverVersion())


def gpus() -> list[GpuInfo]:
    """All GPUs, in NVML's order."""
    found = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        found.append(
            GpuInfo(
                _text(pynvml.nvmlDeviceGetUUID(handle)),
                _text(pynvml.nvmlDeviceGetName(handle)),
                int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
            )
        )
    return found


def memory_by_pid(uuid: str) -> dict[int, int]:
    """Bytes that each process with a compute context holds on a GPU; processes that NVML hides are missing. Raises
    NvmlError.
    """
    try:
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByUUID(uuid))
    except pynvml.NVMLError as error:
        raise NvmlError(f"NVML: {error}") from None
    return {int(process.pid): int(process.usedGpuMemory or 0) for process in processes}


def memory_limits_supported(cgroup: Path) -> bool:
    """Whether this driver limits memory by cgroup (R615 and newer): it tells what holds for one."""
    ask = getattr(pynvml, "nvmlDeviceGetMemoryLimits_v1", None)
    if ask is None:  # an older nvidia-ml-py
        return False
    try:
        ask(pynvml.nvmlDeviceGetHandleByIndex(0), pynvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=bytes(cgroup)))
    except pynvml.NVMLError:
        return False
    return True


def set_memory_limit(uuid: str, cgroup: Path, limit: int | None) -> None:
    """Limit what the processes of a cgroup may hold on a GPU together, in bytes; None for no limit. Needs root. Raises
    NvmlError.
    """
    limits = pynvml.c_nvmlSetMemoryLimits_v1_t(
        nameSpace=bytes(cgroup), softLimit=0, hardLimit=_UNLIMITED if limit is None else limit
    )
    try:
        pynvml.nvmlDeviceSetMemoryLimits_v1(pynvml.nvmlDeviceGetHandleByUUID(uuid), limits)
    except pynvml.NVMLError as error:
        raise NvmlError(f"NVML: {error}") from None


def uuids() -> list[str]:
    """UUIDs of all GPUs, in NVML's order. Raises NvmlError."""
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return [_text(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    except pynvml.NVMLError as error:
        raise NvmlError(f"NVML: {error}") from None


def compute_pids() -> set[int]:
    """Processes with a compute context on any GPU, as far as NVML shows them. A GPU that is lost has none. Raises
    NvmlError.
    """
    found: set[int] = set()
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            with contextlib.suppress(pynvml.NVMLError_GpuIsLost):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                found |= {int(process.pid) for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    except pynvml.NVMLError as error:
        raise NvmlError(f"NVML: {error}") from None
    return found


class Utilisation:
    """How busy one GPU is. Holds a session of NVML until it is closed; everything raises NvmlError."""

    def __init__(self, driver: Driver, uuid: str) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(session(driver))
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            self._session = stack.pop_all()

    def device(self, since_us: int) -> list[DeviceSample]:
        """Samples of the whole GPU newer than `since_us`, in order: on the H200 one in 200 ms, of the last 14 s."""
        found = _found(
            lambda: pynvml.nvmlDeviceGetSamples(self._handle, pynvml.NVML_GPU_UTILIZATION_SAMPLES, since_us)[1]
        )
        return sorted(DeviceSample(int(one.timeStamp), int(one.sampleValue.uiVal)) for one in found)

    def processes(self, since_us: int) -> list[ProcessSample]:
        """The newest sample of each process that has one newer than `since_us`."""
        found = _found(lambda: pynvml.nvmlDeviceGetProcessUtilization(self._handle, since_us))
        return [ProcessSample(int(one.pid), int(one.timeStamp), int(one.smUtil)) for one in found]

    def close(self) -> None:
        """End the session."""
        self._session.close()


def _found(ask: Callable[[], list[Any]]) -> list[Any]:
    """What NVML answers; nothing when it says in one of its ways that there are no samples ("not found", or a success
    raised as an error).
    """
    try:
        return ask()
    except pynvml.NVMLError as error:
        if error.value in (pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND):
            return []
        raise NvmlError(f"NVML: {error}") from None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
