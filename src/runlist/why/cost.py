"""What watching costs the process: each call that is watched takes longer, by what the same costs us here."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

_CALLS, _ROUNDS = 100, 5
_CODE = {
    "x86_64": (b"\x55\x5d\xc3", b"\x89\xf8\xc3"),  # push, pop, ret; mov, ret
    "aarch64": (b"\x1f\x20\x03\xd5\xc0\x03\x5f\xd6", b"\xe0\x03\x00\x2a\xc0\x03\x5f\xd6"),  # nop, ret; mov, ret
}
_APART = 64
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

Attach = Callable[[Path, int, bool], Callable[[], None]]
"""Watches a function of ours, at a place of a file, at its end or not; gives what ends that."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Nanoseconds that a watched call takes longer: where the kernel does the function's first instruction itself,
    where it has the processor step over that, and for its end as well.
    """

    call_ns: float
    stepped_ns: float
    return_ns: float


def measured(attach: Attach) -> Cost:
    """The cost on this machine, in some 20 ms. Raises OSError."""
    with _functions() as (path, addresses):
        quick, stepped = addresses
        call = _added(attach, path, quick, 0, at_return=False)
        return Cost(
            call,
            _added(attach, path, stepped, _APART, at_return=False),
            _added(attach, path, quick, 0, at_return=True),
        )


@contextlib.contextmanager
def _functions() -> Iterator[tuple[Path, tuple[int, int]]]:
    """Two functions of our own, in a file that only we have."""
    code = _CODE.get(platform.machine())
    if code is None:
        raise OSError(38, "this processor is not known here")
    fd = os.memfd_create("runlist-cost")
    try:
        os.pwrite(fd, code[0].ljust(_APART, b"\0") + code[1], 0)
        size = mmap.PAGESIZE
        os.ftruncate(fd, size)
        # By hand: what is watched may not be written, of which Python would not tell the address.
        at = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE, fd, 0)
        if at in (None, _FAILED):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        try:
            yield Path(f"/proc/{os.getpid()}/fd/{fd}"), (at, at + _APART)
        finally:
            _libc.munmap(ctypes.c_void_p(at), size)
    finally:
        os.close(fd)


def _added(attach: Attach, path: Path, address: int, place: int, *, at_return: bool) -> float:
    function = ctypes.CFUNCTYPE(ctypes.c_int)(address)

    def once() -> float:
        began = time.thread_time_ns()
        for _ in range(_CALLS):
            function()
        return (time.thread_time_ns() - began) / _CALLS

    once()
    without = [once() for _ in range(_ROUNDS)]
    detach = attach(path, place, at_return)
    try:
        once()
        return max(median(once() for _ in range(_ROUNDS)) - median(without), 0.0)
    finally:
        detach()
