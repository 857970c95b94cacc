"""A file that says which processes are changed now, for the next daemon: this one and its keeper may be killed at once.

Whoever still may put them back holds a lock on it, and a keeper that has done so empties it. It is written in place, a
line of one length for each process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import structlog

from runlist.errors import NoTargetError, RunlistError
from runlist.proc.process import start_of

_log = structlog.get_logger()

PATIENCE_S = 2.0
"""How long a keeper whose daemon is gone may take; one that takes longer hangs."""

_LINE = "{pid:>10} {start:>20}\n"
_LENGTH = len(_LINE.format(pid=0, start=0))
_FREE = " " * (_LENGTH - 1) + "\n"
_KEEPER = 0  # its line; those of changed processes follow


class Record:
    """The file of a daemon that runs. A disk that is full costs the record, and nothing else."""

    def __init__(self, path: Path) -> None:
        """Make it, in a folder that is this user's alone, in place of an older one. Raises OSError."""
        self._path = path
        path.unlink(missing_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self.fd = os.open(path, flags, 0o600)
        fcntl.flock(self.fd, fcntl.LOCK_EX)
        self._contexts: Counter[int] = Counter()
        self._lines: dict[int, int] = {}
        self._free: list[int] = []
        self._fails = False

    def keeper(self, pid: int) -> None:
        """Note who puts all back."""
        self._write(_KEEPER, pid)

    def add(self, pid: int) -> None:
        """A context of the process is about to be changed."""
        self._contexts[pid] += 1
        if self._contexts[pid] == 1:
            self._lines[pid] = self._free.pop() if self._free else len(self._lines) + 1
            self._write(self._lines[pid], pid)

    def remove(self, pid: int) -> None:
        """One of its contexts was put back, or is gone."""
        self._contexts[pid] -= 1
        if not self._contexts[pid]:
            del self._contexts[pid]
            line = self._lines.pop(pid)
            self._free.append(line)
            self._write(line, None)

    def _write(self, line: int, pid: int | None) -> None:
        start = None if pid is None else start_of(pid)
        text = _FREE if start is None else _LINE.format(pid=pid, start=start)
        try:
            os.pwrite(self.fd, text.encode(), line * _LENGTH)
        except OSError as error:
            if not self._fails:
                _log.warning("the next daemon will not know whom this one changed", reason=error.strerror)
            self._fails = True

    def close(self) -> None:
        """Remove it: all is put back."""
        if self.fd >= 0:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
            os.close(self.fd)
            self.fd = -1


def settle(path: Path, put_back: Callable[[int], object], patience_s: float = PATIENCE_S) -> None:
    """Put back whom an earlier daemon left changed that was killed together with its keeper. A keeper that is at it is
    waited for, and ended if it hangs. Called by who alone may be the daemon here, before it changes anything.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return
    try:
        if not _is_free(fd, patience_s):
            _end_keeper(fd)
        for pid in _processes(fd, _KEEPER + 1):
            _put_back(pid, put_back)
    finally:
        os.close(fd)


def _is_free(fd: int, patience_s: float) -> bool:
    """Whether nobody is left who may put back what the file says, after so long at most."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.005)
        else:
            return True


def _end_keeper(fd: int) -> None:
    for pid in _processes(fd, _KEEPER, _KEEPER + 1):
        _log.warning("the keeper of an earlier daemon hangs; it is ended", pid=pid)
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _put_back(pid: int, put_back: Callable[[int], object]) -> None:
    try:
        put_back(pid)
    except NoTargetError:  # it has let go of the GPU, or ended
        return
    except (RunlistError, OSError) as error:
        _log.error("an earlier daemon was killed with its keeper; its changes stay", pid=pid, reason=str(error))
    else:
        _log.warning("an earlier daemon was killed with its keeper; its changes are put back", pid=pid)


def _processes(fd: int, first: int, end: int | None = None) -> Iterator[int]:
    """The processes of the lines from `first` to before `end` that still live. What is half written names nobody."""
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        return
    content = os.pread(fd, found.st_size, 0)
    for place in range(0, len(content), _LENGTH)[first:end]:
        words = content[place : place + _LENGTH].split()
        if len(words) == 2 and all(word.isdigit() for word in words):
            pid, start = map(int, words)
            if start_of(pid) == start:
                yield pid
