"""What daemon and relay say to each other: one packet a message, with descriptors, on a SOCK_SEQPACKET pair."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Sequence
from enum import IntEnum, auto
from typing import NamedTuple

from runlist import frames

MAX_DESCRIPTORS = 2
_HEAD = struct.Struct("<BI")
_MAX_BYTES = 1024
_SO_SNDBUFFORCE = 32
_ROOM = 1 << 20
_CREDENTIALS = struct.Struct("3i")
_INT_BYTES = 4
_SENDER = struct.Struct("<iI")


class Say(IntEnum):
    """What a packet says. Its number is that of a connection, or of what is asked."""

    START = auto()
    """To the nursery: start a relay; its end of the channel and the datagram socket come along."""
    STARTED = auto()
    """From the nursery: the process, as a pidfd; without one it could not be started."""
    CONNECT = auto()
    """A stranger's connection, and the end of a pair on which the daemon serves it."""
    CLOSE = auto()
    """A connection to close, after these last words."""
    GO = auto()
    """The daemon has closed its copies of all up to this number: they may be touched. Answered, as a sign of life."""
    TAKE = auto()
    """Receive one datagram, and pass it on; from the socket that comes along, or the one that all users share."""
    DROP = auto()
    """Receive one datagram likewise, and drop it."""
    TAKEN = auto()
    """The datagram is out of the queue."""
    DATAGRAM = auto()
    """The datagram, with the descriptors that passed."""
    BROKEN = auto()
    """A client broke the protocol, and was hung up on; the reason follows."""


class Packet(NamedTuple):
    """One message. Whoever receives it owns its descriptors."""

    say: Say
    number: int
    body: bytes
    fds: list[int]

    def close(self) -> None:
        """Close the descriptors."""
        for fd in self.fds:
            os.close(fd)


def send(sock: socket.socket, say: Say, number: int, body: bytes = b"", fds: Sequence[int] = ()) -> None:
    """Send a packet. Raises OSError, among them BlockingIOError for a channel that is full."""
    socket.send_fds(sock, [_HEAD.pack(say, number) + body], fds, socket.MSG_NOSIGNAL)


def receive(sock: socket.socket) -> Packet | None:
    """The next packet; None at the end, and where the channel is broken. Raises BlockingIOError and TimeoutError, as
    recv does.
    """
    try:
        data, fds = frames.receive(sock, _MAX_BYTES, MAX_DESCRIPTORS)
    except (BlockingIOError, TimeoutError):
        raise
    except OSError:  # something that we said was not read
        return None
    if len(data) < _HEAD.size:
        return None
    say, number = _HEAD.unpack_from(data)
    return Packet(Say(say), number, data[_HEAD.size :], fds)


def pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a channel. The first has room for the packets of all connections that a user may have."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with contextlib.suppress(OSError):  # root's right; others have room for about 250
        ours.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _ROOM)
    return ours, theirs


class Peer(NamedTuple):
    """Who connected: the process, by its id here (0 for one that cannot be seen from here), and its user."""

    pid: int
    uid: int


def peer_of(sock: socket.socket) -> Peer:
    """Who is at the other end of a connection, by the kernel's word."""
    pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return Peer(pid, uid)


# -- datagrams -------------------------------------------------------------------------------------


class Datagram(NamedTuple):
    """A datagram: its bytes, the sender's pid, user and address from the kernel, and descriptors. `left` says that it
    has, or had, descriptors for which there was no room.
    """

    record: bytes
    pid: int
    uid: int
    sender: bytes
    fds: tuple[int, ...] = ()
    left: bool = False

    def encode(self) -> bytes:
        """All but the descriptors, for a packet."""
        return _SENDER.pack(self.pid, self.uid) + bytes([len(self.sender)]) + self.sender + self.record

    @classmethod
    def decode(cls, packet: Packet) -> Datagram:
        """The datagram of a packet, which owns its descriptors from here on."""
        pid, uid = _SENDER.unpack_from(packet.body)
        at = _SENDER.size + 1
        end = at + packet.body[_SENDER.size]
        return cls(packet.body[end:], pid, uid, packet.body[at:end], tuple(packet.fds))


def receive_datagram(sock: socket.socket, size: int, room: int, flags: int = 0) -> Datagram:
    """One datagram: at most `size` bytes, and up to `room` descriptors. The kernel drops further ones."""
    space = socket.CMSG_SPACE(_CREDENTIALS.size) + (socket.CMSG_LEN(room * _INT_BYTES) if room else 0)
    record, ancillary, told, address = sock.recvmsg(size, space, socket.MSG_CMSG_CLOEXEC | flags)
    pid, uid = 0, -1
    fds: tuple[int, ...] = ()
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(data) == _CREDENTIALS.size:
            pid, uid, _ = _CREDENTIALS.unpack(data)
        else:
            fds += tuple(frames.descriptors(level, kind, data))
    sender = address if isinstance(address, bytes) else b""
    return Datagram(record, pid, uid, sender, fds, bool(told & socket.MSG_CTRUNC))
