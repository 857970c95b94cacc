"""Starting and ending threads while memory is short, and whether they have a processor."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading

from runlist.proc.exhaustion import NO_THREAD

ROOM = 2 << 20
"""Bytes that a thread needs before its first line, besides its stack, and some more."""


def refuse_without_memory() -> None:
    """From now on `Thread.start` raises RuntimeError where there is no memory for one, as where the kernel has none for
    its stack. The interpreter waits for a thread's first line without end, and one without memory has none: an event
    loop would stand still for ever, with tenants suspended. And a thread that is there when the interpreter ends takes
    nothing from the disk then: without memory for that, the C library would abort the process.
    """
    with contextlib.suppress(OSError):  # another C library than GNU's has no such file, and no need of it
        ctypes.CDLL("libgcc_s.so.1")
    start = threading.Thread.start

    def start_or_refuse(self: threading.Thread) -> None:
        try:
            mmap.mmap(-1, ROOM, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
        except (OSError, MemoryError):
            raise RuntimeError(NO_THREAD) from None
        start(self)

    threading.Thread.start = start_or_refuse  # type: ignore[method-assign]


def without_processor_s(thread: threading.Thread) -> float:
    """For how long a thread could have gone on, and had no processor; 0 where the kernel does not tell."""
    try:
        with open(f"/proc/self/task/{thread.native_id}/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
