"""Locks of single bytes of a file, by open file descriptions: they end with the last descriptor, so with a process that
is killed, and threads and forks do not disturb each other. The file need not be so long.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from fcntl import F_RDLCK as READ
from fcntl import F_UNLCK as NONE
from fcntl import F_WRLCK as WRITE

__all__ = ["NONE", "READ", "WRITE", "in_the_way", "lock"]

_FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux: type, whence, start, length, pid


def lock(descriptor: int, byte: int, kind: int = WRITE) -> bool:
    """Have such a lock of a byte from now on, or none; False where another one is in the way. Raises OSError."""
    try:
        _ask(descriptor, fcntl.F_OFD_SETLK, byte, kind)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def in_the_way(descriptor: int, byte: int, kind: int = WRITE) -> bool:
    """Whether a lock of another open file is in the way of one of this kind. Raises OSError."""
    return _ask(descriptor, fcntl.F_OFD_GETLK, byte, kind) != NONE


def _ask(descriptor: int, operation: int, byte: int, kind: int) -> int:
    answer = fcntl.fcntl(descriptor, operation, _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0))
    return int(_FLOCK.unpack(answer)[0])
