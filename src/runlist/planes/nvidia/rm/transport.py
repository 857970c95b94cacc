"""How an RM call reaches a driver: an ioctl on /dev/nvidiactl, or a datagram to the emulated GPU.

Everything above this module is the same for both. A `Driver` is chosen by name, never silently.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import socket
import stat
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from runlist.errors import NotSupportedError, UsageError
from runlist.planes.nvidia.rm import status
from runlist.planes.nvidia.rm.commands import NVOS33_MAP_MEMORY, REGISTER_FD
from runlist.proc import descriptors
from runlist.proc.inode import inode
from runlist.protocol import actuator_autogen, emulator_autogen, rm_autogen
from runlist.protocol import environment_autogen as names
from runlist.protocol.actuator_autogen import Form
from runlist.protocol.rm_autogen import MAP_READ_ONLY, Ioctl
from runlist.structure import Structure

if TYPE_CHECKING:
    from runlist.planes.interface import DriverFiles

_STEP = Structure(actuator_autogen.STRUCTS["STEP"])
_REQUESTS = (3 << 30) | (rm_autogen.MAGIC << 8)  # _IOWR('F', number, argument)


class OpenFile(Protocol):
    """One open control file of a driver, ours or a copy of another process'. RM checks client handles against it."""

    def fileno(self) -> int:
        """The descriptor, for passing on."""

    def call(self, number: int, argument: bytearray, params: bytearray, params_field: int) -> None:
        """Make one call; both buffers are updated in place. `params_field` is the offset of the pointer to `params` in
        `argument`. Raises OSError when the kernel, not RM, refuses.
        """

    def prepared(self, number: int, argument: bytes, params: bytes, params_field: int, status_field: int) -> bytes:
        """The same call as one step for an actuator, as protocol/actuator.toml has it; `status_field` is the offset of
        RM's status in `argument`.
        """

    def map_memory(self, client: int, memory: int, size: int) -> mmap.mmap:
        """Map a memory of one of the file's clients, for reading. `size` in bytes. Raises RmError, or OSError as `call`
        does.
        """

    def close(self) -> None:
        """Close the descriptor; RM frees the clients of a file when its last copy is closed."""


class Driver(Protocol):
    """A driver that can be reached: the kernel's, or an emulated GPU."""

    name: str

    def open(self) -> OpenFile:
        """Open a control file of our own. Raises NotSupportedError when there is no driver."""

    def attach_gpus(self, file: OpenFile) -> list[int]:
        """Have RM attach every GPU that we may use, for as long as the returned descriptors are open."""

    def control_files(self, pid: int) -> Iterator[int]:
        """Numbers of the descriptors of `pid` that may be control files. Raises OSError as /proc does."""

    def files_of_requests(self) -> DriverFiles | None:
        """The files by which requests reach it, so that the kernel plane sees them; None where it sees none."""

    def control_files_behind(self, pid: int, fd: int, *, few: bool = False) -> Iterator[int]:
        """Numbers of the descriptors of `pid` that may be the control file on which the kernel saw requests to `fd`;
        none where `fd` is another file. With `few` only the tables of its first threads are looked at. Raises OSError
        as /proc does.
        """

    def adopt(self, fd: int) -> OpenFile | None:
        """Take over a copied descriptor; close it and return None where it is no control file of this driver."""

    def watch_paths(self) -> list[Path]:
        """Files whose opening means that some process may be making a context."""

    def state_dir(self) -> Path | None:
        """Where this driver's daemon keeps its socket, when not in the usual place."""

    def environment(self) -> dict[str, str]:
        """Variables that a program needs to reach it."""

    def nvml_library(self) -> Path | None:
        """Its own NVML, if it has one: nvidia-ml-py uses the one that is loaded first."""


