"""A client of the emulated driver that shares nothing with runlist.planes.nvidia.rm: plain sockets and struct.

The emulated device is checked against this, so that a mistake made in both places of the package would still show.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from runlist.emulated import EmulatedGpu

MAGIC = 0x314C4E52
FREE, CONTROL, ALLOC, MAP = 0x29, 0x2A, 0x2B, 0x4E

OK, NO_PERMISSION, BAD_ARGUMENT, BAD_CLIENT, NOT_SUPPORTED, NOT_FOUND = 0x00, 0x1B, 0x1F, 0x23, 0x56, 0x57
DUPLICATE, NO_RESOURCES, BAD_CLASS, BAD_LIMIT, BAD_OBJECT, NO_MEMORY = 0x19, 0x1A, 0x22, 0x2E, 0x33, 0x51

CLIENT_BASE, OBJECT_BASE = 0xC1D00000, 0x5C000000
ROOT, DEVICE, SUBDEVICE, GROUP, CHANNEL = 0x41, 0x80, 0x2080, 0xA06C, 0xC86F
DEVICE_MEMORY = 0x40
EVENT_BUFFER, MEMORY = 0x90CD, 0x90CE
ATTACHED_IDS, HANDLE_INFO, CHILD_HANDLE = 0x201, 0xD02, 0xD05
SET_SLICE, GET_SLICE, INTERLEAVE, REALTIME = 0xA06C0103, 0xA06C0104, 0xA06C0107, 0xA06C0110
PREEMPT, DISABLE_CHANNELS, GID_INFO = 0xA06C0105, 0x2080110B, 0x2080014A
GET_TIME, BIND, ENABLE, FLUSH = 0x20800403, 0x20801238, 0x90CD0101, 0x90CD0104
START, END = 6, 7
KEEP_NEWEST = 2

_libc = ctypes.CDLL(None, use_errno=True)


def ioctl(fd: int, nr: int, argument: bytes, parameters: bytes = b"") -> tuple[int, bytes, bytes]:
    """One ioctl on an open file: errno, argument and parameters as they come back."""
    error, argument, parameters, descriptors = ioctl_with_descriptors(fd, nr, argument, parameters)
    assert not descriptors
    return error, argument, parameters


def ioctl_with_descriptors(
    fd: int, nr: int, argument: bytes, parameters: bytes = b""
) -> tuple[int, bytes, bytes, list[int]]:
    """The same, and the descriptors that came with the answer."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with mine, theirs, socket.socket(fileno=os.dup(fd)) as control:
        header = struct.pack("<IIII", MAGIC, nr, len(argument), len(parameters))
        socket.send_fds(control, [header + argument + parameters], [theirs.fileno()])
        theirs.close()
        mine.settimeout(60)
        reply, descriptors, _, _ = socket.recv_fds(mine, 1 << 17, 4)
    error, argument_size, _, _ = struct.unpack_from("<iIII", reply)
    return error, reply[16 : 16 + argument_size], reply[16 + argument_size :], descriptors


def control(fd: int, client: int, handle: int, command: int, parameters: bytes) -> tuple[int, bytes]:
    """One control: its status, and the parameters as they come back."""
    argument = struct.pack("<IIIIQII", client, handle, command, 0, 0, len(parameters), 0xFFFF)
    error, argument, parameters = ioctl(fd, CONTROL, argument, parameters)
    assert error == 0
    return struct.unpack("<IIIIQII", argument)[6], parameters


