"""Borrowing another process' open file, and telling whether that process still has it.

The copy is made by pidfd_getfd, which needs the right to ptrace-attach to the target: root, CAP_SYS_PTRACE, or the same
user and (where Yama's ptrace_scope is 1) being an ancestor. Nothing changes in the target.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import os
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from runlist.errors import NoPermissionError, NoTargetError, NotSupportedError
from runlist.proc import descriptors
from runlist.proc.aside import ask_all
from runlist.proc.exhaustion import passes
from runlist.proc.inode import inode
from runlist.proc.process import starts_of

_PR_SET_PTRACER = 0x59616D61

DENIED = (errno.EPERM, errno.EACCES, errno.ENOSYS)
"""The errors of a call that is denied: the filter of a container may answer as if there were no such call."""

_NUMBER = (1 << 32) - 1
_AT_ONCE, _MOST_ROUNDS = 128, 64
_MOST_LOOKED_AT = 256

_libc = ctypes.CDLL(None)


def open_process(pid: int) -> int:
    """A pidfd of a process. Raises NoTargetError when it is gone."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise NoTargetError(f"process {pid} does not exist") from None
    except OverflowError:
        raise NoTargetError(f"{pid} is no process id") from None
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            raise NoTargetError(f"{pid} is not a process (a thread's id, or not positive)") from None
        if passes(error):
            raise
        raise NotSupportedError(f"pidfd_open({pid}): {error.strerror}: Runlist needs Linux 5.6 or later") from None


def borrow(pidfd: int, fd: int) -> int:
    """Copy descriptor `fd` of a process into this one (close-on-exec). Raises OSError as the kernel does."""
    return descriptors.copy(pidfd, fd)


def asks_for_tracers() -> bool:
    """Whether the kernel lets only ancestors of a process borrow from it, and whom the process names (Yama)."""
    try:
        return Path("/proc/sys/kernel/yama/ptrace_scope").read_text().strip() == "1"
    except OSError:
        return False


def allow(pid: int) -> None:
    """Let a process, or what it starts, borrow from this one. It takes the place of the last that was allowed."""
    _libc.prctl(_PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)


class OwnRight:
    """Borrowing by the right of this process itself."""

    way = "own right"

    def borrow(self, pid: int, pidfd: int, fd: int) -> int:
        """A copy, owned by the caller. Raises OSError as pidfd_getfd does."""
        del pid
        return borrow(pidfd, fd)


def no_right(pid: int, reason: str) -> NoPermissionError:
    """The error for a process that this user may not borrow from."""
    return NoPermissionError(
        f"no right to borrow from process {pid} ({reason}): start it with `runlist run`, or run the daemon as root "
        "(in a container with the capability SYS_PTRACE)"
    )


def still_has(pid: int, fd: int, copy: int) -> bool:
    """Whether descriptor `fd` of process `pid` is still the open file of `copy`, where it was or in the tables of its
    first threads; false after exec or close.
    """
    if not descriptors.is_of_a_thread(fd) and _is_same(pid, fd, copy):  # as nearly always, for each process each second
        return True
    with contextlib.suppress(OSError):  # it is gone
        return any(_is_same(pid, each, copy) for each in descriptors.everywhere(pid, fd, few=True))
    return False


class Holder(NamedTuple):
    """A process that has open files: its id, a pidfd of it for whoever asked, and our copies by its own numbers."""

    pid: int
    pidfd: int
    copies: Mapping[int, int]


def who_has(copies: Mapping[int, int], among: Collection[int], but: Collection[int]) -> Holder | None:
    """Who has some open files, of which `copies` are ours, by the numbers that we copied them by: the newest process
    that has them by those numbers, as a child has, else one of some others by any. Raises NoTargetError where they are
    handed on more quickly than one can look. One pass over all processes: call it in a thread.
    """
    pairs = [(fd & _NUMBER, copy) for fd, copy in copies.items()]
    seen = set(but)
    for _ in range(_MOST_ROUNDS):
        come = sorted(_processes() - seen, reverse=True)
        for first in range(0, len(come), _AT_ONCE):
            found = ask_all((pid, partial(_holder, pid, pairs)) for pid in come[first : first + _AT_ONCE])
            if (holder := _first(found.values())) is not None:
                return holder
        if len(seen) > len(but) and None not in starts_of(come).values():  # none has ended, and left it to another
            found = ask_all((pid, partial(_holder_anywhere, pid, copies.values())) for pid in among if pid not in but)
            return _first(found.values())
        seen.update(come)
    raise NoTargetError("nobody has it for long enough")


def _processes() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdecimal()}


def _first(found: Iterable[Holder | None]) -> Holder | None:
    """The first, with the pidfds of the others closed."""
    holders = [one for one in found if one is not None]
    for other in holders[1:]:
        os.close(other.pidfd)
    return holders[0] if holders else None


def _holder_anywhere(pid: int, copies: Collection[int]) -> Holder | None:
    with os.scandir(f"/proc/{pid}/fd") as entries:
        fds = [int(entry.name) for entry in itertools.islice(entries, _MOST_LOOKED_AT)]
    return _holder(pid, list(itertools.product(fds, copies)))


def _holder(pid: int, pairs: Collection[tuple[int, int]]) -> Holder | None:
    if not _same_of(pid, pairs):
        return None
    pidfd = os.pidfd_open(pid)
    if mine := _same_of(pid, pairs):  # of that very process
        return Holder(pid, pidfd, mine)
    os.close(pidfd)
    return None


def _same_of(pid: int, pairs: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Of pairs of a process' descriptors and of ours those that are one open file."""
    found: dict[int, int] = {}
    for fd, copy in pairs:
        with contextlib.suppress(OSError):  # it has none there, or is not ours to ask
            if descriptors.is_same(pid, fd, copy):
                found[fd] = copy
    return found


def _is_same(pid: int, fd: int, copy: int) -> bool:
    try:
        return descriptors.is_same(pid, fd, copy)
    except OSError as error:
        if error.errno not in DENIED:
            return False  # that descriptor, or its thread, is gone
    try:  # without kcmp /proc tells it nearly as well
        return inode(f"/proc/self/fd/{copy}") == inode(descriptors.path(pid, fd))
    except OSError:
        return False