class NvidiaDriver:
    """The kernel driver, through /dev/nvidiactl."""

    name = names.DEFAULT_DEVICE
    _PATH = Path("/dev/nvidiactl")

    def open(self) -> OpenFile:
        try:
            return _IoctlFile(os.open(self._PATH, os.O_RDWR | os.O_CLOEXEC), self._PATH)
        except FileNotFoundError:
            advice = "load the driver, or use --device emulated"
            if self._PATH.with_name("dxg").exists():
                advice = "this is WSL, where Windows drives the GPU: use --device emulated"
            raise NotSupportedError(f"no NVIDIA driver here (/dev/nvidiactl is missing): {advice}") from None
        except OSError as error:
            raise NotSupportedError(
                f"/dev/nvidiactl cannot be opened ({error.strerror}): check its permissions"
            ) from None

    def attach_gpus(self, file: OpenFile) -> list[int]:
        opened = []
        for path in sorted(self._PATH.parent.glob("nvidia[0-9]*")):
            with contextlib.suppress(OSError):  # a container may not have the right to every GPU that it sees
                opened.append(os.open(path, os.O_RDWR | os.O_CLOEXEC))
                _ioctl(opened[-1], Ioctl.REGISTER_FD, REGISTER_FD.pack(control_fd=file.fileno()))
        return opened

    def control_files(self, pid: int) -> Iterator[int]:
        # By its device, as it may have any name: below a changed root, mounted at another place, or made anew by udev.
        device = None
        with contextlib.suppress(OSError):
            device = self._PATH.stat().st_rdev
        for fd, target in descriptors.numbers(pid):
            if target == str(self._PATH) or (target.startswith("/") and _is_device(pid, fd, device)):
                yield fd

    def files_of_requests(self) -> DriverFiles | None:
        from runlist.planes.interface import DriverFiles

        try:
            return DriverFiles(major=os.major(self._PATH.stat().st_rdev))
        except OSError:
            return DriverFiles()

    def control_files_behind(self, pid: int, fd: int, *, few: bool = False) -> Iterator[int]:
        wanted = self._PATH.stat().st_rdev
        for each in descriptors.everywhere(pid, fd, few=few):
            if _is_device(pid, each, wanted):
                yield each

    def adopt(self, fd: int) -> OpenFile | None:
        # A launcher of another user may hand us any file: only the driver's own may get our ioctls.
        found = os.fstat(fd)
        with contextlib.suppress(OSError):  # the driver is gone
            if stat.S_ISCHR(found.st_mode) and found.st_rdev == self._PATH.stat().st_rdev:
                return _IoctlFile(fd, self._PATH)
        os.close(fd)
        return None

    def watch_paths(self) -> list[Path]:
        return [path for path in sorted(Path("/dev").glob("nvidia*")) if stat.S_ISCHR(path.stat().st_mode)]

    def state_dir(self) -> Path | None:
        return None

    def environment(self) -> dict[str, str]:
        return {}

    def nvml_library(self) -> Path | None:
        return None


def _is_device(pid: int, fd: int, device: int | None) -> bool:
    """Whether what a process has open is this device. Whoever serves a file is not asked."""
    try:
        found = inode(descriptors.path(pid, fd))
    except OSError:  # closed meanwhile, or not in this table
        return False
    return stat.S_ISCHR(found.mode) and found.rdev == device