def open_file(directory: Path) -> socket.socket:
    """An open file of nvidiactl."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(str(directory / "nvidiactl"))
    return connection


def own_client(fd: int) -> int:
    """Allocates an RM client on an open file."""
    error, argument, _ = ioctl(fd, ALLOC, struct.pack("<IIIIQII", 0, 0, 0, ROOT, 0, 0, 0xFFFF))
    values = struct.unpack("<IIIIQII", argument)
    assert (error, values[6]) == (0, OK)
    return int(values[2])


def allocate(fd: int, client: int, parent: int, handle: int, cls: int, parameters: bytes = b"") -> int:
    """Allocates an object; the status."""
    argument = struct.pack("<IIIIQII", client, parent, handle, cls, 0, len(parameters), 0xFFFF)
    error, argument, _ = ioctl(fd, ALLOC, argument, parameters)
    assert error == 0
    return int(struct.unpack("<IIIIQII", argument)[6])


def free(fd: int, client: int, handle: int) -> int:
    """Frees an object; the status."""
    error, argument, _ = ioctl(fd, FREE, struct.pack("<IIII", client, 0, handle, 0xFFFF))
    assert error == 0
    return int(struct.unpack("<IIII", argument)[3])


def memory_parameters(size: int, read_only: bool = True) -> bytes:
    """Of a memory of an event buffer: cached, and written by the driver alone."""
    return struct.pack("<24xII32xQ56x", 1 << 29, read_only << 22, size)


def take_device_memory(fd: int, client: int, device: int, handle: int, size: int) -> tuple[int, int, int]:
    """Allocates memory of the card: the status, the bytes that came, and where they are."""
    parameters = struct.pack("<64xQ56x", size)
    argument = struct.pack("<IIIIQQIIII", client, device, handle, DEVICE_MEMORY, 0, 0, len(parameters), 0, 0xFFFF, 0)
    error, argument, parameters = ioctl(fd, ALLOC, argument, parameters)
    assert error == 0
    came, _, offset = struct.unpack_from("<QQQ", parameters, 64)
    return struct.unpack("<IIIIQQIIII", argument)[8], came, offset


def event_buffer_parameters(subdevice: int, header: int, records: int, count: int, record_size: int = 32) -> bytes:
    return struct.pack("<QQIIQIIQIIIIII", 0, 0, record_size, count, 0, 0, 0, 0, 0, subdevice, 0, header, records, 0)


def map_memory(
    fd: int, client: int, memory: int, length: int, offset: int = 0, flags: int = 1, device: int | None = None
) -> tuple[int, list[int]]:
    """Asks for a mapping: the status, and the descriptor that can be mapped."""
    device = client if device is None else device
    argument = struct.pack("<III4xQQQIIi4x", client, device, memory, offset, length, 0, 0xFFFF, flags, -1)
    error, argument, _, descriptors = ioctl_with_descriptors(fd, MAP, argument)
    assert error == 0
    return int(struct.unpack("<III4xQQQIIi4x", argument)[6]), descriptors


def bind_parameters(event_buffer: int, record_size: int = 32, all_users: bool = True) -> bytes:
    return struct.pack("<IIII?3xI", event_buffer, record_size, 1, 0, all_users, 0xFFFF)


class Record(NamedTuple):
    """One record of the context-switch log. `time` in ns of CLOCK_REALTIME."""

    tag: int
    sequence: int
    context: int
    pid: int
    time: int


class SwitchLog:
    """A reader of a GPU's context-switch log, on an open file of its own, which may be given."""

    DEVICE, SUBDEVICE, HEADER, RING, BUFFER = range(0xA0000001, 0xA0000006)

    def __init__(self, where: Path | socket.socket, gpu: int = 0, count: int = 16384, all_users: bool = True) -> None:
        self.file = open_file(where) if isinstance(where, Path) else where
        self.fd = self.file.fileno()
        self.client = own_client(self.fd)
        self.count = count
        self.allocate(self.client, self.DEVICE, DEVICE, struct.pack("<II48x", gpu, self.client))
        self.allocate(self.DEVICE, self.SUBDEVICE, SUBDEVICE, struct.pack("<I", 0))
        for handle, size in ((self.HEADER, 4096), (self.RING, count * 32)):
            self.allocate(self.client, handle, MEMORY, memory_parameters(size))
        parameters = event_buffer_parameters(self.SUBDEVICE, self.HEADER, self.RING, count)
        self.allocate(self.client, self.BUFFER, EVENT_BUFFER, parameters)
        self.header, self.ring = self.map(self.HEADER, 4096), self.map(self.RING, count * 32)
        assert self.control(self.SUBDEVICE, BIND, bind_parameters(self.BUFFER, all_users=all_users))[0] == OK
        self.enable(True)
        self.get = self.put

    def allocate(self, parent: int, handle: int, cls: int, parameters: bytes) -> None:
        assert allocate(self.fd, self.client, parent, handle, cls, parameters) == OK

    def map(self, memory: int, length: int) -> mmap.mmap:
        status, (descriptor,) = map_memory(self.fd, self.client, memory, length)
        assert status == OK
        try:
            return mmap.mmap(descriptor, length, mmap.MAP_SHARED, mmap.PROT_READ)
        finally:
            os.close(descriptor)

    def control(self, handle: int, command: int, parameters: bytes = b"") -> tuple[int, bytes]:
        return control(self.fd, self.client, handle, command, parameters)

    def enable(self, enabled: bool) -> None:
        assert self.control(self.BUFFER, ENABLE, struct.pack("<?3xI", enabled, KEEP_NEWEST))[0] == OK

    @property
    def put(self) -> int:
        """Index of the record that is written next."""
        return int(struct.unpack_from("<II", self.header)[1])

    def flush(self) -> None:
        assert self.control(self.BUFFER, FLUSH)[0] == OK

    def record(self, index: int) -> Record:
        kind, _, _, tag, _, sequence, context, pid, _, gi, ci, at = struct.unpack_from(
            "<HHIBBHIIHBBQ", self.ring, index * 32
        )
        assert (kind, gi, ci) == (2, 255, 255)
        return Record(tag, sequence, context, pid, at)

    def take(self) -> list[Record]:
        """What was written since the last call, without a flush."""
        put, records = self.put, []
        while self.get != put:
            records.append(self.record(self.get))
            self.get = (self.get + 1) % self.count
        return records

    def read(self) -> list[Record]:
        """What has happened since the last call."""
        self.flush()
        return self.take()

    def wait(self, number: int, seconds: float = 10.0) -> list[Record]:
        """Reads until there are so many records."""
        records, deadline = self.read(), time.monotonic() + seconds
        while len(records) < number and time.monotonic() < deadline:
            time.sleep(0.002)
            records += self.read()
        return records

    def close(self) -> None:
        self.header.close()
        self.ring.close()
        self.file.close()


