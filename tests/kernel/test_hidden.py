"""Requests that a program would hide from the kernel's programs, by the memory in which their arguments are."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bench.harness.captured import Captured
from runlist.planes.kernel.events import Event
from runlist.protocol.kernel_autogen import Kind, What
from tests.fixtures.kernel import GROUP, SET_TIMESLICE, captured_on, needs_kernel, number
from tests.kernel.test_policy_map import counted

pytestmark = needs_kernel
CLIENT = 0xC1D00077
ALLOC = struct.pack("<IIIIQQIII4x", CLIENT, 2, 0x15, GROUP, 0, 0, 0, 0, 0)
FREE = struct.pack("<IIII", CLIENT, 2, 0x15, 0)
CONTROL = struct.pack("<IIIIQII", CLIENT, 0x15, SET_TIMESLICE, 0, 0, 0, 0)
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


@contextmanager
def argument(data: bytes, protection: int) -> Iterator[int]:
    """Where this is, in memory that one may so use."""
    place = _libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE, 0x22, -1, 0)  # private, anonymous
    ctypes.memmove(place, data, len(data))
    assert _libc.mprotect(place, mmap.PAGESIZE, protection) == 0
    yield place
    _libc.munmap(place, mmap.PAGESIZE)


def asked(fd: int, request: int, place: int) -> int:
    """The error with which a request ends, 0 for none."""
    done = _libc.ioctl(ctypes.c_int(fd), ctypes.c_ulong(request), ctypes.c_void_p(place))
    return 0 if done == 0 else ctypes.get_errno()


def told(kernel: Captured) -> list[Event]:
    return [event for event in kernel.take() if event.pid == os.getpid()]


def test_who_takes_no_answer_is_told_all_the_same(file: int) -> None:
    """The driver has done it by the time that it cannot say so."""
    with (
        captured_on(file) as kernel,
        argument(ALLOC, mmap.PROT_READ) as made,
        argument(CONTROL, mmap.PROT_READ) as control,
    ):
        assert asked(file, number(0x2B, len(ALLOC)), made) == errno.EFAULT
        assert asked(file, number(0x2A, len(CONTROL)), control) == errno.EFAULT
        first, second = told(kernel)
    assert (first.what, first.kind, first.object) == (What.MADE, Kind.GROUP, 0x15)
    assert (second.what, second.class_) == (What.CONTROLLED, SET_TIMESLICE)


def test_who_takes_no_answer_cannot_write_that_it_was_refused(file: int) -> None:
    with captured_on(file) as kernel, argument(CONTROL[:-4] + b"\1\0\0\0", mmap.PROT_READ) as control:
        assert asked(file, number(0x2A, len(CONTROL)), control) == errno.EFAULT
        assert [event.what for event in told(kernel)] == [What.CONTROLLED]


def test_who_takes_no_answer_has_freed_nothing(file: int) -> None:
    """That may be, and then the group counts on; else a program would free what the driver keeps."""
    with captured_on(file) as kernel, argument(FREE, mmap.PROT_READ) as free, argument(ALLOC, 3) as made:
        assert asked(file, number(0x2B, len(ALLOC)), made) == 0
        assert asked(file, number(0x29, len(FREE)), free) == errno.EFAULT
        assert [event.what for event in told(kernel)] == [What.MADE]
        assert counted(kernel, os.getpid()) == 1


@pytest.mark.parametrize("hides", ["nothing", "in a flood", "behind a status"])
def test_that_a_process_asked_anything_is_known(file: int, hides: str) -> None:
    """What it was may be held back, or written over by a second thread: the daemon asks what has changed."""
    times = 50 if hides == "in a flood" else 1
    data = CONTROL[:-4] + b"\1\0\0\0" if hides == "behind a status" else CONTROL
    with captured_on(file, budget=2) as kernel, argument(data, mmap.PROT_READ | mmap.PROT_WRITE) as control:
        before = 0
        for _ in range(times):
            assert asked(file, number(0x2A, len(CONTROL)), control) == 0
            assert kernel.asked(os.getpid()) > before
            before = kernel.asked(os.getpid())


def test_that_a_process_asked_is_known_though_it_was_forgotten_meanwhile(file: int) -> None:
    """There is room for so many processes: whoever has others ask has its own entry forgotten."""
    seen = []
    with captured_on(file) as kernel, argument(CONTROL, mmap.PROT_READ | mmap.PROT_WRITE) as control:
        for _ in range(2):
            assert asked(file, number(0x2A, len(CONTROL)), control) == 0
            seen.append(kernel.asked(os.getpid()))
            assert kernel.map("asked").delete(struct.pack("<I", os.getpid()))
    assert seen[0] != seen[1]
