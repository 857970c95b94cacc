"""Starting somebody's command as a shell would, with a shell's exit codes where it cannot be started."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from runlist.cli import ending
from runlist.cli.common import say
from runlist.proc.process import is_stopped
from runlist.waiting import readable

NOT_EXECUTABLE, NOT_FOUND = 126, 127
_SHELL = "/bin/sh"
_BEGINNING = 256  # bytes
_MOST_SIGNALS = 256  # that are taken at once
_TOGETHER_S = 0.05
_LOCALE = "LC_CTYPE"
_PR_SET_PDEATHSIG, _PR_GET_PDEATHSIG = 1, 2
_MEANT = ("LISTEN_PID", "WATCHDOG_PID", "SYSTEMD_EXEC_PID")
"""Where a service manager names the process that it means …"""
_MEANT_MORE_CLOSELY = "LISTEN_PIDFDID"
"""… and by more than its id, where it does so at all."""

# glibc's posix_spawn leaves signals that glibc itself uses ignored in what it starts. (Python documents the switch.)
subprocess._USE_POSIX_SPAWN = False  # type: ignore[misc]


class Children:
    """Is told how children end. `are_ignored` is whether we were started not to be: the kernel would have reaped them.

    A handler in Python runs between two of its steps. A signal that comes just before waitpid blocks would wait for the
    end of the command: so what blocks is a wait for a pipe that signals write to as they come.
    """

    def __init__(self) -> None:
        self.are_ignored = signal.signal(signal.SIGCHLD, lambda *_: None) == signal.SIG_IGN
        self._signals = -1
        with contextlib.suppress(OSError):  # no descriptor is left
            self._signals, written = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            signal.set_wakeup_fd(written, warn_on_full_buffer=False)

    def next(self, pid: int, command: int) -> tuple[int, int]:
        """The next child of those that waitpid means by `pid` that has stopped or ended, and its status."""
        if self._signals < 0:
            return os.waitpid(pid, os.WUNTRACED)
        with _pidfd(command) as watched:  # SIGCHLD may be blocked, as it was where we were started
            while not (found := os.waitpid(pid, os.WUNTRACED | os.WNOHANG))[0]:
                self._sleep(watched)
        return found

    def until_end(self, pid: int) -> None:
        """Returns once a process has ended, or at once where neither it nor a signal could be watched."""
        with _pidfd(pid) as watched:
            while self._signals >= 0 and watched and watched[0] not in self._sleep(watched):
                pass

    def _sleep(self, watched: list[int]) -> list[int]:
        """Until a signal comes, or one of these can be read; which of them can be."""
        ready = readable([self._signals, *watched])
        with contextlib.suppress(BlockingIOError):
            os.read(self._signals, _MOST_SIGNALS)
        return ready


@contextlib.contextmanager
def _pidfd(pid: int) -> Iterator[list[int]]:
    """A process' descriptor, which can be read once it has ended; none where there is none to be had."""
    with contextlib.ExitStack() as stack:
        watched = []
        with contextlib.suppress(OSError):
            watched.append(os.pidfd_open(pid))
            stack.callback(os.close, watched[0])
        yield watched


