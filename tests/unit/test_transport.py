"""Choosing a driver, and which descriptors count as its control files."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runlist.errors import NoTargetError, NotSupportedError, UsageError
from runlist.planes.nvidia.plane import NvidiaPlane
from runlist.planes.nvidia.rm import transport
from runlist.planes.nvidia.rm.status import ObjectNotFound
from runlist.planes.nvidia.rm.transport import EmulatedDriver, NvidiaDriver, choose_driver
from runlist.proc import borrow, descriptors
from runlist.protocol.actuator_autogen import Form


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RUNLIST_DEVICE", "RUNLIST_EMULATED_GPU"):
        monkeypatch.delenv(name, raising=False)


def test_the_drivers_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_driver().name == "nvidia"
    monkeypatch.setenv("RUNLIST_EMULATED_GPU", "/gpu")
    assert choose_driver().name == "nvidia"  # an emulated GPU is never chosen silently
    monkeypatch.setenv("RUNLIST_DEVICE", "emulated")
    assert choose_driver().name == "emulated"
    assert choose_driver("nvidia").name == "nvidia"


def test_a_relative_directory_is_resolved_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNLIST_EMULATED_GPU", "gpu")
    driver = choose_driver("emulated")
    assert isinstance(driver, EmulatedDriver)
    assert driver.directory == Path.cwd() / "gpu"


@pytest.mark.parametrize("name", ["amd", "NVIDIA", "emulated "])
def test_other_names_are_usage(name: str) -> None:
    with pytest.raises(UsageError, match="take nvidia or emulated"):
        choose_driver(name)


def test_emulated_without_a_directory_is_usage() -> None:
    with pytest.raises(UsageError, match="runlist emulator"):
        choose_driver("emulated")


def test_no_emulated_gpu_is_not_supported(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / ("x" * 120)):
        with pytest.raises(NotSupportedError, match="start one with `runlist emulator`") as caught:
            EmulatedDriver(directory).open()
        assert "None" not in str(caught.value)


def test_no_driver_is_not_supported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(NvidiaDriver, "_PATH", tmp_path / "nvidiactl")
    with pytest.raises(NotSupportedError, match="load the driver, or use --device emulated"):
        NvidiaDriver().open()
    (tmp_path / "nvidiactl").mkdir()
    with pytest.raises(NotSupportedError, match="cannot be opened"):
        NvidiaDriver().open()
    (tmp_path / "nvidiactl").rename(tmp_path / "dxg")
    with pytest.raises(NotSupportedError, match="this is WSL, where Windows drives the GPU: use --device emulated"):
        NvidiaDriver().open()


def test_only_the_drivers_own_device_gets_its_ioctls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A launcher of another user may send any descriptor in place of a control file."""
    monkeypatch.setattr(NvidiaDriver, "_PATH", Path("/dev/null"))
    (tmp_path / "file").touch()
    for path in ("/dev/zero", tmp_path / "file", tmp_path):
        fd = os.open(path, os.O_RDONLY)
        assert NvidiaDriver().adopt(fd) is None
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
    fd = os.open("/dev/null", os.O_RDONLY)
    file = NvidiaDriver().adopt(fd)
    assert file is not None
    assert file.fileno() == fd
    file.close()


def test_control_files_are_what_a_process_has_open_of_the_drivers_device(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "nvidiactl").touch()
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(NvidiaDriver, "_PATH", tmp_path / "nvidiactl")
    fds = [os.open(tmp_path / name, os.O_RDONLY) for name in ("nvidiactl", "nvidia0", "nvidiactl")]
    assert sorted(NvidiaDriver().control_files(os.getpid())) == [fds[0], fds[2]]
    one, other = socket.socketpair()
    found = set(EmulatedDriver(tmp_path).control_files(os.getpid()))
    assert {one.fileno(), other.fileno()} <= found
    assert not found & set(fds)
    with pytest.raises(FileNotFoundError):
        list(NvidiaDriver().control_files(2**22 + 1))
    for fd in fds:
        os.close(fd)
    one.close()
    other.close()


