"""Which kind of file system a file is on."""

from __future__ import annotations

import ctypes
import os
from enum import IntEnum

_libc = ctypes.CDLL(None, use_errno=True)


class Kind(IntEnum):
    """File systems on which no program and no other machine decides how long a call takes, by the kernel's numbers."""

    TMPFS = 0x01021994
    EXT4 = 0x0000EF53
    XFS = 0x58465342
    BTRFS = 0x9123683E
    OVERLAYFS = 0x794C7630
    F2FS = 0xF2F52010
    ZFS = 0x2FC12FC1
    BCACHEFS = 0xCA451A4E
    RAMFS = 0x858458F6


LOCAL = frozenset[int](Kind)


def file_system(fd: int) -> int:
    """The kernel's number of it (`f_type` of statfs). Raises OSError."""
    statfs = (ctypes.c_long * 32)()  # struct statfs begins with its type
    if _libc.fstatfs(fd, statfs):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(statfs[0])
