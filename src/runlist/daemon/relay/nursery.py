"""The daemon's side of the nursery, which starts relays."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Callable

import structlog

from runlist.daemon import helper
from runlist.daemon.relay import channel
from runlist.daemon.relay.channel import Say

_PATIENCE_S = 10.0  # a start of Python on a busy machine

_log = structlog.get_logger()


class Birth:
    """A relay that was asked for: our end of its channel, and its process once `on_born` was called with a pidfd. None:
    it could not be started.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.on_born: Callable[[int | None], None] | None = None


class Nursery:
    """Starts the nursery when the first relay is wanted, and another when it has ended."""

    def __init__(self, plane: str) -> None:
        self._plane = plane
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None
        self._births: dict[int, tuple[float, Birth]] = {}
        self._next = 1
        self._loop = asyncio.get_running_loop()

    def start(self, messages: socket.socket) -> Birth:
        """Start a relay that shares a datagram socket. Raises OSError."""
        sock = self._running()
        ours, theirs = channel.pair()
        with theirs:
            try:
                channel.send(sock, Say.START, self._next, fds=[theirs.fileno(), messages.fileno()])
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        birth = Birth(ours)
        self._births[self._next] = (time.monotonic(), birth)
        self._next = self._next % 0xFFFF_FFFF + 1
        return birth

    def look(self, now: float) -> None:
        """End a nursery that does not answer."""
        if any(now - asked > _PATIENCE_S for asked, _ in self._births.values()):
            _log.warning("relays cannot be started; trying again")
            self.close()

    def close(self) -> None:
        """End it, and all relays with it."""
        if self._sock is not None and self._process is not None:
            self._loop.remove_reader(self._sock)
            self._sock.close()
            self._sock = None
            self._process.kill()
            self._process.wait()
            births, self._births = self._births, {}
            for _, birth in births.values():
                self._tell(birth, None)

    def _running(self) -> socket.socket:
        if self._sock is None:
            ours, theirs = channel.pair()
            self._process = helper.start("runlist.daemon.relay", self._plane, ours, theirs)
            ours.setblocking(False)
            self._sock = ours
            self._loop.add_reader(ours, self._heard)
        return self._sock

    def _heard(self) -> None:
        assert self._sock is not None
        try:
            packet = channel.receive(self._sock)
        except BlockingIOError:
            return
        if packet is None:
            _log.warning("the process that starts relays ended")
            self.close()
            return
        _, birth = self._births.pop(packet.number, (0.0, None))
        if birth is not None:
            self._tell(birth, packet.fds.pop() if packet.fds else None)
        packet.close()

    @staticmethod
    def _tell(birth: Birth, pidfd: int | None) -> None:
        if birth.on_born is not None:
            birth.on_born(pidfd)
        elif pidfd is not None:
            os.close(pidfd)