class EmulatedDriver:
    """An emulated GPU, through its sockets in a directory."""

    name = names.EMULATED

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._socket = str(directory / emulator_autogen.CONTROL_SOCKET)
        twin = os.environ.get(names.EMULATED_TWIN)
        self._twin = Path(twin) if twin else None  # the kernel sees requests on it, and none on our sockets

    def open(self) -> OpenFile:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            connection.connect(self._socket)
        except OSError as error:
            connection.close()
            raise NotSupportedError(
                f"no emulated GPU runs in {self.directory} ({error.strerror or error}): "
                "start one with `runlist emulator`"
            ) from None
        return _DatagramFile(connection)

    def attach_gpus(self, file: OpenFile) -> list[int]:
        del file
        return []  # emulated GPUs always are

    def control_files(self, pid: int) -> Iterator[int]:
        for fd, target in descriptors.numbers(pid):
            if target.startswith("socket:"):
                yield fd

    def files_of_requests(self) -> DriverFiles | None:
        from runlist.planes.interface import DriverFiles

        if self._twin is None:
            return None
        try:
            found = inode(self._twin)
        except OSError:
            return DriverFiles()
        return DriverFiles(device=found.dev, inode=found.ino)

    def control_files_behind(self, pid: int, fd: int, *, few: bool = False) -> Iterator[int]:
        if self._twin is not None:
            wanted = inode(self._twin)
            for each in descriptors.everywhere(pid, fd, few=few):
                with contextlib.suppress(FileNotFoundError):
                    if inode(descriptors.path(pid, each)) == wanted:
                        yield from self.control_files(pid)
                        return

    def adopt(self, fd: int) -> OpenFile | None:
        try:
            connection = socket.socket(fileno=fd)
        except OSError:  # no socket: the number was another file's before it was copied
            os.close(fd)
            return None
        try:
            if connection.family == socket.AF_UNIX and os.path.samefile(connection.getpeername(), self._socket):
                return _DatagramFile(connection)
        except (OSError, ValueError):  # not connected, or to something that is no file
            pass
        connection.close()
        return None

    def watch_paths(self) -> list[Path]:
        return [self.directory / emulator_autogen.OPENED_FILE]

    def state_dir(self) -> Path | None:
        return self.directory

    def environment(self) -> dict[str, str]:
        from runlist.emulated import environment

        return environment(self.directory)

    def nvml_library(self) -> Path | None:
        from runlist.emulated import artefacts

        return artefacts() / "libnvidia-ml.so.1"


def choose_driver(device: str | None = None) -> NvidiaDriver | EmulatedDriver:
    """The driver named by `device`, or by RUNLIST_DEVICE, or the kernel's. Raises UsageError for a bad name."""
    name = device or os.environ.get(names.DEVICE) or names.DEFAULT_DEVICE
    if name == names.DEFAULT_DEVICE:
        return NvidiaDriver()
    if name == names.EMULATED:
        directory = os.environ.get(names.EMULATED_GPU)
        if not directory:
            raise UsageError(
                f"--device emulated needs a running emulated GPU ({names.EMULATED_GPU} is not set): "
                "start one with `runlist emulator`"
            )
        return EmulatedDriver(Path(directory).absolute())
    raise UsageError(f"no device {name!r}: take nvidia or emulated")


def _address(buffer: bytearray) -> int:
    return ctypes.addressof((ctypes.c_char * len(buffer)).from_buffer(buffer)) if buffer else 0


def _request(number: int, size: int) -> int:
    return _REQUESTS | size << 16 | number


def _ioctl(fd: int, number: int, argument: bytearray) -> None:
    fcntl.ioctl(fd, _request(number, len(argument)), argument, True)


def _map_argument(client: int, memory: int, size: int, fd: int) -> bytearray:
    return NVOS33_MAP_MEMORY.pack(
        client=client,
        device=client,
        memory=memory,
        length=size,
        status=rm_autogen.Status.UNSET,
        flags=MAP_READ_ONLY,
        fd=fd,
    )


def _check_map(argument: bytearray) -> None:
    status.check(int(NVOS33_MAP_MEMORY.unpack(argument)["status"]), "RM_MAP_MEMORY")  # type: ignore[arg-type]


class _IoctlFile:
    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self._path = path

    def fileno(self) -> int:
        return self._fd

    def call(self, number: int, argument: bytearray, params: bytearray, params_field: int) -> None:
        if params:
            struct.pack_into("<Q", argument, params_field, _address(params))
        fcntl.ioctl(self._fd, _REQUESTS | len(argument) << 16 | number, argument, True)

    def prepared(self, number: int, argument: bytes, params: bytes, params_field: int, status_field: int) -> bytes:
        head = _STEP.pack(
            form=Form.IOCTL,
            request=_request(number, len(argument)),
            argument_bytes=len(argument),
            params_bytes=len(params),
            pointer_at=params_field,
            status_at=status_field,
        )
        return bytes(head + argument + params)

    def map_memory(self, client: int, memory: int, size: int) -> mmap.mmap:
        fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)  # an open file carries one mapping
        try:
            argument = _map_argument(client, memory, size, fd)
            _ioctl(self._fd, Ioctl.RM_MAP_MEMORY, argument)
            _check_map(argument)
            return mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ)
        finally:
            os.close(fd)

    def close(self) -> None:
        os.close(self._fd)