def test_a_control_file_is_one_by_whatever_name_it_was_opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in a changed root, below which it has a longer one, or after udev has made it anew."""
    (tmp_path / "nvidiactl").symlink_to("/dev/null")
    (tmp_path / "regular").touch()
    monkeypatch.setattr(NvidiaDriver, "_PATH", tmp_path / "nvidiactl")
    fds = [os.open(path, os.O_RDONLY) for path in ("/dev/null", "/dev/zero", tmp_path, tmp_path / "regular")]
    fds += os.pipe()
    (tmp_path / "regular").unlink()
    try:
        assert set(NvidiaDriver().control_files(os.getpid())) & set(fds) == {fds[0]}
        (tmp_path / "nvidiactl").unlink()
        assert not set(NvidiaDriver().control_files(os.getpid())) & set(fds)
    finally:
        for fd in fds:
            os.close(fd)


def test_the_kernels_driver_needs_nothing_and_an_emulated_gpu_says_where_it_is() -> None:
    nvidia, emulated = NvidiaDriver(), EmulatedDriver(Path("/gpu"))
    assert (nvidia.environment(), nvidia.state_dir(), nvidia.nvml_library()) == ({}, None, None)
    assert emulated.state_dir() == NvidiaPlane(emulated).state_dir() == Path("/gpu")
    assert {path.parent for path in emulated.watch_paths()} == {Path("/gpu")}
    assert "/gpu" in emulated.environment().values()
    library = emulated.nvml_library()
    assert library is not None
    assert library.is_file()


def test_of_the_kernels_driver_all_devices_are_watched_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "nvidia-caps").mkdir()
    (tmp_path / "nvidiactl").symlink_to("/dev/null")
    (tmp_path / "nvidia0").symlink_to("/dev/zero")
    monkeypatch.setattr(transport, "Path", lambda name: tmp_path if name == "/dev" else Path(name))
    assert NvidiaDriver().watch_paths() == [tmp_path / "nvidia0", tmp_path / "nvidiactl"]


def test_where_the_driver_is_gone_nothing_is_its_control_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(NvidiaDriver, "_PATH", tmp_path / "nvidiactl")
    fd = os.open("/dev/null", os.O_RDONLY)
    assert NvidiaDriver().adopt(fd) is None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_only_connections_to_this_gpu_are_its_control_files(short_socket: Path) -> None:
    def adopt(fd: int) -> bool:
        file = EmulatedDriver(short_socket.parent).adopt(fd)
        if file is not None:
            file.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
        return file is not None

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(short_socket))
        listener.listen()
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connected.connect(str(short_socket))
        assert adopt(connected.detach())
        for kind in (socket.AF_UNIX, socket.AF_INET):
            assert not adopt(socket.socket(kind).detach())
        one, other = socket.socketpair()
        assert not adopt(one.detach())
        other.close()
        for path, flags in (("/dev/null", os.O_RDONLY), ("/", os.O_RDONLY), ("/dev/null", os.O_PATH)):
            assert not adopt(os.open(path, flags))  # the number has become another file's meanwhile
        link = short_socket.parent / "link"
        link.symlink_to(short_socket.parent)
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connected.connect(str(link / "nvidiactl"))
        assert adopt(connected.detach())


@pytest.fixture
def short_socket(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import tempfile

    return Path(tempfile.mkdtemp(prefix="rl-")) / "nvidiactl"


def test_an_ioctl_carries_its_size_and_the_address_of_its_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    import ctypes
    import fcntl

    seen: list[tuple[int, int]] = []

    def ioctl(fd: int, request: int, argument: bytearray, mutate: bool) -> int:
        assert mutate  # else the answer is in a copy
        (address,) = struct.unpack_from("<Q", argument, 16)
        seen.append((fd, request))
        assert ctypes.string_at(address, 8) == b"question"
        ctypes.memmove(address, b"answered", 8)
        return 0

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    monkeypatch.setattr(NvidiaDriver, "_PATH", Path("/dev/null"))
    file = NvidiaDriver().open()
    params = bytearray(b"question")
    file.call(0x2A, bytearray(32), params, 16)
    assert params == b"answered"
    assert seen == [(file.fileno(), 0xC020462A)]  # _IOWR('F', 0x2A, 32 bytes)
    file.close()


def test_a_prepared_ioctl_has_all_that_an_actuator_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NvidiaDriver, "_PATH", Path("/dev/null"))
    file = NvidiaDriver().open()
    argument = bytes(range(32))
    step = file.prepared(0x2A, argument, b"question", 16, 28)
    assert struct.unpack_from("<6I", step) == (Form.IOCTL, 0xC020462A, 32, 8, 16, 28)
    assert step[24:] == argument + b"question"
    file.close()


def test_memory_is_mapped_from_an_open_file_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import fcntl

    path = tmp_path / "nvidiactl"
    path.write_bytes(b"the log".ljust(4096, b"\0"))
    seen: list[bytes] = []

    def ioctl(fd: int, request: int, argument: bytearray, mutate: bool) -> int:
        assert mutate  # else the answer is in a copy
        (mapped,) = struct.unpack_from("<i", argument, 48)
        assert (request, mapped != fd) == (0xC038464E, True)  # _IOWR('F', 0x4E, 56 bytes)
        assert os.path.samestat(os.fstat(mapped), path.stat())
        seen.append(bytes(argument[:48]))
        struct.pack_into("<I", argument, 40, status)
        return 0

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    monkeypatch.setattr(NvidiaDriver, "_PATH", path)
    file = NvidiaDriver().open()
    before = os.listdir("/proc/self/fd")
    status = 0
    with file.map_memory(0xC1D00001, 0xA3, 4096) as memory:
        assert memory[:8] == b"the log\0"
        with pytest.raises(TypeError):
            memory[0] = 1
    assert seen == [struct.pack("<IIIxxxxQQQII", 0xC1D00001, 0xC1D00001, 0xA3, 0, 4096, 0, 0xFFFF, 1)]
    status = 0x57
    with pytest.raises(ObjectNotFound, match="RM_MAP_MEMORY"):
        file.map_memory(0xC1D00001, 0xA3, 4096)
    assert os.listdir("/proc/self/fd") == before
    file.close()


def test_gpus_are_attached_through_their_own_device_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import fcntl

    for name in ("nvidiactl", "nvidia0", "nvidia11", "nvidia-uvm", "nvidia-modeset"):
        (tmp_path / name).touch()
    (tmp_path / "nvidia2").mkdir()  # cannot be opened
    seen: list[tuple[str, int, int]] = []

    def ioctl(fd: int, request: int, argument: bytearray, mutate: bool) -> int:
        assert mutate  # else the answer is in a copy
        seen.append((Path(os.readlink(f"/proc/self/fd/{fd}")).name, request, struct.unpack("<i", argument)[0]))
        return 0

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    monkeypatch.setattr(NvidiaDriver, "_PATH", tmp_path / "nvidiactl")
    file = NvidiaDriver().open()
    opened = NvidiaDriver().attach_gpus(file)
    assert seen == [(name, 0xC00446C9, file.fileno()) for name in ("nvidia0", "nvidia11")]
    assert len(opened) == 2
    for fd in opened:
        os.close(fd)
    file.close()


@pytest.mark.parametrize("pid", [2**22 + 1, 0, -1, 2**31, 2**64])
def test_a_pid_that_cannot_be_is_no_target(pid: int) -> None:
    with pytest.raises(NoTargetError):
        borrow.open_process(pid)


def test_a_copy_is_the_same_open_file_and_not_inherited() -> None:
    pidfd = borrow.open_process(os.getpid())
    original = os.memfd_create("x")
    copy = borrow.borrow(pidfd, original)
    assert not os.get_inheritable(copy)
    assert borrow.still_has(os.getpid(), original, copy)
    other = os.memfd_create("x")
    assert not borrow.still_has(os.getpid(), other, copy)
    os.dup2(other, original)
    assert not borrow.still_has(os.getpid(), original, copy)
    os.close(original)
    assert not borrow.still_has(os.getpid(), original, copy)
    with pytest.raises(OSError, match="Bad file") as caught:
        borrow.borrow(pidfd, original)
    assert caught.value.errno == errno.EBADF
    for fd in (pidfd, copy, other):
        os.close(fd)


def test_a_file_that_was_opened_again_is_another_one(tmp_path: Path) -> None:
    """Only the kernel's comparison tells them apart: their device and inode are the same. So one whose process closed
    it and opened it again is not taken for the one that is managed.
    """
    (tmp_path / "file").touch()
    first, second = (os.open(tmp_path / "file", os.O_RDONLY) for _ in range(2))
    copy = os.dup(first)
    assert borrow.still_has(os.getpid(), first, copy)
    assert not borrow.still_has(os.getpid(), second, copy)
    for fd in (first, second, copy):
        os.close(fd)


@pytest.mark.parametrize("error", borrow.DENIED)
def test_where_files_may_not_be_compared_proc_tells_it(error: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: int) -> int:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(descriptors, "_syscall", denied)
    first, second = (os.memfd_create("x") for _ in range(2))
    copy = os.dup(first)
    assert borrow.still_has(os.getpid(), first, copy)
    assert not borrow.still_has(os.getpid(), second, copy)
    os.close(first)
    assert not borrow.still_has(os.getpid(), first, copy)
    for fd in (second, copy):
        os.close(fd)


def test_a_process_that_is_gone_holds_nothing() -> None:
    assert not borrow.still_has(2**22 + 1, 0, 0)


@given(st.integers(0, 0xFF), st.binary(min_size=1, max_size=64))
def test_answers_of_the_emulated_gpu_are_checked(error: int, tail: bytes) -> None:
    """Whatever comes back: the buffers keep their sizes, or there is an OSError."""
    from runlist.planes.nvidia.rm.transport import _DatagramFile

    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    file = _DatagramFile(here)
    file._theirs.send(struct.pack("<iIII", error, 32, 8, 0) + tail)
    argument, params = bytearray(32), bytearray(8)
    with contextlib.suppress(OSError):
        file.call(0x2A, argument, params, 16)
    assert (len(argument), len(params)) == (32, 8)
    file.close()
    there.close()


def test_an_emulated_gpu_that_went_away_is_told() -> None:
    peer = _Peer()
    peer.file._theirs.send(b"half")
    with pytest.raises(OSError, match="went away") as caught:
        peer.file.call(0x2A, bytearray(32), bytearray(8), 16)
    assert caught.value.errno == errno.EIO
    peer.answer(bytes(39), [])
    with pytest.raises(OSError, match="another version") as caught:
        peer.file.call(0x2A, bytearray(32), bytearray(8), 16)
    assert caught.value.errno == errno.EPROTO
    peer.answer(b"a" * 32 + b"b" * 8, [])
    argument, params = bytearray(32), bytearray(8)
    peer.file.call(0x2A, argument, params, 16)
    assert (argument, params) == (b"a" * 32, b"b" * 8)
    peer.close()


class _Peer:
    """The emulated GPU's side of one connection, answering what the test says."""

    def __init__(self) -> None:
        from runlist.planes.nvidia.rm.transport import _DatagramFile

        here, self._there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.file = _DatagramFile(here)

    def answer(self, body: bytes, fds: list[int], error: int = 0) -> None:
        socket.send_fds(self.file._theirs, [struct.pack("<iIII", error, len(body), 0, 0) + body], fds)

    def close(self) -> None:
        self.file.close()
        self._there.close()


