"""One at a time on the GPU, the urgent ones first: locks of the kernel's on two files, which end with their holder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class Turn:
    """A turn on the GPU, while it is entered. All that take turns name the same file; a second one is made beside it.

    Who is urgent holds the second lock with the other urgent ones for as long as they want the GPU; who is not gives
    the GPU back at once when somebody does.
    """

    def __init__(self, path: Path, *, urgent: bool) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._gpu = os.open(path, flags, 0o600)
        self._wanted = os.open(path.with_name(path.name + ".urgent"), flags, 0o600)
        self._urgent = urgent

    def __enter__(self) -> None:
        if self._urgent:
            fcntl.flock(self._wanted, fcntl.LOCK_SH)
            fcntl.flock(self._gpu, fcntl.LOCK_EX)
            return
        while True:
            fcntl.flock(self._gpu, fcntl.LOCK_EX)
            try:
                fcntl.flock(self._wanted, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                fcntl.flock(self._gpu, fcntl.LOCK_UN)
                fcntl.flock(self._wanted, fcntl.LOCK_EX)  # until no urgent one is left
                fcntl.flock(self._wanted, fcntl.LOCK_UN)
            else:
                fcntl.flock(self._wanted, fcntl.LOCK_UN)
                return

    def __exit__(self, *_: object) -> None:
        fcntl.flock(self._gpu, fcntl.LOCK_UN)
        if self._urgent:
            fcntl.flock(self._wanted, fcntl.LOCK_UN)
