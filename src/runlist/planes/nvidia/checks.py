"""The checks of `runlist doctor` on NVIDIA's driver, each done for real."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from runlist.errors import NotSupportedError
from runlist.planes.interface import Limited
from runlist.planes.nvidia import nvml
from runlist.planes.nvidia.controls import CONTROLS
from runlist.planes.nvidia.rm.client import free_client, open_client
from runlist.planes.nvidia.rm.transport import Driver
from runlist.planes.nvidia.switch_log import hides_others
from runlist.proc import cgroup
from runlist.proc.process import capable

OLDEST_DRIVER = (550, 0)
"""Oldest driver whose protocol was read; 580.159.04 is the one it was measured on."""

_CAP_SYS_NICE = 23


def checks(driver: Driver) -> Iterator[tuple[str, Callable[[], str]]]:
    """Names, and what to call."""
    yield "device", lambda: _device(driver)
    yield "GPUs", lambda: _gpus(driver)
    yield "privileged controls", _nice
    yield "use of the GPU", lambda: _use(driver)
    yield "memory limits", lambda: _memory_limits(driver)


def _device(driver: Driver) -> str:
    file = driver.open()
    try:
        free_client(open_client(file))
    finally:
        file.close()
    return f"{driver.name}: the driver answers"


@contextlib.contextmanager
def _nvml(driver: Driver) -> Iterator[None]:
    """NVML, where it answers. Else the driver says what is missing: NVML would name NVIDIA's, also for a GPU that is
    emulated.
    """
    try:
        with nvml.session(driver):
            yield
    except nvml.NvmlError:
        driver.open().close()
        raise


def _gpus(driver: Driver) -> str:
    with _nvml(driver):
        version, names = nvml.driver_version(), [gpu.name for gpu in nvml.gpus()]
    if not names:
        raise NotSupportedError("the driver shows no GPU")
    text = f"{len(names)} × {', '.join(sorted(set(names)))}, driver {version}"
    numbers = tuple(int(part) for part in version.split("-")[0].split(".")[:2] if part.isdecimal())
    if numbers < OLDEST_DRIVER:
        raise Limited(f"{text}: older than {OLDEST_DRIVER[0]}, its protocol was never checked: update the driver")
    return text


def _nice() -> str:
    privileged = ", ".join(row.name for row in CONTROLS if row.privileged)
    if capable(_CAP_SYS_NICE):
        return f"{privileged} may be set"
    raise Limited(f"{privileged} cannot be set without root or CAP_SYS_NICE; classes, slices and suspension can")


def _use(driver: Driver) -> str:
    driver.open().close()
    if why := hides_others():
        raise Limited(why)
    return "every turn of the processes that can be managed is in the driver's log"


def _memory_limits(driver: Driver) -> str:
    with _nvml(driver):
        supported, version = nvml.memory_limits_supported(cgroup.MOUNT), nvml.driver_version()
    if supported:
        return f"by the driver itself, for a daemon run by root (driver {version})"
    return f"by the driver: not supported (driver {version}); librunlist.so keeps them"
