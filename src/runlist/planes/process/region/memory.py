"""A file's bytes by way of a mapping that nobody looks into: the kernel copies them, as between two processes.

Whoever may write a file can hold its lock for as long as he likes: by one `write` from memory that never comes (of a
file that a program serves), or a long `fallocate`. Each other `write` then waits, and nothing ends it, not even a kill.
A mapping asks for no such lock; and where the file was cut short under it a copy is an error, where a look would be a
signal.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from functools import lru_cache

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value


class Mapped:
    """So many bytes of an open file, which may have fewer. Methods raise OSError as the kernel does."""

    def __init__(self, fd: int, size: int) -> None:
        self._size = size  # mmap.mmap would copy the descriptor, of which there may be hundreds
        at = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
        if at is None or at == _FAILED:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self._at: int = at

    def read(self, at: int, size: int) -> bytes:
        """The bytes there; fewer where the file ends, an error where it ended before."""
        return os.pread(_own(os.getpid()), size, self._at + at)

    def write(self, at: int, data: bytes) -> None:
        """Put these bytes there."""
        os.pwrite(_own(os.getpid()), data, self._at + at)

    def close(self) -> None:
        """Let go of the file."""
        _libc.munmap(self._at, self._size)


def ready() -> None:
    """Open what copies need now: later there may be no descriptor left."""
    _own(os.getpid())


@lru_cache(1)
def _own(pid: int) -> int:
    """A descriptor of this process' memory: a child of fork has another one."""
    del pid
    return os.open("/proc/self/mem", os.O_RDWR | os.O_CLOEXEC)
