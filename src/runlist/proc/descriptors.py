"""The descriptors of another process, in each of its tables.

Its threads share one table as a rule, which is found by the process' id. But a thread may have one of its own
(`unshare`), and where the first thread has ended that id leads to none. So a descriptor is a number: as the process has
it, and where that is not the first thread's, with the id of a thread that has it in the upper half.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections.abc import Iterator

_SYS_KCMP = {"x86_64": 312, "aarch64": 272}.get(platform.machine())
_SYS_PIDFD_GETFD = 438
_KCMP_FILE, _KCMP_FILES = 0, 2
_PIDFD_THREAD = os.O_EXCL
_SHIFT = 32
_MASK = (1 << _SHIFT) - 1
_MOST_THREADS = 1 << 16

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.argtypes = [ctypes.c_long] * 6  # here, so that no call has to: every file is compared each second
_libc.syscall.restype = ctypes.c_long


def numbers(pid: int) -> Iterator[tuple[int, str]]:
    """Each descriptor of a process, and what is open there as /proc has it. Raises OSError as /proc does."""
    for thread in _tables(pid):
        folder = f"/proc/{pid}/task/{thread}/fd"
        for name in os.listdir(folder):
            try:
                yield _number(pid, thread, int(name)), os.readlink(f"{folder}/{name}")
            except FileNotFoundError:  # closed meanwhile
                continue


def path(pid: int, fd: int) -> str:
    """Where /proc has a descriptor."""
    thread, own = _place(pid, fd)
    return f"/proc/{pid}/task/{thread}/fd/{own}"


def everywhere(pid: int, fd: int) -> Iterator[int]:
    """Descriptors of that number in all tables of a process, the first thread's before others; they may be none."""
    own = fd & _MASK
    yield own
    for thread in _tables(pid):
        if thread != pid:
            yield _number(pid, thread, own)


def copy(pidfd: int, fd: int) -> int:
    """Copy a descriptor of a process into this one (close-on-exec). Raises OSError as the kernel does; those of other
    threads it gives since Linux 6.9.
    """
    thread, own = fd >> _SHIFT, fd & _MASK
    if not thread:
        return _syscall(_SYS_PIDFD_GETFD, pidfd, own, 0)
    of_thread = os.pidfd_open(thread, _PIDFD_THREAD)
    try:
        return _syscall(_SYS_PIDFD_GETFD, of_thread, own, 0)
    finally:
        os.close(of_thread)


def is_same(pid: int, fd: int, ours: int) -> bool:
    """Whether a descriptor of a process and ours are one open file. Raises OSError as kcmp does, where there is none,
    too.
    """
    thread, own = _place(pid, fd)
    return _kcmp(os.getpid(), thread, _KCMP_FILE, ours, own) == 0


def _tables(pid: int) -> Iterator[int]:
    """A thread for each table of a process, the first one before others. Which are one table kcmp tells; where it may
    not be asked the first one counts that has anything in it.
    """
    threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")[:_MOST_THREADS]]
    found: list[int] = []
    for thread in sorted(threads, key=lambda thread: (thread != pid, thread)):
        try:
            known = any(_kcmp(one, thread, _KCMP_FILES) == 0 for one in found)
        except OSError:
            known = any(os.listdir(f"/proc/{pid}/task/{one}/fd") for one in found)
        if not known:
            found.append(thread)
            yield thread


def _place(pid: int, fd: int) -> tuple[int, int]:
    return fd >> _SHIFT or pid, fd & _MASK


def _number(pid: int, thread: int, fd: int) -> int:
    return fd if thread == pid else thread << _SHIFT | fd


def _kcmp(one: int, other: int, what: int, first: int = 0, second: int = 0) -> int:
    if _SYS_KCMP is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    return _syscall(_SYS_KCMP, one, other, what, first, second)


def _syscall(number: int, one: int, other: int, what: int, first: int = 0, second: int = 0) -> int:
    result: int = _libc.syscall(number, one, other, what, first, second)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
