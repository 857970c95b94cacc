"""The keeper: a small process that outlives the daemon and puts everything back when it dies.

Before the daemon changes anything, it tells the keeper the open file and the steps that undo the change; only the plane
can read the steps. When the daemon's end of the socket closes, for whatever reason, the keeper replays them all and
ends. The daemon runs it as `runlist.interpreter` says.
"""

from __future__ import annotations

from runlist import lean  # isort: skip  (before msgspec)

import contextlib
import os
import selectors
import signal
import socket
import sys
from typing import TYPE_CHECKING

import msgspec

from runlist.planes.process.region import Region, RegionError, Words
from runlist.planes.registry import choose_plane, load_ahead
from runlist.wire import Connection, GuardRegion, KeeperMessage, KeepRecord, Unguard

if TYPE_CHECKING:
    from runlist.planes.interface import Plane, Replayer, Undo


class _Guarded(msgspec.Struct):
    pidfd: int
    replayer: Replayer
    undo: Undo

    def close(self) -> None:
        self.replayer.close()
        os.close(self.pidfd)


class Keeper:
    """The steps to replay, by the daemon's keys."""

    def __init__(self, plane: Plane, daemon: socket.socket) -> None:
        self._plane = plane
        self._connection = Connection(daemon)
        self._guarded: dict[int, _Guarded] = {}
        self._regions: dict[int, tuple[Region, Words]] = {}
        self._record: int | None = None
        self._selector = selectors.DefaultSelector()
        self._selector.register(daemon, selectors.EVENT_READ, None)

    def serve(self) -> None:
        """Serve until the daemon's end closes; then undo everything."""
        decoder = msgspec.json.Decoder(KeeperMessage)
        while True:
            ready = self._selector.select()
            for key, _ in ready:
                if key.data is not None:  # a process ended: our copy must not keep its memory alive
                    self._forget(key.data)
            if any(key.data is None for key, _ in ready):
                if not self._connection.inbox.read(self._connection.sock):
                    break
                for body in self._connection.inbox.frames():
                    self._handle(decoder.decode(body))
        self._undo()

    def _handle(self, message: KeeperMessage) -> None:
        if isinstance(message, KeepRecord):
            self._record = self._connection.inbox.fds.popleft()
            return
        self._forget(message.key)
        if isinstance(message, Unguard):
            return
        fd = self._connection.inbox.fds.popleft()
        if isinstance(message, GuardRegion):
            self._regions[message.key] = Region(fd), message.words
            return
        replayer = self._plane.replayer(fd)
        try:
            pidfd = os.pidfd_open(message.pid)
        except OSError:
            pidfd = None
        if replayer is None or pidfd is None:
            if replayer is not None:
                replayer.close()
            if pidfd is not None:
                os.close(pidfd)
            return
        self._guarded[message.key] = _Guarded(pidfd, replayer, message.undo)
        self._selector.register(pidfd, selectors.EVENT_READ, message.key)

    def _forget(self, key: int) -> None:
        guarded = self._guarded.pop(key, None)
        if guarded is not None:
            self._selector.unregister(guarded.pidfd)
            guarded.close()
        if key in self._regions:
            self._regions.pop(key)[0].close()

    def _undo(self) -> None:
        # First every slice, then the rest: no two tenants run at tiny slices on the way.
        for step in range(max((len(guarded.undo) for guarded in self._guarded.values()), default=0)):
            for guarded in self._guarded.values():
                if step < len(guarded.undo):
                    try:
                        guarded.replayer.replay(guarded.undo[step])
                    except OSError:
                        continue
        for region, words in self._regions.values():  # last: a file of a tenant's, which it may have made slow
            with contextlib.suppress(RegionError):
                region.write(words)
        for key in [*self._guarded, *self._regions]:
            self._forget(key)
        if self._record is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._record, 0)
            os.close(self._record)


def main() -> None:
    """Entry point: the socket to the daemon is standard input."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    plane = choose_plane()
    load_ahead(plane, "keeper")
    lean.started()
    Keeper(plane, socket.socket(fileno=os.dup(sys.stdin.fileno()))).serve()


if __name__ == "__main__":
    main()
