"""Others that look at the same system calls: they go on while our programs come and go, and so do ours."""

from __future__ import annotations

import ctypes
import os
import platform
import select
import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import pytest

from bench.harness.captured import Captured
from runlist.planes.kernel import bpf, rights
from runlist.planes.kernel.watching import Watch
from tests.fixtures.kernel import GROUP, Asking, captured_on, needs_kernel

pytestmark = needs_kernel
CLIENT = 0xC1D00077
_PERF_EVENT_OPEN, _IOCTL = {"x86_64": (298, 16), "aarch64": (241, 29)}[platform.machine()]
_TRACEPOINT, _ATTRIBUTE_BYTES = 2, 112
_libc = ctypes.CDLL(None, use_errno=True)

Counted = Callable[[], int]
"""How often a tracer saw this process make a request, and other calls of its."""


@contextmanager
def tracing() -> Iterator[int]:
    folder = rights.open_tracing()
    yield folder
    os.close(folder)


@contextmanager
def perf(tracepoint: str) -> Iterator[Counted]:
    """A count of perf_event_open(2), as of `perf stat -e`."""
    with tracing() as folder:
        number = rights.tracepoint_id(folder, tracepoint)
    attributes = struct.pack("<IIQ", _TRACEPOINT, _ATTRIBUTE_BYTES, number).ljust(_ATTRIBUTE_BYTES, b"\0")
    held = ctypes.create_string_buffer(attributes, len(attributes))
    event = _libc.syscall(ctypes.c_long(_PERF_EVENT_OPEN), held, 0, -1, -1, ctypes.c_ulong(8))
    assert event >= 0, os.strerror(ctypes.get_errno())
    yield lambda: int.from_bytes(os.read(event, 8), "little")
    os.close(event)


@contextmanager
def program(tracepoint: str) -> Iterator[Counted]:
    """A program of somebody else's, which counts, and has the kernel tell nobody else (it answers 0)."""
    fd = bpf.make_map("foreign", bpf.MapType.ARRAY, 4, 8, 1)
    code = b"".join(
        struct.pack("<BBhi", *instruction)
        for instruction in (
            (0x62, 0x0A, -4, 0), (0xBF, 0xA2, 0, 0), (0x07, 0x02, 0, -4),  # the key 0, on the stack
            (0x18, 0x11, 0, fd), (0x00, 0x00, 0, 0), (0x85, 0x00, 0, 1),  # looked up
            (0x15, 0x00, 2, 0), (0xB7, 0x01, 0, 1), (0xDB, 0x10, 0, 0),  # and one more there
            (0xB7, 0x00, 0, 0), (0x95, 0x00, 0, 0),
        )
    )  # fmt: skip
    with tracing() as folder:
        number = rights.tracepoint_id(folder, tracepoint)
    loaded = bpf.load_program("foreign", code, "GPL")
    held = bpf.attach(loaded, number)
    yield lambda: int.from_bytes(bpf.Map(fd, 4, 8).get(bytes(4)) or b"", "little")
    for each in (*held, loaded, fd):
        os.close(each)


@contextmanager
def ftrace(tracepoint: str) -> Iterator[Counted]:
    """As a user writes into files below /sys/kernel/tracing, with a buffer apart."""
    name = f"instances/runlist-{os.getpid()}"

    def write(file: str, text: str) -> None:
        with open(os.open(f"{name}/{file}", os.O_WRONLY, dir_fd=folder), "w") as opened:
            opened.write(text)

    def count() -> int:
        with open(os.open(f"{name}/trace", os.O_RDONLY, dir_fd=folder)) as opened:
            return sum(not line.startswith("#") for line in opened)

    with tracing() as folder:
        os.mkdir(name, dir_fd=folder)
        try:
            which = f" && id == {_IOCTL}" if tracepoint.startswith("raw_") else ""
            write(f"events/{tracepoint}/filter", f"common_pid == {os.getpid()}{which}")
            write(f"events/{tracepoint}/enable", "1")
            yield count
            write(f"events/{tracepoint}/enable", "0")
        finally:
            os.rmdir(name, dir_fd=folder)


TRACERS = {"perf": perf, "a program": program, "ftrace": ftrace}
WHERE = ("syscalls/sys_enter_ioctl", "syscalls/sys_exit_ioctl", "raw_syscalls/sys_enter")


@pytest.mark.parametrize("tracepoint", WHERE)
@pytest.mark.parametrize("tracer", TRACERS)
@pytest.mark.parametrize("first", ["they come first", "we come first"])
def test_others_and_we_go_on(file: int, first: str, tracer: str, tracepoint: str) -> None:
    handles = iter(range(0x15, 0x100))

    def asked() -> int:
        handle = next(handles)
        Asking(file, CLIENT).made(2, handle, GROUP)
        return handle

    def told(kernel: Captured) -> list[int]:
        return [event.object for event in kernel.take() if event.pid == os.getpid()]

    with ExitStack() as ours, ExitStack() as theirs:
        foreign: AbstractContextManager[Counted] = TRACERS[tracer](tracepoint)
        if first == "they come first":
            counted = theirs.enter_context(foreign)
            kernel = ours.enter_context(captured_on(file))
        else:
            kernel = ours.enter_context(captured_on(file))
            counted = theirs.enter_context(foreign)
        before, handle = counted(), asked()
        assert told(kernel) == [handle]
        assert counted() > before
        if first == "they come first":
            theirs.close()
            handle = asked()
            assert told(kernel) == [handle]
        else:
            ours.close()
            before = counted()
            asked()
            assert counted() > before


def test_others_see_switches_while_somebody_asks_why(file: int) -> None:
    with Watch(os.getpid()), perf("sched/sched_switch") as counted:
        before = counted()
        select.select([], [], [], 0.001)  # it gives its core away
        assert counted() > before
