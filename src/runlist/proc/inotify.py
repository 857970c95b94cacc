"""Noticing that processes open the GPU, without polling hard: inotify on the driver's device nodes.

Every process opens them again and again while it makes a context. An event does not say who did: it only says that a
look is worth it now. Processes in another mount namespace may have device nodes of their own, so the daemon also looks
now and then without one.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_IN_OPEN = 0x20
_IN_NONBLOCK = os.O_NONBLOCK
_IN_CLOEXEC = os.O_CLOEXEC

_libc = ctypes.CDLL(None, use_errno=True)


class OpenWatch:
    """An inotify descriptor that becomes readable when one of some files is opened."""

    def __init__(self, paths: list[Path]) -> None:
        self._fd: int = _libc.inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC)
        if self._fd >= 0:
            for path in paths:
                _libc.inotify_add_watch(self._fd, os.fsencode(path), _IN_OPEN)

    @property
    def works(self) -> bool:
        """False where the kernel gives no inotify instance (a user's limit)."""
        return self._fd >= 0

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._fd

    def drain(self) -> None:
        """Read and drop the queued events; only their arrival counts."""
        try:
            while os.read(self._fd, 1 << 16):
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Close the descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
