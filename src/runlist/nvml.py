"""The little that is asked of NVML, through nvidia-ml-py: which GPUs there are.

The emulated GPU brings an NVML of its own; loading it first makes nvidia-ml-py use it.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from dataclasses import dataclass

import pynvml

from runlist.rm.transport import Driver, EmulatedDriver


class NvmlError(Exception):
    """NVML is missing or refused; the message says what to do."""


@dataclass(frozen=True)
class GpuInfo:
    """A GPU: UUID, product name, and memory in bytes."""

    uuid: str
    name: str
    memory: int


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


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
