"""Imports asyncio and structlog without what they take along if it is there and the daemon never uses: 4 MB each of TLS
and of coloured tracebacks. Import it before anything else.
"""

from __future__ import annotations

import contextlib
import ctypes

from runlist.lean import absent

with absent("colorama", "rich", "ssl"):
    import asyncio  # noqa: F401

    import structlog  # noqa: F401

_KEPT_BYTES = 128 << 10  # glibc's own value, to begin with
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8


def keep_little() -> None:
    """Have malloc give back what is large once it is free, and use one arena. Else it learns from the megabytes that
    NVML takes for a question to keep them for the next, for each thread that ever asked. Call it before there are
    threads.
    """
    with contextlib.suppress(AttributeError):  # not glibc
        set_option = ctypes.CDLL(None).mallopt
        for option, value in ((_TRIM_THRESHOLD, _KEPT_BYTES), (_MMAP_THRESHOLD, _KEPT_BYTES), (_ARENA_MAX, 1)):
            set_option(option, value)
