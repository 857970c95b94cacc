"""The page that clients share, and their places. A place is a lock of the kernel, not a count.

Places are in a file beside the page: the library has locks of its own on that one, which a process would lose if it
closed a descriptor of it that it inherited.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from runlist import byte_lock, trusted
from runlist.errors import RunlistError

CLIENTS = 16
"""Places: 0 is the high-priority client's."""
PAGE, PLACES, TURN = "page", "places", "turn"

_TURN_S = 120.0  # a server may take long to start on a machine with many GPUs
_LOOK_S = 0.02
_FREE_NUMBER = 100  # descriptors from here on are hardly anybody's: programs think of the low ones as theirs


class Turn:
    """Held by one at a time. Raises RunlistError where another one holds it for too long."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def __enter__(self) -> Self:
        deadline = time.monotonic() + _TURN_S
        with trusted.usable():
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        while not locked(self._fd):
            if time.monotonic() > deadline:
                os.close(self._fd)
                raise RunlistError(
                    f"somebody holds {self._path} for {_TURN_S:.0f} s already: see who (fuser), and end it"
                )
            time.sleep(_LOOK_S)
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def keep(self) -> None:
        """It stays ours until this process ends."""
        self._fd = -1


def locked(fd: int) -> bool:
    """Lock a whole file for us alone, if nobody else has any such lock on it; whether that is so."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(fd: int) -> None:
    """Let go of a lock on a whole file."""
    fcntl.flock(fd, fcntl.LOCK_UN)


def is_held(path: Path) -> bool:
    """Whether somebody has a lock on a whole file."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not locked(fd)
    finally:
        os.close(fd)


def wait_until_left(fd: int) -> None:
    """Return once nobody has a place in the file `fd`. Somebody may come at once."""
    fcntl.flock(fd, fcntl.LOCK_EX)
    unlock(fd)


def open_places(folder: Path) -> int:
    """A descriptor of a folder's file of places, which is made if it is not there, and so is the page: empty, for the
    library to fill. Raises RunlistError.
    """
    os.close(_open(folder, PAGE))
    return _open(folder, PLACES)


def _open(folder: Path, name: str) -> int:
    try:
        fd = trusted.make_file(folder / name)
    except OSError as error:
        raise RunlistError(f"{folder / name} cannot be made: {error.strerror}") from None
    found = os.fstat(fd)
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        os.close(fd)
        raise RunlistError(f"{folder / name} can be read or written by others: remove it")
    return fd


@dataclass(frozen=True)
class Place:
    """A place: the descriptor that holds it, for the command to inherit."""

    index: int
    fd: int

    def close(self) -> None:
        """Give it up; it is free once all who inherited it have ended."""
        os.close(self.fd)


def take(folder: Path, *, first: bool) -> Place | int | None:
    """Take the first place, or any other; call it in one's turn. Else the process id of whoever has the first place (0
    where that is unknown), or None where all others are taken.
    """
    fd = _out_of_the_way(open_places(folder))
    for index in (0,) if first else range(1, CLIENTS):
        if byte_lock.lock(fd, index):
            fcntl.flock(fd, fcntl.LOCK_SH)
            with contextlib.suppress(OSError):  # for messages alone
                (folder / f"who-{index}").write_text(f"{os.getpid()}\n")
            return Place(index, fd)
    os.close(fd)
    if not first:
        return None
    with contextlib.suppress(OSError, ValueError):
        return int((folder / "who-0").read_text())
    return 0


def _out_of_the_way(low: int) -> int:
    """A copy in the stead of a descriptor; the same one where there may be none so high."""
    try:
        copy = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _FREE_NUMBER)
    except OSError:
        return low
    os.close(low)
    return copy