def borrow(pid: int) -> int:
    """A copy of a process's descriptor of nvidiactl."""
    pidfd = os.pidfd_open(pid)
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            if not os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:"):
                continue
            copy = int(_libc.syscall(438, pidfd, int(name), 0))
            with socket.socket(fileno=os.dup(copy)) as peer:
                try:
                    if str(peer.getpeername()).endswith("nvidiactl"):
                        return copy
                except OSError:
                    pass
            os.close(copy)
    finally:
        os.close(pidfd)
    raise AssertionError(f"process {pid} has no open file of nvidiactl")


class Target:
    """A process seen through a copy of its open file."""

    def __init__(self, pid: int, span: int = 0x400, base: int = OBJECT_BASE) -> None:
        self.fd = borrow(pid)
        self.client = next(c for c in range(CLIENT_BASE, CLIENT_BASE + 4096) if self._class_of(c, c) is not None)
        self.classes = {h: c for h in range(base, base + span) if (c := self._class_of(self.client, h)) is not None}

    def _class_of(self, client: int, handle: int) -> int | None:
        status, out = control(self.fd, client, client, HANDLE_INFO, struct.pack("<IIQ", handle, 2, 0))
        return struct.unpack("<IIQ", out)[2] if status == OK else None

    def handles(self, cls: int) -> list[int]:
        return [handle for handle, other in self.classes.items() if other == cls]

    def parent(self, handle: int) -> int:
        status, out = control(self.fd, self.client, self.client, HANDLE_INFO, struct.pack("<IIQ", handle, 1, 0))
        assert status == OK
        return int(struct.unpack("<IIQ", out)[2])

    def control(self, handle: int, command: int, parameters: bytes) -> tuple[int, bytes]:
        return control(self.fd, self.client, handle, command, parameters)

    def set_slice(self, microseconds: int) -> None:
        assert self.control(self.handles(GROUP)[0], SET_SLICE, struct.pack("<Q", microseconds))[0] == OK

    def preempt(self) -> None:
        assert self.control(self.handles(GROUP)[0], PREEMPT, struct.pack("<BB2xI", 1, 0, 0))[0] == OK

    def enable(self, enabled: bool) -> None:
        """Suspends or resumes the process: all channels of all groups."""
        channels = self.handles(CHANNEL)
        padding = [0] * (64 - len(channels))
        parameters = struct.pack("<B3xIBB6xQ", not enabled, len(channels), 0, 0, 0)
        parameters += struct.pack("<64I64I", *[self.client] * len(channels), *padding, *channels, *padding)
        assert self.control(self.handles(SUBDEVICE)[0], DISABLE_CHANNELS, parameters)[0] == OK

    def close(self) -> None:
        os.close(self.fd)


