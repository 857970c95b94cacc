"""By which files requests reach a driver, so that the kernel plane sees them, and which descriptors are those."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from runlist.planes.interface import DriverFiles
from runlist.planes.nvidia.capture import CAPTURE
from runlist.planes.nvidia.plane import NvidiaPlane
from runlist.planes.nvidia.rm.transport import EmulatedDriver, NvidiaDriver
from runlist.protocol import environment_autogen as names

ME = os.getpid()


@pytest.fixture
def null() -> Iterator[int]:
    fd = os.open("/dev/null", os.O_RDWR)
    yield fd
    os.close(fd)


def test_requests_to_the_kernels_driver_are_those_to_its_devices(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(NvidiaDriver, "_PATH", Path("/dev/null"))
    files = DriverFiles(major=1)  # the memory devices'
    assert NvidiaDriver().files_of_requests() == files
    captured = NvidiaPlane(NvidiaDriver()).capture()
    assert captured is not None
    assert (captured.files, captured.shapes, captured.rules) == (files, CAPTURE.shapes, CAPTURE.rules)
    monkeypatch.setattr(NvidiaDriver, "_PATH", tmp_path / "nvidiactl")
    assert NvidiaDriver().files_of_requests() == DriverFiles()


def test_a_request_was_on_the_control_file_if_that_is_the_device(monkeypatch: pytest.MonkeyPatch, null: int) -> None:
    monkeypatch.setattr(NvidiaDriver, "_PATH", Path("/dev/null"))
    assert list(NvidiaDriver().control_files_behind(ME, null)) == [null]
    zero = os.open("/dev/zero", os.O_RDWR)
    file = os.memfd_create("file")
    for other in (zero, file, 1 << 19):  # there is no such number
        assert list(NvidiaDriver().control_files_behind(ME, other)) == []
    os.close(zero)
    os.close(file)
    monkeypatch.setattr(NvidiaDriver, "_PATH", Path("/dev/zero"))
    assert list(NvidiaDriver().control_files_behind(ME, null)) == []


def test_requests_to_an_emulated_gpu_are_seen_on_its_twin_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, null: int
) -> None:
    monkeypatch.delenv(names.EMULATED_TWIN, raising=False)
    alone = EmulatedDriver(tmp_path)
    assert alone.files_of_requests() is None
    assert NvidiaPlane(alone).capture() is None
    assert list(alone.control_files_behind(ME, null)) == []
    twin = tmp_path / "twin"
    monkeypatch.setenv(names.EMULATED_TWIN, str(twin))
    driver = EmulatedDriver(tmp_path)
    assert driver.files_of_requests() == DriverFiles()
    twin.touch()
    found = twin.stat()
    assert driver.files_of_requests() == DriverFiles(device=found.st_dev, inode=found.st_ino)
    one, other = socket.socketpair()
    fd = os.open(twin, os.O_RDWR)
    behind = set(driver.control_files_behind(ME, fd))
    assert {one.fileno(), other.fileno()} <= behind
    assert fd not in behind
    assert list(driver.control_files_behind(ME, null)) == []
    os.close(fd)
    assert list(driver.control_files_behind(ME, fd)) == []
    one.close()
    other.close()


def test_an_emulated_gpu_needs_nothing_to_be_attached(tmp_path: Path) -> None:
    assert EmulatedDriver(tmp_path).attach_gpus(None) == []  # type: ignore[arg-type]


def test_the_planes_steps_are_replayed_on_files_of_its_driver_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NvidiaDriver, "_PATH", Path("/dev/null"))
    plane = NvidiaPlane(NvidiaDriver())
    assert plane.replayer(os.open("/dev/zero", os.O_RDWR)) is None
    fd = os.open("/dev/null", os.O_RDWR)
    replayer = plane.replayer(fd)
    assert replayer is not None
    replayer.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    assert plane.name == "nvidia"
