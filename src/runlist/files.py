"""Replacing files at once: whoever reads one sees what it was or what it is, and never half of it."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path


def replace(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file, or put this one in its place. Raises OSError, and leaves what was there: devices, pipes and links
    among it, which others know by that name.
    """
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise OSError(errno.EINVAL, "it is there, and no regular file", str(path))
    handle, hidden = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), mode)
        os.replace(hidden, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(hidden)
        raise
