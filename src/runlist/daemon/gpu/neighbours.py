"""Other daemons with tasks on the same GPU, as where two users each have their own: none sees what another one sets.

Two tasks at slices shorter than a switch stop each other for good, whoever set them. So a daemon that wants such a
slice has a lock for reading on a byte of a file that all users of these GPUs see. Who finds that another one has it,
too, goes without; the other one finds that at its next look.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

from runlist import byte_lock


class Neighbours:
    """Those of one GPU. `paths` are files whose opening others may notice; the last one is the lock's. Where there is
    none, or it cannot be locked, we are alone as far as anybody can tell.
    """

    def __init__(self, paths: Sequence[Path], gpu: str) -> None:
        self.alone = True
        self._path = paths[-1] if paths else None
        self._byte = zlib.crc32(gpu.encode())
        self._file: int | None = None
        self._wants = self._has = False

    def may_have_tiny(self, wants: bool) -> bool:
        """Say whether a task of ours is to have a slice shorter than a switch; returns whether one may."""
        self._wants, self.alone = wants, True
        with contextlib.suppress(OSError):
            if wants != self._has and byte_lock.lock(
                self._opened(), self._byte, byte_lock.READ if wants else byte_lock.NONE
            ):
                self._has = wants
            if wants:  # who is kept from the lock is not seen by others, nor sees them
                self.alone = self._has and not byte_lock.in_the_way(self._opened(), self._byte)
        return self.alone

    def changed(self) -> bool:
        """Whether the answer is another one by now."""
        before = self.alone
        return self.may_have_tiny(self._wants) != before

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            os.close(self._file)
            self._file, self._wants, self._has = None, False, False

    def _opened(self) -> int:
        """The file's descriptor. Raises OSError."""
        if self._path is None:
            raise FileNotFoundError
        if self._file is None:
            self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        return self._file
