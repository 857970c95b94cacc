"""NVML through nvidia-ml-py: the GPUs, their processes and memory, and how busy each is.

The emulated GPU has its own NVML; nvidia-ml-py uses the one that is loaded first.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pynvml

from runlist.planes.interface import CensusError, GpuInfo
from runlist.planes.nvidia.rm.transport import Driver

_UNLIMITED = (1 << 64) - 1


class NvmlError(CensusError):
    """NVML is missing or refused; the message says what to do."""


class DeviceSample(NamedTuple):
    """How busy a GPU was, in percent of the time up to `end_us` (µs since the epoch) from the sample before."""

    end_us: int
    percent: int


class ProcessSample(NamedTuple):
    """How busy a process kept a GPU's SMs, in percent, lately before `end_us` (µs since the epoch)."""

    pid: int
    end_us: int
    percent: int


def open_session(driver: Driver) -> contextlib.ExitStack:
    """NVML initialised for a driver, until it is closed. Raises NvmlError."""
    try:
        if (library := driver.nvml_library()) is not None:
            ctypes.CDLL(str(library))
        pynvml.nvmlInit()
    except (pynvml.NVMLError, OSError) as error:
        raise NvmlError(f"NVML: {error}: install or load the NVIDIA driver") from None
    stack = contextlib.ExitStack()
    stack.callback(pynvml.nvmlShutdown)
    return stack


@contextlib.contextmanager
def session(driver: Driver) -> Iterator[None]:
    """NVML initialised for a driver. Raises NvmlError."""
    with open_session(driver), _as_nvml_error():
        yield


@contextlib.contextmanager
def _as_nvml_error() -> Iterator[None]:
    try:
        yield
    except pynvml.NVMLError as error:
        raise NvmlError(f"NVML: {error}") from None


def driver_version() -> str:
    """The driver's version. Raises NvmlError."""
    with _as_nvml_error():
        return text(pynvml.nvmlSystemGetDriverVersion())


def gpus() -> list[GpuInfo]:
    """All GPUs that answer, in NVML's order: one may be lost. Raises NvmlError, also where none does."""
    found: list[GpuInfo] = []
    lost: pynvml.NVMLError | None = None
    with _as_nvml_error():
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                found.append(_info(index))
            except pynvml.NVMLError as error:
                lost = error
        if lost is not None and not found:
            raise lost
    return found


def _info(index: int) -> GpuInfo:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    uuid, name = text(pynvml.nvmlDeviceGetUUID(handle)), text(pynvml.nvmlDeviceGetName(handle))
    return GpuInfo(uuid, name, int(pynvml.nvmlDeviceGetMemoryInfo(handle).total), index)


def memory_by_pid(uuid: str) -> dict[int, int]:
    """Bytes that each process with a compute context holds on a GPU; processes that NVML hides are missing. Raises
    NvmlError.
    """
    with _as_nvml_error():
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByUUID(uuid))
    held: dict[int, int] = {}
    for process in processes:  # one may be listed more than once
        held[int(process.pid)] = held.get(int(process.pid), 0) + int(process.usedGpuMemory or 0)
    return held


def memory_used(uuid: str) -> int:
    """Bytes in use on a GPU, without what the driver reserves for itself where it tells that. Raises NvmlError."""
    with _as_nvml_error():
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        try:
            return int(pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).used)
        except pynvml.NVMLError_FunctionNotFound:
            return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)


def mps_pids(uuid: str) -> set[int]:
    """Processes whose work reaches a GPU through an MPS server; none where NVML cannot tell. Raises NvmlError."""
    with _as_nvml_error():
        try:
            found = pynvml.nvmlDeviceGetMPSComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByUUID(uuid))
        except (pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_NotSupported):
            return set()
    return {int(process.pid) for process in found}


def memory_limits_supported(cgroup: Path) -> bool:
    """Whether this driver limits memory by cgroup (R615 and newer): it then tells a cgroup's limit."""
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
    with _as_nvml_error():
        pynvml.nvmlDeviceSetMemoryLimits_v1(pynvml.nvmlDeviceGetHandleByUUID(uuid), limits)


def compute_pids() -> set[int]:
    """Processes with a compute context on any GPU, as far as NVML shows them. A GPU that is lost has none. Raises
    NvmlError.
    """
    found: set[int] = set()
    with _as_nvml_error():
        for index in range(pynvml.nvmlDeviceGetCount()):
            with contextlib.suppress(pynvml.NVMLError_GpuIsLost):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                found |= {int(process.pid) for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    return found


class Utilisation:
    """How busy one GPU is. Keeps a session of NVML until it is closed; every method raises NvmlError."""

    def __init__(self, driver: Driver, uuid: str) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(open_session(driver))
            with _as_nvml_error():
                self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            self._session = stack.pop_all()

    def device(self, since_us: int) -> list[DeviceSample]:
        """Samples of the whole GPU newer than `since_us`, in order: on the H200 one in 200 ms, of the last 14 s."""
        found = _found(
            lambda: pynvml.nvmlDeviceGetSamples(self._handle, pynvml.NVML_GPU_UTILIZATION_SAMPLES, since_us)[1]
        )
        return sorted(DeviceSample(int(one.timeStamp), int(one.sampleValue.uiVal)) for one in found)

    def newest(self) -> int | None:
        """The newest sample of the whole GPU, in percent: a fortieth of the work of `device`. None if there is none."""
        try:
            return int(pynvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)
        except pynvml.NVMLError:
            return None

    def processes(self, since_us: int) -> list[ProcessSample]:
        """The newest sample of each process that has one newer than `since_us`."""
        found = _found(lambda: pynvml.nvmlDeviceGetProcessUtilization(self._handle, since_us))
        return [ProcessSample(int(one.pid), int(one.timeStamp), int(one.smUtil)) for one in found]

    def close(self) -> None:
        """End the session."""
        self._session.close()


def _found(ask: Callable[[], list[Any]]) -> list[Any]:
    """NVML's answer; empty where it has no samples, for which it raises "not found" or even success."""
    try:
        return ask()
    except pynvml.NVMLError as error:
        if error.value in (pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND):
            return []
        raise NvmlError(f"NVML: {error}") from None


def text(value: str | bytes) -> str:
    """What NVML says, which is bytes in some versions of its bindings."""
    return value.decode() if isinstance(value, bytes) else value