def _mapped(status: int) -> bytes:
    return struct.pack("<IIIxxxxQQQIIixxxx", 1, 1, 2, 0, 4096, 0, status, 1, -1)


def test_an_emulated_gpu_hands_out_its_memory() -> None:
    peer = _Peer()
    memory = os.memfd_create("log")
    os.write(memory, b"the log".ljust(4096, b"\0"))
    before = len(os.listdir("/proc/self/fd"))
    peer.answer(_mapped(0), [memory])
    with peer.file.map_memory(1, 2, 4096) as mapped:
        assert mapped[:7] == b"the log"
        os.pwrite(memory, b"THE", 0)
        assert mapped[:7] == b"THE log"
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(memory)
    peer.close()


@pytest.mark.parametrize(
    ("size", "status", "error", "expected"),
    [
        (4096, 0x57, 0, ObjectNotFound),
        (None, 0, 0, OSError),  # no descriptor
        (100, 0, 0, OSError),  # a file shorter than what was asked for
        (4096, 0, errno.EINVAL, OSError),
    ],
)
def test_a_mapping_that_fails_leaves_nothing_open(
    size: int | None, status: int, error: int, expected: type[Exception]
) -> None:
    peer = _Peer()
    memory = os.memfd_create("log")
    os.truncate(memory, size or 0)
    before = len(os.listdir("/proc/self/fd"))
    peer.answer(_mapped(status), [] if size is None else [memory], error)
    with pytest.raises(expected):
        peer.file.map_memory(1, 2, 4096)
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(memory)
    peer.close()
