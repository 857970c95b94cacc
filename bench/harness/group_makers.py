"""Processes that make channel groups, as a driver's programs ask for them, while others of them fork and are killed.

Each says on a pipe which groups it made, after the driver had answered. What the kernel's programs told is compared
with that: how many were captured, and for how many the right process and user were named.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from runlist.planes.kernel.events import Event
from runlist.protocol.kernel_autogen import Kind, What

_ALLOC, _GROUP, _CHANNEL = 0x2B, 0xA06C, 0xC86F
_SAID = struct.Struct("<IIII")
_BASE = 0x5C000000
_CLIENTS = 0xC1D00000
PER_CHILD = 20
_SETTLE_S = 0.5
_USER = 60_000


@dataclass(frozen=True)
class Outcome:
    """How many groups were made, were told, and were told with the right process, thread and user; of dead, too."""

    made: int
    captured: int
    attributed: int
    processes: int
    killed: int
    seconds: float


def request(fd: int, client: int, parent: int, new: int, class_: int) -> None:
    """One allocation."""
    argument = bytearray(struct.pack("<IIIIQQIII4x", client, parent, new, class_, 0, 0, 0, 0, 0))
    fcntl.ioctl(fd, 3 << 30 | len(argument) << 16 | ord("F") << 8 | _ALLOC, argument, True)


def make_groups(path: Path, take: Callable[[], Sequence[Event]], *, processes: int, groups: int) -> Outcome:
    """Have so many processes at a time make so many groups on the file, in children that come and go; every fourth
    child is killed once it has made its groups, and every third forks and makes half of them in its own child.
    """
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    began = time.monotonic()
    told: list[Event] = []
    said = bytearray()
    alive: set[int] = set()
    children = groups // PER_CHILD
    started = killed = 0
    while started < children or alive:
        while started < children and len(alive) < processes:
            alive.add(_start(path, writer, started))
            killed += started % 4 == 0
            started += 1
        told += take()
        said += _read(reader)
        pid, _ = os.waitpid(-1, os.WNOHANG)
        alive.discard(pid)
        if pid == 0:
            time.sleep(0.0005)
    until = time.monotonic() + _SETTLE_S
    while time.monotonic() < until:  # grandchildren that were left behind
        said += _read(reader)
        if got := take():
            told += got
            until = time.monotonic() + _SETTLE_S
    os.close(reader)
    os.close(writer)
    made = set(_SAID.iter_unpack(bytes(said)))
    seen = {
        (event.pid, event.uid, event.client, event.object)
        for event in told
        if event.what is What.MADE and event.kind is Kind.GROUP
    }
    objects = {(client, handle) for _, _, client, handle in seen}
    captured = sum((client, handle) in objects for _, _, client, handle in made)
    return Outcome(len(made), captured, len(made & seen), started, killed, time.monotonic() - began)


def _read(pipe: int) -> bytes:
    try:
        return os.read(pipe, 1 << 16)
    except BlockingIOError:
        return b""


def _start(path: Path, writer: int, index: int) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            _child(path, writer, index)
        finally:
            os._exit(0)
    return pid


def _child(path: Path, writer: int, index: int) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    uid = _USER + index % 100
    os.setresuid(uid, uid, uid)
    client = _CLIENTS + index
    half = PER_CHILD // 2 if index % 3 == 0 else PER_CHILD
    _make(fd, writer, client, range(half))
    if half < PER_CHILD:
        child = os.fork()
        if child == 0:
            _make(fd, writer, client, range(half, PER_CHILD))  # on its parent's file, for its parent's client
            os._exit(0)
        os.waitpid(child, 0)
    if index % 4 == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def _make(fd: int, writer: int, client: int, numbers: range) -> None:
    for at in numbers:
        handle = _BASE + at * 16
        request(fd, client, _BASE + 2, handle, _GROUP)
        request(fd, client, handle, handle + 1, _CHANNEL)
        os.write(writer, _SAID.pack(os.getpid(), os.getuid(), client, handle))
