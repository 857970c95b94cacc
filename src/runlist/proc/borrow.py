"""Borrowing another process' open file, and telling whether that process still has it.

The copy is made by pidfd_getfd, which needs the right to ptrace-attach to the target: root, CAP_SYS_PTRACE, or the same
user and (where Yama's ptrace_scope is 1) being an ancestor. Nothing changes in the target.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from pathlib import Path

from runlist.errors import NoPermissionError, NoTargetError, NotSupportedError
from runlist.proc import descriptors
from runlist.proc.exhaustion import passes
from runlist.proc.inode import inode

_PR_SET_PTRACER = 0x59616D61

DENIED = (errno.EPERM, errno.EACCES, errno.ENOSYS)
"""The errors of a call that is denied: the filter of a container may answer as if there were no such call."""

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
