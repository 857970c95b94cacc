"""What systemd, or another manager of services that speaks its protocol, tells a daemon and is told by it: the socket
that it listens on for us, that we are ready, that rules are read again, and that we are alive.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import MutableMapping
from pathlib import Path

from runlist.errors import UsageError

_FIRST_FD = 3
_MOST_FDS = 64


class ServiceManager:
    """The manager that started this process; without one it is told nothing. It takes the variables meant for this
    process out of the environment: no child is to answer for it.
    """

    def __init__(self, variables: MutableMapping[str, str]) -> None:
        self._address = variables.pop("NOTIFY_SOCKET", "")
        timeout_us = _number(variables.pop("WATCHDOG_USEC", ""))
        ours = variables.pop("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.alive_every_s = timeout_us / 2e6 if timeout_us and ours else None
        """How often it wants to hear that we are alive."""
        passed = variables.pop("LISTEN_PID", "") == str(os.getpid())
        count = _number(variables.pop("LISTEN_FDS", ""))
        variables.pop("LISTEN_FDNAMES", None)
        self._fds = range(_FIRST_FD, _FIRST_FD + min(count, _MOST_FDS)) if passed else range(0)
        for fd in self._fds:
            with contextlib.suppress(OSError):
                os.set_inheritable(fd, False)

    @property
    def listens(self) -> bool:
        """Whether it listens for us."""
        return bool(self._fds)

    def listener(self, path: Path) -> socket.socket | None:
        """The socket that it listens on for us at a path; None where there is none. Raises UsageError for another."""
        if not self._fds:
            return None
        if len(self._fds) > 1:
            raise UsageError(f"{len(self._fds)} sockets were passed to the daemon: name one ListenStream alone")
        try:
            listener = socket.socket(fileno=self._fds[0])
        except OSError as error:
            raise UsageError(f"the socket that was passed to the daemon cannot be used: {error.strerror}") from None
        stream = listener.family == socket.AF_UNIX and listener.type == socket.SOCK_STREAM
        if not stream or not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise UsageError(f"the socket that was passed to the daemon is no ListenStream={path}")
        if listener.getsockname() != str(path):
            raise UsageError(f"the daemon was passed {listener.getsockname()!r}: make it ListenStream={path}")
        return listener

    def ready(self, status: str) -> None:
        """We serve, again if rules were read."""
        self._tell("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Rules are read again, until `ready`."""
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Everything is put back now."""
        self._tell("STOPPING=1")

    def alive(self) -> None:
        """The loop turns."""
        self._tell("WATCHDOG=1")

    def _tell(self, *lines: str) -> None:
        """A manager that does not listen is no reason to fail."""
        if self._address[:1] not in ("/", "@"):
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto("\n".join(line.replace("\n", " ") for line in lines).encode(), address)


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 18 else 0
