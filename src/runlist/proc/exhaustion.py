"""Being without descriptors or memory: it passes, and nothing ends because of it."""

from __future__ import annotations

import errno

EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EAGAIN)
"""The errors of a call that found no descriptor, no memory, or no room for a process."""

NO_THREAD = "can't start new thread"
"""What a RuntimeError says where there is no room for a thread."""


def passes(error: BaseException) -> bool:
    """Whether an error is of this kind."""
    if isinstance(error, OSError):
        return error.errno in EXHAUSTED
    return isinstance(error, MemoryError) or str(error) == NO_THREAD
