"""The relay's own process: between the connections of one user and the daemon.

Whatever here takes long, takes long for this user alone.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from runlist.daemon.relay.channel import (
    Packet,
    Say,
    peer_of,
    receive,
    receive_datagram,
    send,
)
from runlist.daemon.relay.vet import vetted
from runlist.frames import MAX_DESCRIPTORS, MAX_REQUEST_BODY, Inbox, frame, pass_descriptors

if TYPE_CHECKING:
    from runlist.planes.interface import Plane

HALF_S = 10.0
"""How long a connection may hold half a frame, or leave answers unread once the daemon has hung up."""

_MAX_UNREAD = 1 << 16
_MAX_SENT = 253  # the kernel's limit to the descriptors of one message
_MAX_KEPT = 2
_RECORD_ROOM = 64  # more than any record
_LOOK_S = 1.0
_ASKS = b'{"type":"BorrowRequest"'


class Ferry:
    """Serves what the daemon says on `channel`: connections to look after, datagrams of `messages` to take."""

    def __init__(self, plane: Plane, channel: socket.socket, messages: socket.socket) -> None:
        self.plane = plane
        self.selector = selectors.DefaultSelector()
        self._channel = channel
        self._messages = messages
        self._waiting: deque[Packet] = deque()  # until the daemon has closed its copies
        self._connections: set[_Connection] = set()
        self.selector.register(channel, selectors.EVENT_READ)

    def serve(self) -> None:
        """Serve until the daemon's end closes."""
        look_at = time.monotonic() + _LOOK_S
        while True:
            for key, events in self.selector.select(max(0.0, look_at - time.monotonic())):
                if key.data is None:
                    packet = receive(self._channel)
                    if packet is None:
                        return
                    self._obey(packet)
                elif key.data in self._connections:
                    key.data.serve(key.fileobj, events)
            if time.monotonic() >= look_at:
                look_at = time.monotonic() + _LOOK_S
                for connection in list(self._connections):
                    connection.look()

    def _obey(self, packet: Packet) -> None:
        match packet.say:
            case Say.CONNECT | Say.CLOSE:
                self._waiting.append(packet)
            case Say.GO:
                while self._waiting and self._waiting[0].number <= packet.number:
                    self._begin(self._waiting.popleft())
                send(self._channel, Say.GO, packet.number)
            case Say.TAKE | Say.DROP:
                apart = socket.socket(fileno=packet.fds[0]) if packet.fds else None
                with apart or contextlib.nullcontext():
                    self._take(packet.number, apart or self._messages, wanted=packet.say is Say.TAKE)

    def _begin(self, packet: Packet) -> None:
        stranger, *served = (socket.socket(fileno=fd) for fd in packet.fds)
        if packet.say is Say.CLOSE:
            with contextlib.suppress(OSError):
                stranger.send(packet.body, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            stranger.close()
        else:
            (daemon,) = served
            self._connections.add(_Connection(self, packet.number, stranger, daemon))

    def _take(self, number: int, messages: socket.socket, *, wanted: bool) -> None:
        try:
            found = receive_datagram(messages, _RECORD_ROOM, _MAX_SENT if wanted else 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            found = None
        send(self._channel, Say.TAKEN, number)
        if found is None or not wanted:
            return
        for fd in found.fds[_MAX_KEPT:]:
            os.close(fd)
        kept = [vetted(self.plane, fd, found.uid) for fd in found.fds[:_MAX_KEPT]]
        send(self._channel, Say.DATAGRAM, number, found.encode(), kept)
        for fd in kept:
            os.close(fd)

    def broken(self, number: int, reason: str) -> None:
        """Tell the daemon that a client broke the protocol."""
        with contextlib.suppress(BlockingIOError):
            send(self._channel, Say.BROKEN, number, reason.encode()[:200])

    def forget(self, connection: _Connection) -> None:
        """A connection is closed."""
        self._connections.discard(connection)


class _Connection:
    """One connection of a stranger, and the socket on which the daemon serves it."""

    def __init__(self, ferry: Ferry, number: int, stranger: socket.socket, daemon: socket.socket) -> None:
        self._ferry = ferry
        self._number = number
        self._stranger = stranger
        self._daemon = daemon
        self._uid = peer_of(stranger).uid
        self._inbox = Inbox(MAX_REQUEST_BODY)
        self._requests: deque[tuple[bytes, Sequence[int]]] = deque()  # for the daemon
        self._answers = bytearray()  # for the stranger
        self._listens = self._speaks = True  # whether more can come from the stranger, and from the daemon
        self._borrows = 0
        self._since: float | None = None  # of half a frame, or of a hang-up
        self._events: dict[socket.socket, int] = {stranger: 0, daemon: 0}
        stranger.setblocking(False)
        daemon.setblocking(False)
        pass_descriptors(daemon, False)
        self._wait()

    def serve(self, sock: object, events: int) -> None:
        """Something can be read from, or written to, one of the two sockets."""
        try:
            if sock is self._stranger:
                if events & selectors.EVENT_WRITE:
                    self._answer()
                if events & selectors.EVENT_READ:
                    self._hear()
            else:
                if events & selectors.EVENT_WRITE:
                    self._ask()
                if events & selectors.EVENT_READ:
                    self._listen()
        except ValueError as error:
            self._ferry.broken(self._number, str(error))
            self._close()
        except OSError:  # the stranger is gone
            self._close()
        else:
            self._wait()

    def look(self) -> None:
        """Hang up on half a frame, or on answers that nobody reads, after a while."""
        if self._since is not None and time.monotonic() - self._since > HALF_S:
            if self._speaks:
                self._ferry.broken(self._number, f"half a frame for {HALF_S:.0f} s")
            self._close()

    def _hear(self) -> None:
        """Read from the stranger."""
        try:
            self._listens = self._inbox.read(self._stranger)
        except BlockingIOError:
            return
        if self._inbox.fds:
            self._borrows = max(0, self._borrows - len(self._inbox.fds))
            if not self._borrows:
                pass_descriptors(self._stranger, False)  # none is due
        requests = b"".join(frame(body) for body in self._inbox.frames())
        if requests:
            fds = [vetted(self._ferry.plane, self._inbox.fds.popleft(), self._uid) for _ in range(len(self._inbox.fds))]
            self._requests.append((requests, fds))
            self._ask()
        elif len(self._inbox.fds) > MAX_DESCRIPTORS:
            raise ValueError("descriptors without a frame")
        self._since = (self._since or time.monotonic()) if self._inbox.half else None
        if not self._listens and not self._requests:
            self._finish()

    def _ask(self) -> None:
        """Write to the daemon."""
        while self._requests:
            data, fds = self._requests[0]
            try:
                sent = socket.send_fds(self._daemon, [data], fds, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            except OSError:  # the daemon hung up: what it said before is still to be passed on
                self._listens = False
                self._drop()
                return
            for fd in fds:
                os.close(fd)
            self._requests[0] = (data[sent:], ())
            if sent == len(data):
                self._requests.popleft()
        if not self._listens:
            self._finish()

    def _finish(self) -> None:
        """Nothing more comes from the stranger; the daemon still answers what was asked."""
        self._since = None
        with contextlib.suppress(OSError):
            self._daemon.shutdown(socket.SHUT_WR)

    def _listen(self) -> None:
        """Read from the daemon."""
        try:
            data = self._daemon.recv(_MAX_UNREAD)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        asked = data.count(_ASKS)
        if asked:
            self._borrows += asked
            pass_descriptors(self._stranger, True)
        if not data:
            self._speaks = self._listens = False
            self._since = time.monotonic()
        self._answers += data
        self._answer()

    def _answer(self) -> None:
        """Write to the stranger."""
        while self._answers:
            try:
                sent = self._stranger.send(self._answers, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            del self._answers[:sent]
        if not self._speaks:
            self._close()

    def _wait(self) -> None:
        """Wait for what can be done next."""
        if self._stranger.fileno() < 0:
            return
        hear = self._listens and not self._requests
        read, write = selectors.EVENT_READ, selectors.EVENT_WRITE
        self._set(self._stranger, (read if hear else 0) | (write if self._answers else 0))
        listen = self._speaks and len(self._answers) < _MAX_UNREAD
        self._set(self._daemon, (read if listen else 0) | (write if self._requests else 0))

    def _set(self, sock: socket.socket, events: int) -> None:
        before = self._events[sock]
        if events == before:
            return
        if not before:
            self._ferry.selector.register(sock, events, self)
        elif not events:  # else a hang-up would be told again and again
            self._ferry.selector.unregister(sock)
        else:
            self._ferry.selector.modify(sock, events, self)
        self._events[sock] = events

    def _drop(self) -> None:
        for _, fds in self._requests:
            for fd in fds:
                os.close(fd)
        self._requests.clear()

    def _close(self) -> None:
        for sock in self._events:
            self._set(sock, 0)
        self._ferry.forget(self)
        self._drop()
        self._daemon.close()  # first: what follows may take long
        self._inbox.close()
        self._stranger.close()
