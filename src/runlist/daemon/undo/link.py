"""The daemon's side of the keeper: starting it, telling it what to undo, and starting another when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import subprocess
import termios
import time
from collections.abc import Callable

import structlog

from runlist.daemon import helper
from runlist.daemon.undo.record import Record
from runlist.frames import pass_descriptors
from runlist.planes.interface import Context
from runlist.planes.process.region import Region, Words
from runlist.proc import process
from runlist.wire import Connection, Guard, GuardRegion, KeeperMessage, KeepRecord, Unguard

_log = structlog.get_logger()

_SHORT_LIFE_S = 2.0
_MAX_SHORT_LIVES = 3
_RETRY_S = 0.1
_SO_SNDBUFFORCE = 32
_ROOM = 8 << 20  # bytes that it may be behind; without root's right for about a hundred changes

PATIENCE_S, START_PATIENCE_S = 1.0, 10.0
"""How long a keeper may read nothing while it is full of what it was told, and one that has just been started."""
MOST_LOOKS = 10
"""So many looks one may be stopped, or read nothing of what it was told."""


class KeeperLink:
    """The running keeper, and all that it has been told, so that a successor can be told the same.

    `record` is for the next daemon, should both be killed. `on_hopeless` is called when keepers end as soon as they
    start: without one, nothing must be managed.
    """

    def __init__(self, plane: str, record: Record, on_hopeless: Callable[[], None]) -> None:
        self._plane = plane
        self._record = record
        self._on_hopeless = on_hopeless
        self._short_lives = 0
        self._guards: dict[int, tuple[int, Context]] = {}  # pid and context by key
        self._regions: dict[int, tuple[Region, Words]] = {}  # likewise
        self._next_key = 1
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.Handle | None = None
        self._unread = self._looks = 0
        self._start()

    @property
    def pid(self) -> int:
        """Process id of the keeper."""
        return self._process.pid

    def guard(self, pid: int, context: Context) -> int:
        """Have the keeper undo a context if the daemon dies; returns the key for `unguard`."""
        key = self._next_key
        self._next_key += 1
        self._guards[key] = (pid, context)
        self._record.add(pid)
        self._tell(key)
        return key

    def guard_region(self, region: Region, words: Words, key: int | None = None) -> int:
        """Have the keeper write these words into a region if the daemon dies, in place of those of `key`; returns the
        key for `unguard`.
        """
        if key is None:
            key = self._next_key
            self._next_key += 1
        self._regions[key] = region, words
        self._tell(key)
        return key

    def hand_on(self, key: int, pid: int) -> None:
        """Another process has the file of a context now: it is undone for as long as that one lives."""
        before, context = self._guards[key]
        self._record.add(pid)
        self._record.remove(before)
        self._guards[key] = pid, context
        self._tell(key)

    def renew(self, key: int) -> None:
        """Tell the keeper a context's undo again, because it grew."""
        self._tell(key)

    def unguard(self, key: int) -> None:
        """Have the keeper forget a context, or a region, that was put back or is gone."""
        if self._regions.pop(key, None) is not None:
            self._send(Unguard(key), [])
        guarded = self._guards.pop(key, None)
        if guarded is not None:
            self._send(Unguard(key), [])
            self._record.remove(guarded[0])

    def look(self) -> None:
        """Every second: start another in place of one that stands still, as nobody would put anything back."""
        unread = 0
        with contextlib.suppress(OSError, ValueError):  # it has ended
            told = fcntl.ioctl(self._connection.sock, termios.TIOCOUTQ, bytes(4))
            unread = int.from_bytes(told, "little")
        still = process.is_stopped(self.pid) or (unread > 0 and unread == self._unread)
        self._unread = unread
        self._looks = self._looks + 1 if still and not process.wants_processor(self.pid) else 0
        if self._looks >= MOST_LOOKS:
            self._hangs()

    def close(self) -> None:
        """End the keeper; it undoes whatever is still guarded."""
        if self._retry is not None:
            self._retry.cancel()
        if self._connection.sock.fileno() < 0:
            return
        self._loop.remove_reader(self._connection.sock)
        self._connection.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            _log.error("the keeper did not end", pid=self._process.pid)
        else:
            self._record.close()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        self._process = helper.start("runlist.daemon.undo.keeper", self._plane, ours, theirs)
        self._started = time.monotonic()
        self._looks = 0
        with contextlib.suppress(OSError):
            ours.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _ROOM)
        pass_descriptors(ours, False)
        self._connection = Connection(ours)
        self._loop.add_reader(ours, self._lost)
        self._record.keeper(self._process.pid)
        self._send(KeepRecord(), [self._record.fd])
        for key in [*self._guards, *self._regions]:
            self._tell(key)

    def _tell(self, key: int) -> None:
        if key in self._regions:
            region, words = self._regions[key]
            self._send(GuardRegion(key, words), [region.fileno()])
            return
        pid, context = self._guards[key]
        self._send(Guard(key, pid, context.undo()), [context.handle.fileno()])

    def _send(self, message: KeeperMessage, fds: list[int]) -> None:
        if self._connection.sock.fileno() < 0:  # its successor is told everything
            return
        new = time.monotonic() - self._started < START_PATIENCE_S
        self._connection.sock.settimeout(START_PATIENCE_S if new else PATIENCE_S)
        try:
            self._connection.send(message, fds)
        except TimeoutError:
            self._hangs()
        except OSError:  # it just ended: `_lost` starts another and tells it everything
            _log.warning("the keeper does not answer", pid=self._process.pid)

    def _hangs(self) -> None:
        """It stands still: another takes its place, which is told everything."""
        if self._connection.sock.fileno() < 0:
            return
        _log.warning("the keeper stands still; killed", pid=self.pid)
        self._process.kill()
        self._loop.remove_reader(self._connection.sock)
        self._connection.close()
        self._retry = self._loop.call_soon(self._lost)

    def _lost(self) -> None:
        """The keeper never speaks: readable means that it ended."""
        if self._connection.sock.fileno() >= 0:
            self._loop.remove_reader(self._connection.sock)
            self._connection.close()
        code: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):  # in the kernel, which it never leaves
            code = self._process.wait(PATIENCE_S)
        self._short_lives = self._short_lives + 1 if time.monotonic() - self._started < _SHORT_LIFE_S else 0
        if self._short_lives > _MAX_SHORT_LIVES:
            _log.error("no keeper stays alive; nothing can be managed safely", code=code)
            self._on_hopeless()
            return
        _log.warning("the keeper ended; starting another", pid=self._process.pid, code=code)
        self._start_again()

    def _start_again(self) -> None:
        try:
            self._start()
        except (OSError, MemoryError) as error:
            _log.warning("no keeper can be started; trying again", reason=str(error) or "no memory")
            self._retry = self._loop.call_later(_RETRY_S, self._start_again)