PRELUDE = """
import ctypes, os, struct, sys, time
from cuda.bindings import driver as cu
from runlist import workloads
PTX = open(os.path.join(os.path.dirname(workloads.__file__), "kernels.autogen.ptx"), "rb").read() + b"\\0"
U64, U32 = ctypes.c_uint64, ctypes.c_uint32
def ok(result):
    assert int(result[0]) == 0, result[0]
    return result[1] if len(result) == 2 else result[1:]
def code(result):
    return int(result[0])
def begin(gpu=0):
    ok(cu.cuInit(0))
    context = ok(cu.cuDevicePrimaryCtxRetain(ok(cu.cuDeviceGet(gpu))))
    ok(cu.cuCtxSetCurrent(context))
    return ok(cu.cuModuleLoadData(PTX))
def kernel(module, name):
    return ok(cu.cuModuleGetFunction(module, name))
def launch(function, grid, block, types, *values, stream=0):
    grid, block = (*grid, 1, 1)[:3], (*block, 1, 1)[:3]
    ok(cu.cuLaunchKernel(function, *grid, *block, 0, stream, (values, types), 0))
def alloc(size):
    return int(ok(cu.cuMemAlloc(size)))
def put(address, data):
    ok(cu.cuMemcpyHtoD(address, data, len(data)))
def get(address, size):
    data = bytearray(size)
    ok(cu.cuMemcpyDtoH(data, address, size))
    return bytes(data)
def lcg(x, rounds):
    for _ in range(rounds):
        x = (x * 1664525 + 1013904223) & 0xFFFFFFFF
    return x
def say(*words):
    print(*words, flush=True)
"""


def run(env: dict[str, str], program: str, timeout: float = 60) -> list[str]:
    """Runs a program that uses the GPU; its lines."""
    result = subprocess.run(
        [sys.executable, "-c", PRELUDE + program], env=env, capture_output=True, text=True, timeout=timeout
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


class Running:
    """A program in the background. Lines go both ways."""

    def __init__(self, env: dict[str, str], program: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + program], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    @property
    def answered(self) -> bool:
        """Whether a line, or the end, is there to be read."""
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def pending(self) -> bytes:
        """What it has printed since, as far as it is here already. `line` cannot be used after this."""
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        os.set_blocking(descriptor, False)
        try:
            return os.read(descriptor, 1 << 20)
        except BlockingIOError:
            return b""

    def tell(self, line: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def job(program: str, gpu: EmulatedGpu, **more: str) -> Iterator[Running]:
    """A program on an emulated GPU, which has printed `ready`; `more` is added to its environment."""
    running = Running({**os.environ, **gpu.environment(), **more}, program)
    try:
        assert running.line() == "ready"
        yield running
    finally:
        running.end()
