"""Which kind of file system a file is on."""

from __future__ import annotations

import ctypes
import os

_libc = ctypes.CDLL(None, use_errno=True)


def file_system(fd: int) -> int:
    """The kernel's number of it (`f_type` of statfs). Raises OSError."""
    statfs = (ctypes.c_long * 32)()  # struct statfs begins with its type
    if _libc.fstatfs(fd, statfs):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(statfs[0])
