"""Which of a stranger's descriptors may reach the daemon, and what comes in place of the others."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runlist.daemon.relay import vet
from runlist.planes.process.region import Region, create
from runlist.planes.process.region import file as region_file
from runlist.planes.process.region.memory import Mapped
from runlist.proc.file_system import LOCAL, Kind, file_system

ME = os.geteuid()


class Control:
    """A control file of the driver, which is taken over with its descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        os.close(self._fd)


def takes(fd: int) -> Control | None:
    """Sockets alone are the driver's."""
    if os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):
        return Control(fd)
    os.close(fd)
    return None


PLANE: Any = SimpleNamespace(adopt=takes)


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    os.close(os.open("/proc/self/mem", os.O_RDWR))
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 1  # what regions copy by


def refused(fd: int) -> str:
    """Why the daemon was given something else in its place."""
    ours = vet.vetted(PLANE, fd, ME)
    try:
        with pytest.raises(OSError, match="Operation not permitted"):
            os.write(ours, b"x")
        return vet.refusal(ours)
    finally:
        os.close(ours)


def test_a_control_file_of_the_driver_is_passed_on_under_a_number_of_its_own() -> None:
    one, other = socket.socketpair()
    before = len(os.listdir("/proc/self/fd"))
    ours = vet.vetted(PLANE, one.detach(), ME)
    assert vet.refusal(ours) == ""
    assert len(os.listdir("/proc/self/fd")) == before
    os.write(ours, b"hello")
    assert other.recv(10) == b"hello"
    os.close(ours)
    other.close()


def test_a_region_is_opened_anew(tmp_path: Path) -> None:
    path, region = create(tmp_path, strict=False)
    fd = os.open(path, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    ours = vet.vetted(PLANE, fd, ME)
    assert vet.refusal(ours) == ""
    assert os.fstat(ours).st_ino == os.fstat(region.fileno()).st_ino
    assert fcntl.fcntl(ours, fcntl.F_GETFL) & os.O_NONBLOCK
    again = os.open(path, os.O_RDWR)
    fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the sender's lock is not ours
    for each in (ours, again):
        os.close(each)
    region.close()


@pytest.mark.parametrize(
    ("path", "flags", "said"),
    [
        ("/dev/null", os.O_RDWR, "it is no file"),
        ("region", os.O_PATH, "it is not open"),
        ("region", os.O_RDONLY, "it is not open for reading and writing"),
        ("other", os.O_RDWR, "it has 5 bytes, not"),
    ],
)
def test_why_others_are_refused_is_told_in_their_place(tmp_path: Path, path: str, flags: int, said: str) -> None:
    made, region = create(tmp_path, strict=False)
    region.close()
    made.rename(tmp_path / "region")
    (tmp_path / "other").write_text("short")
    assert said in refused(os.open(tmp_path / path, flags))


def test_a_file_that_a_program_or_another_machine_serves_is_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, region = create(tmp_path, strict=False)
    for kind in (0x65735546, 0x6969, 0xFF534D42):  # FUSE, NFS, SMB
        monkeypatch.setattr(vet, "file_system", lambda _, kind=kind: kind)
        assert refused(os.open(path, os.O_RDWR)) == "it is on a file system that a program or another machine serves"
    one, other = socket.socketpair()  # a socket is on none
    os.close(vet.vetted(PLANE, one.detach(), ME))
    other.close()
    for kind in Kind:
        monkeypatch.setattr(vet, "file_system", lambda _, kind=kind: int(kind))
        ours = vet.vetted(PLANE, os.open(path, os.O_RDWR), ME)
        assert vet.refusal(ours) == ""
        os.close(ours)
    region.close()


def test_what_cannot_be_looked_at_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_: int) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(vet, "file_system", failing)
    (tmp_path / "file").touch()
    assert refused(os.open(tmp_path / "file", os.O_RDWR)) == "it cannot be read: Input/output error"


def test_what_a_driver_does_not_take_over_is_closed() -> None:
    def broken(fd: int) -> None:
        raise OSError(9, "Bad file descriptor")

    one, other = socket.socketpair()
    ours = vet.vetted(SimpleNamespace(adopt=broken), one.detach(), ME)  # type: ignore[arg-type]
    assert vet.refusal(ours) == "it is no file"
    assert other.recv(1) == b""
    os.close(ours)
    other.close()


def test_a_long_reason_is_cut_and_no_stranger_can_write_one(tmp_path: Path) -> None:
    ours = vet._refused("ä" * 1000)
    assert vet.refusal(ours) == "ä" * 200
    os.close(ours)
    path = tmp_path / "file"
    path.write_text("refused")
    for flags in (os.O_RDONLY, os.O_RDWR):
        fd = os.open(path, flags)
        assert vet.refusal(fd) == ""
        os.close(fd)
    loose = os.memfd_create("refused", os.MFD_ALLOW_SEALING)
    os.write(loose, b"refused")
    assert vet.refusal(loose) == ""
    fcntl.fcntl(loose, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW)  # it could be cut short yet
    assert vet.refusal(loose) == ""
    os.close(loose)


# -- file systems ----------------------------------------------------------------------------------


def test_the_kernels_numbers_of_file_systems() -> None:
    """As <linux/magic.h> and the file systems that are not in it have them."""
    assert {kind.name: int(kind) for kind in Kind} == {
        "TMPFS": 0x01021994, "EXT4": 0xEF53, "XFS": 0x58465342, "BTRFS": 0x9123683E, "OVERLAYFS": 0x794C7630,
        "F2FS": 0xF2F52010, "ZFS": 0x2FC12FC1, "BCACHEFS": 0xCA451A4E, "RAMFS": 0x858458F6,
    }  # fmt: skip
    fd = os.memfd_create("file")
    assert file_system(fd) == Kind.TMPFS
    assert file_system(fd) in LOCAL
    os.close(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        file_system(fd)


@pytest.mark.parametrize("kind", [*Kind, 0x6969])
def test_a_region_is_read_by_a_mapping_where_a_read_may_wait_for_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    path, region = create(tmp_path, strict=False)
    region.close()
    mapped: list[int] = []
    read = Mapped.read

    def noted(one: Mapped, at: int, size: int) -> bytes:
        mapped.append(size)
        return read(one, at, size)

    monkeypatch.setattr(Mapped, "read", noted)
    monkeypatch.setattr(region_file, "file_system", lambda _: int(kind))
    again = Region.adopt(os.open(path, os.O_RDWR), ME)
    assert bool(mapped) is (kind not in (Kind.TMPFS, Kind.EXT4, Kind.BTRFS, Kind.F2FS, Kind.RAMFS))
    again.close()
