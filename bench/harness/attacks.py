"""What a user may do to a daemon who wants others to wait: each attack goes on until its process is killed."""

from __future__ import annotations

import array
import contextlib
import itertools
import os
import resource
import signal
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from runlist import wire
from runlist.protocol.tenant_autogen import MAGIC, VERSION, Kind
from runlist.tenant import RECORD

LINGER_S = 8

Attack = Callable[[Path], None]
"""Takes the folder with the daemon's sockets, and never returns."""

_JOIN = RECORD.pack(MAGIC, VERSION, Kind.JOIN, 0, 1, 7, 0)
_STATUS = wire.encode(wire.GetStatus())
_LISTS = [wire.encode(wire.ListTasks()), wire.encode(wire.ListWorkloads())]
_peers: deque[socket.socket] = deque(maxlen=100)  # they do not read


def lingering() -> int:
    """A TCP socket whose last close takes LINGER_S: nobody reads what it has sent."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        sender = socket.socket()
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        sender.connect(listener.getsockname())
        _peers.append(listener.accept()[0])
    sender.setblocking(False)
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_S))
    with contextlib.suppress(BlockingIOError):
        while True:
            sender.send(bytes(1 << 16))
    return sender.detach()


def give(sock: socket.socket, data: bytes, count: int = 1) -> None:
    """Send data with so many descriptors of which the last lingers, and close our own."""
    fds = [os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC) for _ in range(count - 1)] + [lingering()]
    try:
        sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))], socket.MSG_NOSIGNAL)
    finally:
        for fd in fds:
            os.close(fd)


def connected(folder: Path) -> socket.socket:
    """A connection to the daemon."""
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(folder / "daemon.sock"))
    return sock


@contextlib.contextmanager
def _datagrams(folder: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.connect(str(folder / "messages.sock"))
        sock.setblocking(False)
        yield sock


def datagrams(folder: Path) -> None:
    """Datagrams with three descriptors, of which one lingers, from a process that nobody manages."""
    with _datagrams(folder) as sock:
        while True:
            with contextlib.suppress(OSError):
                give(sock, _JOIN, 3)
            time.sleep(0.01)


def joins(folder: Path) -> None:
    """The same from one that is managed, whose descriptors are wanted."""
    pid = os.fork()
    if pid == 0:
        datagrams(folder)
    while True:
        with contextlib.suppress(OSError), connected(folder) as launcher:
            connection = wire.Connection(launcher)
            connection.send(wire.Launch(os.getpid(), {"class": "batch"}))
            while connection.receive() is not None:
                pass
        time.sleep(0.05)


def frames(folder: Path) -> None:
    """Requests with descriptors that nobody asked for, and linger."""
    while True:
        with contextlib.suppress(OSError), connected(folder) as sock:
            give(sock, _STATUS, 3)
            sock.recv(1 << 16)
        time.sleep(0.01)


def halves(folder: Path) -> None:
    """Descriptors that linger, with half a request."""
    while True:
        with contextlib.suppress(OSError), connected(folder) as sock:
            give(sock, _STATUS[:3], 3)
            time.sleep(0.01)


def regions(folder: Path) -> None:
    """Launches whose region is a socket that lingers."""
    while True:
        with contextlib.suppress(OSError), connected(folder) as sock:
            give(sock, wire.encode(wire.Launch(os.getpid(), {}, region=True)))
            sock.recv(1 << 16)
        time.sleep(0.01)


def unread(folder: Path) -> None:
    """More connections than a user may have, with descriptors sent before anybody accepts them."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    held: deque[socket.socket] = deque(maxlen=400)
    while True:
        with contextlib.suppress(OSError):
            sock = connected(folder)
            held.append(sock)
            if len(held) > 300:
                give(sock, b"x", 3)


def half_frames(folder: Path) -> None:
    """A hundred connections with most of a frame of 15 MiB each."""
    held: list[socket.socket] = []
    while True:
        while len(held) < 100:
            sock = connected(folder)
            held.append(sock)
            sock.settimeout(0.05)
            with contextlib.suppress(OSError):
                sock.sendall(struct.pack("<I", 15 << 20) + bytes((15 << 20) - 1))
        time.sleep(0.5)
        held.clear()


def connections(folder: Path) -> None:
    """Connections, as fast as they are accepted, each with some nonsense."""
    for number in itertools.count():
        with contextlib.suppress(OSError), connected(folder) as sock:
            sock.send((b"nonsense", b"", _STATUS[:2])[number % 3])


def requests(folder: Path) -> None:
    """Requests on a hundred connections at once, as fast as they are answered."""
    socks = [connected(folder) for _ in range(100)]
    for sock in socks:
        sock.setblocking(False)
    while True:
        for sock in socks:
            with contextlib.suppress(OSError):
                sock.send(_STATUS)
            with contextlib.suppress(OSError):
                sock.recv(1 << 16)


def lists(folder: Path) -> None:
    """Requests for the lists of tasks and of workloads, which are the longest to make, on twenty connections."""
    socks = [connected(folder) for _ in range(20)]
    for sock in socks:
        sock.setblocking(False)
    for request in itertools.cycle(_LISTS):
        for sock in socks:
            with contextlib.suppress(OSError):
                sock.send(request)
            with contextlib.suppress(OSError):
                while sock.recv(1 << 16):
                    pass


ATTACKS: dict[str, Attack] = {
    each.__name__: each
    for each in (datagrams, joins, frames, halves, regions, unread, half_frames, connections, requests, lists)
}


@contextlib.contextmanager
def under(attack: Attack, folder: Path, uid: int, group: int) -> Iterator[int]:
    """Have a process of a user make an attack meanwhile; its process id."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            become(uid, group)
            attack(folder)
        finally:
            os._exit(1)
    try:
        yield pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def become(uid: int, group: int) -> None:
    """Be that user, and a member of one group."""
    os.setgroups([])
    os.setresgid(group, group, group)
    os.setresuid(uid, uid, uid)
