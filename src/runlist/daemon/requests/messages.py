"""The messages of tenants: a UNIX datagram socket, one fixed record a message.

The kernel names the sender (SO_PASSCRED). Everything else that arrives is dropped and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import socket
import stat
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from runlist.daemon.relay.channel import Datagram, receive_datagram
from runlist.errors import RunlistError, UsageError
from runlist.proc.owners import Owner, user_behind
from runlist.protocol.tenant_autogen import MAGIC, MAX_DESCRIPTORS, VERSION, Effect, Kind
from runlist.rate import Rate
from runlist.tenant import RECORD

__all__ = ["Answer", "Effect", "Kind", "Messages", "TenantMessage", "parse"]

MAX_PER_WAKEUP = 32
"""Datagrams read in one go."""

FLOOD_PAUSE_S = 0.002
"""How long the socket then rests, and after each with descriptors that nobody wants: a flood gets a bounded part of the
daemon's time.
"""

JOINS_AT_ONCE, JOINS_A_SECOND = 256, 100
"""How many wanted descriptors a socket brings before it rests so after each: to look at one takes a millisecond."""

MAX_CLIENT = (1 << 32) - 1

_WITH_NANOSECONDS = {Kind.REPORT_LATENCY, Kind.HINT, Kind.ANNOUNCE, Kind.JOIN}

_AUTOBOUND = re.compile(rb"\0[0-9a-f]{5}")


class TenantMessage(msgspec.Struct, frozen=True):
    """One message. `priority` is that of a beginning segment; `nanoseconds` is the reported latency, the lead time of a
    hint or an announcement, or the handle of the RM client that joins. Fields that a kind does not use are 0.

    `sender` is the address that the kernel gave its socket (autobind); without one nothing can be answered. Whoever
    takes the message closes its `descriptors`.
    """

    kind: Kind
    priority: int
    sequence: int
    nanoseconds: int
    sender: bytes = b""
    descriptors: tuple[int, ...] = ()

    def encode(self, effect: Effect = Effect.UNTOLD) -> bytes:
        """The record, as it was sent; with an effect, the answer to it."""
        return RECORD.pack(MAGIC, VERSION, self.kind, self.priority, self.sequence, self.nanoseconds, effect)


def parse(record: bytes, sender: bytes = b"") -> TenantMessage | None:
    """The message of a record; None for one that is not ours, or of a kind that this version does not know."""
    if len(record) != RECORD.size:
        return None
    magic, version, number, priority, sequence, nanoseconds, effect = RECORD.unpack(record)
    if (magic, version, effect) != (MAGIC, VERSION, Effect.UNTOLD):
        return None
    try:
        kind = Kind(number)
    except ValueError:
        return None
    if (priority and kind is not Kind.SEGMENT_BEGIN) or (nanoseconds and kind not in _WITH_NANOSECONDS):
        return None
    if kind is Kind.JOIN and nanoseconds > MAX_CLIENT:
        return None
    return TenantMessage(kind, priority, sequence, nanoseconds, sender)


class Discarder(Protocol):
    """Closes unwanted descriptors. While it has no `room` the kernel drops them."""

    @property
    def room(self) -> bool:
        """Whether more may come."""

    def discard(self, fds: Sequence[int]) -> None:
        """Close them."""


class Strangers(Protocol):
    """Takes datagrams with descriptors, which are not for the daemon (`daemon.relay`)."""

    def share(self, messages: socket.socket, on_datagram: Callable[[Datagram], None]) -> None:
        """The socket, and what to call with what was taken from it."""

    def take(self, owner: Owner, wanted: bool, done: Callable[[], None], apart: socket.socket | None = None) -> None:
        """Take the datagram at the head of the queue, that of `apart` if it is given, or drop it; then call `done`."""


Answer = Callable[[Effect], bool]
"""Says the effect of a segment; False: it could not be sent now."""

OnMessage = Callable[[int, int, TenantMessage, Answer], bool]
"""Takes pid, user id, the message, and how to answer it. False: not managed."""


class Rests:
    """How many sockets of a daemon rest, as they are flooded: the more, the longer each does."""

    def __init__(self) -> None:
        self._count = 0

    def begin(self) -> float:
        """One rests; returns for how long."""
        self._count += 1
        return FLOOD_PAUSE_S * self._count

    def end(self) -> None:
        """It has rested."""
        self._count -= 1


class Messages:
    """Reads the socket at `path` in the running event loop.

    `dropped` counts messages that were not taken, by reason: malformed, nobody (a sender that this pid namespace does
    not know), foreign (a process that is not managed). Unwanted descriptors go to `discarder`. Processes of other users
    may send if they can reach the directory of root's daemon; what they send with descriptors is left to `strangers`,
    and dropped unless `wants` (pid, user id) says that descriptors of that process are of use. With `user` it is a
    socket apart, of that user and root alone. Raises RunlistError when another daemon hears there, UsageError when the
    path cannot be a socket.
    """

    def __init__(
        self,
        path: Path,
        on_message: OnMessage,
        discarder: Discarder,
        strangers: Strangers | None = None,
        wants: Callable[[int, int], bool] = lambda *_: True,
        *,
        user: int | None = None,
        rests: Rests | None = None,
    ) -> None:
        self.dropped: Counter[str] = Counter()
        self._path = path
        self._on_message = on_message
        self._discarder = discarder
        self._wants = wants
        self._loop = asyncio.get_running_loop()
        self._resume: asyncio.TimerHandle | None = None
        self._rests = rests or Rests()
        self._joins = Rate(JOINS_A_SECOND, JOINS_AT_ONCE)
        self._socket = _bind(path, user)
        self.shared = user is None and bool(path.stat().st_mode & stat.S_IWOTH)
        """Whether it is for all users."""
        self._strangers = strangers if self.shared or user is not None else None
        if strangers is not None and self.shared:
            strangers.share(self._socket, self._take)
        self._closed = False
        self._loop.add_reader(self._socket, self._read)

    def close(self) -> None:
        """Stop hearing, and remove the socket."""
        self._closed = True
        if self._resume is not None:
            self._resume.cancel()
            self._rests.end()
        self._loop.remove_reader(self._socket)
        if self._strangers is None:
            self._socket.close()
        else:  # descriptors may wait in its queue: the end of this process closes them, and lingers for none
            self._socket.detach()
        self._path.unlink(missing_ok=True)

    def answer(self, message: TenantMessage, effect: Effect) -> bool:
        """Send the beginning of a segment back, with its effect; returns whether it was sent. Never blocks; a sender
        may be gone.

        Answers only names that the kernel chose: a path could be turned into a link to a socket that only we may use.
        """
        if message.kind is Kind.SEGMENT_BEGIN and _AUTOBOUND.fullmatch(message.sender):
            with contextlib.suppress(OSError):
                return self._socket.sendto(message.encode(effect), message.sender) > 0
        return False

    def _read(self) -> None:
        for _ in range(MAX_PER_WAKEUP):
            try:
                room = MAX_DESCRIPTORS if self._discarder.room else 0
                if self._strangers is not None:
                    head = receive_datagram(self._socket, RECORD.size + 1, 0, socket.MSG_PEEK)
                    if head.left:  # also root's: that is who most containers run as
                        self._leave(self._strangers, head)
                        return
                    room = 0
                self._take(receive_datagram(self._socket, RECORD.size + 1, room))
            except BlockingIOError:
                return
            except OSError:  # an error of an earlier answer, which this call clears
                continue
        self._pause()
        self._go_on_later()

    def _leave(self, strangers: Strangers, head: Datagram) -> None:
        """Have a datagram with descriptors taken elsewhere; until then there is nothing to read."""
        message = parse(head.record)
        wanted = message is not None and message.kind is Kind.JOIN and self._wants(head.pid, head.uid)
        if not wanted:
            self.dropped["foreign" if message is not None else "malformed"] += 1
        self._pause()
        # Containers that root made are strangers to each other, and most have the same users.
        owner = Owner.of(head.pid, head.uid) if wanted else Owner(user_behind(head.uid))
        done = self._go_on if wanted and self._joins.take() else self._go_on_later
        strangers.take(owner, wanted, done, None if self.shared else self._socket)

    def _pause(self) -> None:
        self._loop.remove_reader(self._socket)

    def _go_on_later(self) -> None:
        self._resume = self._loop.call_later(self._rests.begin(), self._rested)

    def _rested(self) -> None:
        self._resume = None
        self._rests.end()
        self._go_on()

    def _go_on(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._socket, self._read)

    def _take(self, datagram: Datagram) -> None:
        record, pid, uid, sender, descriptors, _ = datagram
        message = parse(record, sender)
        if message is not None and message.kind is Kind.JOIN:
            message, descriptors = (
                msgspec.structs.replace(message, descriptors=descriptors) if descriptors else None,
                (),
            )
        if descriptors:
            self._discarder.discard(descriptors)
        if message is None:
            self.dropped["malformed"] += 1
        elif pid <= 0:
            self.dropped["nobody"] += 1
            self._discarder.discard(message.descriptors)
        elif not self._on_message(pid, uid, message, partial(self.answer, message)):
            self.dropped["foreign"] += 1
            self._discarder.discard(message.descriptors)
            self.answer(message, Effect.NOT_MANAGED)


def bind(sock: socket.socket, path: Path) -> None:
    """Give a socket its name in the file system. Raises RunlistError, with that name."""
    try:
        sock.bind(str(path))
    except OSError as error:
        raise RunlistError(f"{path} cannot be used: {error.strerror or error}") from None


def _bind(path: Path, user: int | None) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        remove_stale(path)
        os.fchmod(sock.fileno(), 0o600)  # before it has a name: who could connect in between would stay connected
        bind(sock, path)
        if user is None:
            path.chmod(_mode(path.parent))
        else:
            path.chmod(0o600)  # whatever the umask
            _give(path, user)
    except BaseException:
        sock.close()
        raise
    return sock


def _give(path: Path, user: int) -> None:
    """Give it to a user, or have it no more."""
    try:
        os.chown(path, user, -1)
    except OSError:
        path.unlink()
        raise


def remove_stale(path: Path) -> None:
    """Remove the socket of a dead daemon, and nothing else."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise UsageError(f"{path} is not a socket: remove it")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            probe.setblocking(False)
            try:
                probe.connect(str(path))
            except OSError as error:
                if error.errno != errno.ECONNREFUSED:
                    raise
            else:
                raise RunlistError(f"another daemon hears its tenants at {path}: stop it, or use another directory")
        path.unlink()


def _mode(directory: Path) -> int:
    """Root's daemon hears everybody who can reach its socket, as it manages processes of every user."""
    return 0o666 if os.geteuid() == 0 and directory.stat().st_mode & stat.S_IXOTH else 0o600
