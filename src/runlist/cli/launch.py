"""Running a command for `runlist run`: as its parent we have the right to borrow from all that it starts."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

from runlist.cli import child
from runlist.cli.common import say
from runlist.cli.tree import Tree
from runlist.client import Client
from runlist.planes.interface import Plane
from runlist.proc import borrow
from runlist.protocol import environment_autogen as names

_PR_SET_CHILD_SUBREAPER = 36
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
_FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)  # the terminal sends these to the command itself, too
_PARTING_S = 1.0  # how long to wait for the daemon at the end
_SILENCE_S = 1.0  # how long to wait for room without a word


def run_command(client: Client, command: list[str], settings: dict[str, str], plane: Plane, tree: Tree) -> int:
    """Run a command under the daemon of `client` until it ends; returns its exit code, 128 + number for a signal, and a
    shell's where it cannot be started.

    `settings` are for all that the command starts; `tree` was prepared for it.
    """
    # Orphans of the command become our children, and so stay below us in the process tree.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    patience = threading.Timer(_SILENCE_S, _say_that_it_waits)
    patience.daemon = True
    patience.start()
    client.launch(os.getpid(), None, settings, tree.region)  # returns when there is room for it
    patience.cancel()
    patience.join()
    for note in client.notes:
        say(note)
    forward = _Forward()
    forward.hold()
    ignores_children = signal.signal(signal.SIGCHLD, signal.SIG_DFL) == signal.SIG_IGN  # the kernel would reap them
    environment = {**os.environ, names.MESSAGES: str(client.messages), **tree.variables, **plane.environment()}
    try:
        process = child.start(command, environment, tree.inherited, ignores_children=ignores_children)
    except OSError as error:
        return child.not_started(command, error)
    forward.to(process.pid)
    lending = threading.Thread(target=_lend, args=(client,), daemon=True)
    lending.start()
    while True:
        pid, status = os.waitpid(-1, 0)  # orphans are reaped on the way
        if pid == process.pid:
            code = process.returncode = os.waitstatus_to_exitcode(status)
            if _has_children():  # they stay in the tree, although we do not stay above them
                client.end_launch()
                lending.join(_PARTING_S)
            return code if code >= 0 else 128 - code


def _has_children() -> bool:
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return True
    return False


class _Forward:
    """Passes signals on to the command, also those that come before its process is known."""

    def __init__(self) -> None:
        self._pid: int | None = None
        self._early: list[int] = []
        for number in _FORWARDED:
            _handle(number, self._take)

    def hold(self) -> None:
        """From now on the terminal's signals are the command's, which must not miss those that come as it starts."""
        for number in _FROM_TERMINAL:
            _handle(number, self._take_from_terminal)  # a handler, unlike ignoring, is not inherited by the command

    def to(self, pid: int) -> None:
        """Signals go to this process from now on."""
        self._pid = pid
        for number in self._early:
            self._send(pid, number)

    def _take(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._pid is None:
            self._early.append(number)
        else:
            self._send(self._pid, number)

    def _take_from_terminal(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._pid is None:
            self._early.append(number)

    @staticmethod
    def _send(pid: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _handle(number: signal.Signals, handler: Callable[[int, FrameType | None], None]) -> None:
    """Take a signal, unless we were started to ignore it (`nohup`, `&` in a script): so is the command then."""
    if signal.getsignal(number) != signal.SIG_IGN:
        signal.signal(number, handler)


def _say_that_it_waits() -> None:
    say("waits for room on a GPU; `runlist policy show` says who else does")


def _lend(client: Client) -> None:
    """Answer the daemon's requests to borrow from our descendants, until it is gone or the command has ended."""
    with contextlib.suppress(OSError):
        for request in client.serve_launch():
            try:
                pidfd = os.pidfd_open(request.pid)
                try:
                    fd = borrow.borrow(pidfd, request.fd)
                finally:
                    os.close(pidfd)
            except OSError as error:
                client.lend(error)
            else:
                client.lend(fd)