def start(
    command: list[str], variables: Mapping[str, str], given: Sequence[int] = (), *, ignores_children: bool = False
) -> subprocess.Popen[bytes]:
    """The running command, which has the environment and all descriptors that we were started with, and the variables
    and descriptors that are given to it. A script that names no interpreter is the shell's, as for `env` and `nice`.
    Raises OSError.

    Nobody else may wait for it, not even the Popen object when it is collected: keep it. With `ignores_children` it
    ignores SIGCHLD. Call it where there is one thread.
    """
    environment = {**_own_environment(), **variables}
    meant = [name for name in _MEANT if environment.get(name) == str(os.getpid())]
    if meant:
        environment.pop(_MEANT_MORE_CLOSELY, None)
    for descriptor in given:
        os.set_inheritable(descriptor, True)

    libc = ctypes.CDLL(None)
    parting = ctypes.c_int()
    libc.prctl(_PR_GET_PDEATHSIG, ctypes.byref(parting), 0, 0, 0)

    def in_child() -> None:
        if ignores_children:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        if parting:  # whose parent has it end by that when the parent does, has the command end, too
            libc.prctl(_PR_SET_PDEATHSIG, parting, 0, 0, 0)
        if meant:  # it is the command that they mean, whose id is not known before
            _become({**environment, **dict.fromkeys(meant, str(os.getpid()))})

    def run(words: list[str]) -> subprocess.Popen[bytes]:
        variables = None if meant else environment
        prepare = in_child if meant or parting or ignores_children else None
        return subprocess.Popen(words, env=variables, close_fds=False, preexec_fn=prepare)  # noqa: PLW1509 (one thread)

    try:
        return run(command)
    except OSError as error:
        path = shutil.which(command[0], path=environment.get("PATH"))
        if error.errno != errno.ENOEXEC or path is None or not _is_text(path):
            raise
        return run([_SHELL, path, *command[1:]])


def are_left() -> bool:
    """Whether we have children, as orphans of the command are, that have not ended. Those that have are reaped."""
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return False
    return True


def _own_environment() -> dict[str, str]:
    """The environment that we were started with. Where it names no locale Python sets one for itself and all that it
    starts.
    """
    environment = dict(os.environ)
    with contextlib.suppress(OSError):  # no /proc
        started_with = Path("/proc/self/environ").read_bytes().split(b"\0")
        environment.pop(_LOCALE, None)
        found = (os.fsdecode(entry).partition("=") for entry in started_with)
        environment.update({name: value for name, _, value in found if name == _LOCALE})
    return environment


def _become(environment: Mapping[str, str]) -> None:
    """Make ours the same as another environment."""
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update({name: value for name, value in environment.items() if os.environ.get(name) != value})


def end_of(process: subprocess.Popen[bytes], children: Children) -> int:
    """Wait for the end of a command; its exit code, as of `ended`. We stop as it does."""
    while True:
        pid, status = children.next(process.pid, process.pid)
        if not os.WIFSTOPPED(status):
            return ended(process, status)
        stop_as_well(pid)


def ended(process: subprocess.Popen[bytes], status: int) -> int:
    """Note that a command has ended, with a status of waitpid; its exit code, and 128 + number for a signal. We end by
    that, too.
    """
    code = process.returncode = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return code
    ending.note(-code)
    return 128 - code


def stop_as_well(pid: int) -> None:
    """A program for which Ctrl-Z is a key stops itself, some by SIGSTOP. The shell waits for us: it takes
    the terminal once we stop, too, and lets both go on. Where no shell waits for us at a terminal, nobody would let us
    go on.
    """
    time.sleep(_TOGETHER_S)  # what stops and lets go on a whole group comes to each of it in turn
    if is_stopped(pid) and _has_terminal():
        os.kill(os.getpid(), signal.SIGTSTP)


def _has_terminal() -> bool:
    """Whether our group has the terminal."""
    with contextlib.suppress(OSError):
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            return os.tcgetpgrp(terminal) == os.getpgrp()
        finally:
            os.close(terminal)
    return False


def not_started(command: list[str], error: OSError) -> int:
    """Say in one line why a command could not be started; returns the exit code for it."""
    name = command[0]
    if error.errno != errno.ENOENT:
        why = "is a directory" if os.path.isdir(name) else (error.strerror or str(error)).lower()
        say(f"{name}: cannot be run: {why}")
        return NOT_EXECUTABLE
    if os.path.lexists(name) and "/" in name:
        say(f"{name}: cannot be run: its interpreter, or what it links to, does not exist")
    else:
        say(f"{name}: no such command")
    return NOT_FOUND


def _is_text(path: str) -> bool:
    """Whether a file begins like a script, and not like a program of another machine."""
    try:
        with open(path, "rb") as file:
            return b"\0" not in file.read(_BEGINNING)
    except OSError:
        return False