class _DatagramFile:
    """Requests travel on the (possibly shared) connection, each with a socket of our own for its answer."""

    _REQUEST = Structure(emulator_autogen.STRUCTS["RM_REQUEST"])
    _REPLY = Structure(emulator_autogen.STRUCTS["RM_REPLY"])
    _PATIENCE_S = 10.0

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._mine, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._mine.settimeout(self._PATIENCE_S)
        self._one_at_a_time = threading.Lock()  # answers carry no number

    def fileno(self) -> int:
        return self._connection.fileno()

    def call(self, number: int, argument: bytearray, params: bytearray, params_field: int) -> None:
        del params_field  # the parameters travel in the datagram
        self._exchange(number, argument, params)

    def prepared(self, number: int, argument: bytes, params: bytes, params_field: int, status_field: int) -> bytes:
        del params_field
        whole = self._head(number, argument, params) + argument
        head = _STEP.pack(
            form=Form.DATAGRAM,
            request=self._REPLY.offsets["error"],
            argument_bytes=len(whole),
            params_bytes=len(params),
            status_at=self._REPLY.size + status_field,
        )
        return bytes(head + whole + params)

    def map_memory(self, client: int, memory: int, size: int) -> mmap.mmap:
        argument = _map_argument(client, memory, size, -1)
        fds = self._exchange(Ioctl.RM_MAP_MEMORY, argument, bytearray(), descriptors=1)
        try:
            _check_map(argument)
            if not fds:
                raise OSError(errno.EPROTO, "the emulated GPU is of another version")
            return mmap.mmap(fds[0], size, mmap.MAP_SHARED, mmap.PROT_READ)
        except ValueError:  # a file shorter than `size`
            raise OSError(errno.EPROTO, "the emulated GPU mapped less than was asked for") from None
        finally:
            for fd in fds:
                os.close(fd)

    def _exchange(self, number: int, argument: bytearray, params: bytearray, descriptors: int = 0) -> list[int]:
        """One request and its answer; returns the descriptors, up to so many, that came with the answer."""
        head = self._head(number, argument, params)
        size = self._REPLY.size + len(argument) + len(params)
        with self._one_at_a_time:
            socket.send_fds(self._connection, [head + argument + params], [self._theirs.fileno()], socket.MSG_NOSIGNAL)
            if descriptors:
                answer, fds, _, _ = socket.recv_fds(self._mine, size, descriptors)
            else:
                answer, fds = self._mine.recv(size), []
        try:
            self._take(answer, argument, params)
        except OSError:
            for fd in fds:
                os.close(fd)
            raise
        return fds

    def _head(self, number: int, argument: bytes | bytearray, params: bytes | bytearray) -> bytearray:
        return self._REQUEST.pack(
            magic=emulator_autogen.RM_MAGIC, number=number, argument_size=len(argument), params_size=len(params)
        )

    def _take(self, answer: bytes, argument: bytearray, params: bytearray) -> None:
        """Put an answer's parts in their places."""
        if len(answer) < self._REPLY.size:
            raise OSError(errno.EIO, "the emulated GPU went away")
        error = self._REPLY.unpack(answer[: self._REPLY.size])["error"]
        if error:
            raise OSError(error, os.strerror(int(error)))  # type: ignore[arg-type]
        body = answer[self._REPLY.size :]
        if len(body) != len(argument) + len(params):
            raise OSError(errno.EPROTO, "the emulated GPU is of another version")
        argument[:] = body[: len(argument)]
        params[:] = body[len(argument) :]

    def close(self) -> None:
        self._connection.close()
        self._mine.close()
        self._theirs.close()
