"""Running a command as `runlist run` does: as its parent, which has the right to borrow from all that it starts."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
from types import FrameType

from runlist.client import Client
from runlist.errors import NoPermissionError, NoTargetError, NotSupportedError
from runlist.rm import borrow
from runlist.rm.transport import EmulatedDriver, choose_driver

_PR_SET_CHILD_SUBREAPER = 36
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
_FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)  # the terminal sends these to the command itself, too


def run_command(client: Client, command: list[str], task_class: str, device: str | None) -> int:
    """Run a command under the daemon of `client` until it ends; returns its exit code, 128 + number for a signal."""
    # Orphans of the command become our children, so that they stay below us in the process tree.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    client.launch(os.getpid(), task_class)
    threading.Thread(target=_lend, args=(client,), daemon=True).start()
    child = _start(command, device)

    def forward(number: int, frame: FrameType | None) -> None:
        del frame
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    while True:
        pid, status = os.waitpid(-1, 0)  # orphans are reaped on the way
        if pid == child.pid:
            code = child.returncode = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _start(command: list[str], device: str | None) -> subprocess.Popen[bytes]:
    """The running command. Nobody else may wait for it, not even the Popen object when it is collected: keep it."""
    driver = choose_driver(device)
    environment = dict(os.environ)
    if isinstance(driver, EmulatedDriver):
        from runlist.emulated import environment as emulated_environment

        environment.update(emulated_environment(driver.directory))
    for number in _FROM_TERMINAL:
        signal.signal(number, lambda *_: None)  # a handler, unlike ignoring, is not inherited by the command
    try:
        return subprocess.Popen(command, env=environment)
    except FileNotFoundError:
        raise NoTargetError(f"{command[0]}: no such command") from None
    except PermissionError:
        raise NoPermissionError(f"{command[0]}: not executable") from None
    except OSError as error:
        raise NotSupportedError(f"{command[0]}: {error.strerror}") from None


def _lend(client: Client) -> None:
    """Answer the daemon's requests to borrow from our descendants."""
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
