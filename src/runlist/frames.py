"""Frames on a UNIX stream socket: a four-byte little-endian length and a body. Descriptors travel as SCM_RIGHTS with
the frame that mentions them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections import deque
from collections.abc import Iterator

MAX_FRAME = 16 << 20
"""The longest body of an answer."""

MAX_REQUEST = 32 << 10
"""The longest frame of a request: it is sent in one piece with its descriptors."""

MAX_DESCRIPTORS = 16
"""How many descriptors are received at once; the kernel drops further ones."""

LENGTH = struct.Struct("<I")
_INT = struct.Struct("i")
_SO_PASSRIGHTS = 83
MAX_REQUEST_BODY = MAX_REQUEST - LENGTH.size


def frame(body: bytes) -> bytes:
    """A whole frame."""
    return LENGTH.pack(len(body)) + body


def receive(sock: socket.socket, size: int, room: int) -> tuple[bytes, list[int]]:
    """One recv of up to `size` bytes and `room` descriptors, which no program that is started inherits."""
    data, ancillary, _, _ = sock.recvmsg(size, socket.CMSG_LEN(room * _INT.size), socket.MSG_CMSG_CLOEXEC)
    return data, [fd for level, kind, value in ancillary for fd in descriptors(level, kind, value)]


def descriptors(level: int, kind: int, value: bytes) -> list[int]:
    """The descriptors in one control message."""
    if (level, kind) != (socket.SOL_SOCKET, socket.SCM_RIGHTS):
        return []
    return [fd for (fd,) in _INT.iter_unpack(value[: len(value) // _INT.size * _INT.size])]


def pass_descriptors(sock: socket.socket, wanted: bool) -> None:
    """Have the kernel refuse descriptors that are sent to a socket, or take them. Kernels before 6.16 always do."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, int(wanted))


class Inbox:
    """Cuts a stream into frames whose bodies have `longest` bytes at most, and keeps their descriptors in order."""

    def __init__(self, longest: int = MAX_FRAME) -> None:
        self._longest = longest
        self._buffer = bytearray()
        self.fds: deque[int] = deque()

    @property
    def half(self) -> bool:
        """Whether something waits for the rest of its frame."""
        return bool(self._buffer or self.fds)

    def read(self, sock: socket.socket) -> bool:
        """One recv. False at end of stream. Raises BlockingIOError as recv does."""
        data, fds = receive(sock, 1 << 16, MAX_DESCRIPTORS)
        self.fds.extend(fds)
        self._buffer += data
        return bool(data)

    def frames(self) -> Iterator[bytes]:
        """Bodies of the complete frames. Raises ValueError for a frame that is too long."""
        while len(self._buffer) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._buffer)
            if length > self._longest:
                raise ValueError(f"a frame of {length} bytes")
            end = LENGTH.size + length
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[LENGTH.size : end])
            del self._buffer[:end]
            yield body

    def close(self) -> None:
        """Close the descriptors that nobody took."""
        while self.fds:
            os.close(self.fds.popleft())
