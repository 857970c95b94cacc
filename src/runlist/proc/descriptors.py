"""The descriptors of another process, in each of its tables.

Its threads share one table as a rule, which is found by the process' id. But a thread may have one of its own
(`unshare`), and where the first thread has ended that id leads to none. So a descriptor is a number: as the process has
it, and where that is not the first thread's, with the id of a thread that has it in the upper half.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import platform
from collections.abc import Iterator

_SYS_KCMP = {"x86_64": 312, "aarch64": 272}.get(platform.machine())
_SYS_PIDFD_GETFD = 438
_KCMP_FILE, _KCMP_FILES = 0, 2
_BELOW = 1
_PIDFD_THREAD = os.O_EXCL
_SHIFT = 32
_MASK = (1 << _SHIFT) - 1
_MOST_THREADS = 1 << 16
FEW = 64
"""So many threads are looked at where others wait: a process can have thousands, each with a table of its own."""


_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.argtypes = [ctypes.c_long] * 6  # here, so that no call has to: every file is compared each second
_libc.syscall.restype = ctypes.c_long


def numbers(pid: int) -> Iterator[tuple[int, str]]:
    """Each descriptor of a process, and what is open there as /proc has it. Raises OSError as /proc does."""
    for thread in _tables(pid):
        folder = _folder(pid, thread)
        for name in os.listdir(folder):
            try:
                yield _number(pid, thread, int(name)), os.readlink(f"{folder}/{name}")
            except FileNotFoundError:  # closed meanwhile
                continue


def path(pid: int, fd: int) -> str:
    """Where /proc has a descriptor."""
    thread, own = _place(pid, fd)
    return f"{_folder(pid, thread)}/{own}"


def everywhere(pid: int, fd: int, *, few: bool = False) -> Iterator[int]:
    """Descriptors of that number in all tables of a process: where it was found before others, and the first thread's
    then; they may be none. With `few` only the first threads are looked at.
    """
    thread, own = _place(pid, fd)
    if thread != pid and os.path.exists(_folder(pid, thread)):  # else the number may be another process' by now
        yield fd
    yield own
    for other in _tables(pid, FEW if few else _MOST_THREADS):
        if other not in (pid, thread):
            yield _number(pid, other, own)


def is_of_a_thread(fd: int) -> bool:
    """Whether a descriptor was found in another table than the first thread's."""
    return fd > _MASK


def has_many_threads(pid: int) -> bool:
    """Whether a process has more threads than are looked at where others wait. Raises OSError as /proc does."""
    return len(_threads(pid, FEW + 1)) > FEW


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


def _tables(pid: int, most: int = _MOST_THREADS) -> Iterator[int]:
    """A thread for each table of a process, the first one before others, of so many threads. Which are one table kcmp
    tells, by which they can be sorted, too; where it may not be asked the first one counts that has anything in it.
    """
    found: list[int] = []  # in the order of their tables
    for thread in sorted(_threads(pid, most), key=lambda thread: (thread != pid, thread)):
        try:
            place = _place_among(found, thread)
        except OSError:
            place = None if any(_has_any(pid, one) for one in found) else len(found)
        if place is not None:
            found.insert(place, thread)
            yield thread


def _threads(pid: int, most: int) -> list[int]:
    with os.scandir(f"/proc/{pid}/task") as entries:
        return [int(entry.name) for entry in itertools.islice(entries, most)]


def _place_among(found: list[int], thread: int) -> int | None:
    """Where a thread's table belongs among those that were found; None where it is one of them."""
    low, high = 0, len(found)
    while low < high:
        middle = (low + high) // 2
        order = _kcmp(found[middle], thread, _KCMP_FILES)
        if order == 0:
            return None
        low, high = (middle + 1, high) if order == _BELOW else (low, middle)
    return low


def _has_any(pid: int, thread: int) -> bool:
    with os.scandir(_folder(pid, thread)) as entries:
        return next(entries, None) is not None


def _folder(pid: int, thread: int) -> str:
    return f"/proc/{pid}/task/{thread}/fd"


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
