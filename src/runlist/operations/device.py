"""The GPU that clients share, as its driver tells of it."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

_LIBRARY = "libcuda.so.1"
_SMS = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
_NAME = 256


@dataclass(frozen=True, slots=True)
class Device:
    """`name` is its kind, as in `NVIDIA H200`; `sms` how many it has."""

    name: str
    sms: int


def current() -> Device | None:
    """That of the thread's context, else the first that the process sees; None where no driver answers."""
    try:
        driver = ctypes.CDLL(_LIBRARY)
        return _look(driver)
    except (OSError, AttributeError):
        return None


def _look(driver: Any) -> Device | None:
    device = ctypes.c_int()
    if driver.cuCtxGetDevice(ctypes.byref(device)) != 0 and (
        driver.cuInit(0) != 0 or driver.cuDeviceGet(ctypes.byref(device), 0) != 0
    ):
        return None
    name = ctypes.create_string_buffer(_NAME)
    sms = ctypes.c_int()
    if driver.cuDeviceGetName(name, _NAME, device) != 0:
        return None
    if driver.cuDeviceGetAttribute(ctypes.byref(sms), _SMS, device) != 0:
        return None
    return Device(name.value.decode(errors="replace"), max(0, sms.value))
