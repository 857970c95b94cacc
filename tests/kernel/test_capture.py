"""What the kernel's programs capture of true ioctls, on the kernel that runs here."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import platform
import signal
import struct
import threading
from pathlib import Path

import pytest

from bench.harness.captured import Captured
from bench.harness.group_makers import make_groups
from runlist.planes.kernel.events import Event
from runlist.planes.kernel.maps import STRUCTURES
from runlist.protocol.kernel_autogen import PLACES, Counter, Kind, What
from tests.fixtures.kernel import (
    CHANNEL,
    COMPUTE,
    DEVICE,
    DISABLE_CHANNELS,
    GET_HANDLE_INFO,
    GET_TIMESLICE,
    GROUP,
    MEMORY,
    SET_TIMESLICE,
    Asking,
    captured_on,
    needs_kernel,
    number,
)

pytestmark = needs_kernel
CLIENT = 0xC1D00077
CALLS = 1 << 14
"""Under way, for which there is room beyond their places."""


def _mine(events: list[Event]) -> list[Event]:
    return [event for event in events if event.pid == os.getpid()]


def test_a_context_is_told_with_who_made_it(file: int) -> None:
    with captured_on(file) as kernel:
        asking = Asking(file, CLIENT)
        asking.client_made()
        asking.made(CLIENT, 2, DEVICE)
        asking.made(2, 0x15, GROUP)
        asking.made(0x15, 0x16, CHANNEL)
        asking.made(0x16, 0x17, COMPUTE)
        events = _mine(kernel.take())
    assert [(event.what, event.kind, event.parent, event.object) for event in events] == [
        (What.MADE, Kind.CLIENT, 0, CLIENT),
        (What.MADE, Kind.DEVICE, CLIENT, 2),
        (What.MADE, Kind.GROUP, 2, 0x15),
        (What.MADE, Kind.CHANNEL, 0x15, 0x16),
        (What.MADE, Kind.COMPUTE, 0x16, 0x17),
    ]
    own = os.stat("/sys/fs/cgroup" + Path("/proc/self/cgroup").read_text().splitlines()[-1].split("::")[1]).st_ino
    for event in events:
        assert (event.client, event.fd, event.tid, event.uid) == (CLIENT, file, threading.get_native_id(), os.getuid())
        assert event.name == Path("/proc/self/comm").read_text().strip()
        assert event.cgroup == own
    assert [event.time for event in events] == sorted(event.time for event in events)


def test_a_group_is_told_with_the_gpu_that_its_device_was_asked_for(file: int) -> None:
    numbers = (ctypes.c_uint32 * 2)(3, 0)
    with captured_on(file) as kernel:
        asking = Asking(file, CLIENT)
        asking.client_made()
        for device, params in ((2, ctypes.addressof(numbers)), (3, ctypes.addressof(numbers) + 4), (4, 0), (5, 1)):
            asking.made(CLIENT, device, DEVICE, params=params)
            asking.made(device, 0x10 + device, GROUP)
        asking.made(9, 0x19, GROUP)  # below what nobody saw
        asking.duplicated(6, 2, CLIENT)
        asking.made(6, 0x16, GROUP)
        asking.made(0x12, 0x1A, GROUP)  # below a group
        events = [event for event in _mine(kernel.take()) if event.kind is Kind.GROUP]
    assert {event.object: event.gpu for event in events} == {
        0x12: 4, 0x13: 1, 0x14: 0, 0x15: 0, 0x19: 0, 0x16: 4, 0x1A: 0,
    }  # fmt: skip


def test_another_thread_and_another_user_are_told(file: int) -> None:
    asking = Asking(file, CLIENT)
    with captured_on(file) as kernel:
        tid: list[int] = []

        def work() -> None:
            tid.append(threading.get_native_id())
            asking.made(2, 0x15, GROUP)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        child = os.fork()
        if child == 0:
            os.setresuid(65534, 65534, 65534)
            asking.made(2, 0x16, GROUP)
            os._exit(0)
        os.waitpid(child, 0)
        events = kernel.take()
    (first,) = _mine(events)
    assert (first.tid, first.object) == (tid[0], 0x15)
    assert first.tid != first.pid
    (made, ended) = [event for event in events if event.pid == child]
    assert (made.uid, made.object, ended.what) == (65534, 0x16, What.ENDED)


def test_what_the_driver_refused_is_not_told(file: int) -> None:
    with Captured() as kernel:
        asking = Asking(file, CLIENT)
        asking.made(2, 0x15, GROUP, status=0x1A)
        asking.made(2, 0x16, GROUP)
        with open("/dev/null", "r+b") as null, pytest.raises(OSError, match="Inappropriate ioctl"):
            Asking(null.fileno(), CLIENT).made(2, 0x17, GROUP)
        asking.freed(0x16, status=0x57)
        assert [event.object for event in _mine(kernel.take())] == [0x16]
        assert kernel.map("groups").get(struct.pack("<III", os.getpid(), CLIENT, 0x16)) is not None


def test_other_classes_other_sizes_and_other_numbers_are_not_told(file: int) -> None:
    with captured_on(file) as kernel:
        asking = Asking(file, CLIENT)
        asking.made(2, 0x15, MEMORY)
        fcntl.ioctl(file, number(0x2B, 40), bytearray(40), True)
        fcntl.ioctl(file, number(0x4E, 56), bytearray(56), True)
        fcntl.ioctl(file, number(0x2B, 48) ^ 0x100, bytearray(48), True)  # of another driver
        asking.controlled(0x15, GET_HANDLE_INFO)
        assert _mine(kernel.take()) == []


def test_a_request_behind_a_pointer_is_the_same(file: int) -> None:
    with captured_on(file) as kernel:
        Asking(file, CLIENT).made_behind_pointer(2, 0x15, GROUP)
        (event,) = _mine(kernel.take())
    assert (event.what, event.kind, event.object, event.class_) == (What.MADE, Kind.GROUP, 0x15, GROUP)


def test_a_pointer_to_nowhere_and_to_itself_are_nothing(file: int) -> None:
    with captured_on(file) as kernel:
        for inner, size, pointer in ((0x2B, 48, 8), (211, 16, 8), (0x2B, 1 << 20, 0), (1 << 30, 48, 0)):
            fcntl.ioctl(file, number(211, 16), bytearray(struct.pack("<IIQ", inner, size, pointer)), True)
        assert _mine(kernel.take()) == []
        assert kernel.counter(Counter.UNREAD) == 1


def test_frees_and_duplicates_are_followed(file: int) -> None:
    with captured_on(file) as kernel:
        asking = Asking(file, CLIENT)
        asking.made(2, 0x15, GROUP)
        asking.duplicated(0x99, 0x15)
        groups = kernel.map("groups")
        assert len([key for key in groups.all_keys() if key[:4] == struct.pack("<I", os.getpid())]) == 2
        asking.freed(0x15)
        asking.freed(0x15)  # nobody's any more
        events = _mine(kernel.take())
        left = [key for key in groups.all_keys() if key[:4] == struct.pack("<I", os.getpid())]
    assert [event.what for event in events] == [What.MADE, What.DUPLICATED, What.FREED]
    assert (events[1].object, events[1].parent, events[1].kind) == (0x99, 0x15, Kind.GROUP)
    assert left == [struct.pack("<III", os.getpid(), CLIENT, 0x99)]


def test_controls_are_counted_and_its_own_slice_is_an_event(file: int) -> None:
    with captured_on(file) as kernel:
        asking = Asking(file, CLIENT)
        for _ in range(3):
            asking.controlled(0x15, GET_TIMESLICE)
        asking.controlled(0x15, SET_TIMESLICE)
        (event,) = _mine(kernel.take())
        controls = kernel.map("controls")
        counted = {
            command: struct.unpack("<Q", controls.get(struct.pack("<II", os.getpid(), command)) or bytes(8))[0]
            for command in (GET_TIMESLICE, SET_TIMESLICE)
        }
    assert (event.what, event.class_, event.object, event.client) == (What.CONTROLLED, SET_TIMESLICE, 0x15, CLIENT)
    assert counted == {GET_TIMESLICE: 3, SET_TIMESLICE: 1}


def test_a_control_that_is_done_in_part_is_an_event_although_its_answer_is_an_error(file: int) -> None:
    with captured_on(file) as kernel:
        asking = Asking(file, CLIENT)
        asking.controlled(0x15, SET_TIMESLICE, status=0x21)
        asking.controlled(0x15, DISABLE_CHANNELS, status=0x21)
        events = _mine(kernel.take())
    assert [(event.what, event.class_) for event in events] == [(What.CONTROLLED, DISABLE_CHANNELS)]


def test_closing_running_another_program_and_ending_are_told(answering: Path) -> None:
    with captured_on(answering) as kernel:
        child = os.fork()
        if child == 0:
            fd = os.open(answering, os.O_RDWR)
            Asking(fd, CLIENT).made(2, 0x15, GROUP)
            os.close(os.dup(fd))  # another number: not the one
            os.close(fd)
            os.execv("/bin/true", ["true"])
        os.waitpid(child, 0)
        events = [event for event in kernel.take() if event.pid == child]
        assert kernel.map("processes").get(struct.pack("<I", child)) is None
    assert [event.what for event in events] == [What.MADE, What.CLOSED, What.EXECUTED, What.ENDED]


def test_a_killed_process_is_told_and_leaves_no_entry(answering: Path) -> None:
    with captured_on(answering) as kernel:
        child = os.fork()
        if child == 0:
            Asking(os.open(answering, os.O_RDWR), CLIENT).made(2, 0x15, GROUP)
            signal.pause()
        made = kernel.take_until(lambda events: any(event.pid == child for event in events))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        ended = [event for event in kernel.take() if event.pid == child]
        members = [key for key in kernel.map("members").all_keys() if struct.unpack_from("<I", key, 8)[0] == child]
    assert [event.what for event in (*made, *ended) if event.pid == child] == [What.MADE, What.ENDED]
    assert members == []


def test_the_daemons_own_requests_are_not_told(file: int) -> None:
    with captured_on(file, own=os.getpid()) as kernel:
        Asking(file, CLIENT).made(2, 0x15, GROUP)
        assert _mine(kernel.take()) == []


def test_a_thread_whose_place_is_taken_is_told_all_the_same(file: int) -> None:
    with captured_on(file) as kernel:
        place = struct.pack("<I", threading.get_native_id() % PLACES)
        places = kernel.map("places")
        places.put(place, bytes(STRUCTURES["CALL"].pack(who=1 << 32 | 1)))  # by a thread that is far away
        asking = Asking(file, CLIENT)
        asking.made(2, 0x15, GROUP)
        asking.made(2, 0x16, GROUP)
        places.put(place, bytes(STRUCTURES["CALL"].size))
        asking.made(2, 0x17, GROUP)
        assert [event.object for event in _mine(kernel.take())] == [0x15, 0x16, 0x17]
        assert list(kernel.map("calls").all_keys()) == []
        assert kernel.map("spilled").get(bytes(4)) == bytes(8)


def test_a_thread_for_whose_call_there_is_no_room_slows_nobody_down(file: int) -> None:
    """Calls beyond their places are looked up at the end of every ioctl of the machine while there are any."""
    with captured_on(file) as kernel:
        place = struct.pack("<I", threading.get_native_id() % PLACES)
        kernel.map("places").put(place, bytes(STRUCTURES["CALL"].pack(who=1 << 32 | 1)))
        calls = kernel.map("calls")
        for who in range(CALLS):
            calls.put(struct.pack("<Q", 1 << 40 | who), bytes(STRUCTURES["CALL"].size))
        Asking(file, CLIENT).made(2, 0x15, GROUP)
        assert kernel.counter(Counter.FULL) >= 1
        assert kernel.map("spilled").get(bytes(4)) == bytes(8)


def test_a_full_ring_counts_what_it_had_no_room_for(file: int) -> None:
    with captured_on(file) as kernel:
        asking, asked = Asking(file, CLIENT), 0
        while kernel.counter(Counter.DROPPED) < 10:
            asking.controlled(0x15, SET_TIMESLICE)
            asked += 1
        taken = len(_mine(kernel.take()))
        assert asked - kernel.counter(Counter.DROPPED) <= taken < asked  # others' requests may be counted, too
        asking.controlled(0x15, SET_TIMESLICE)
        assert len(_mine(kernel.take())) == 1  # it goes on


def test_a_flood_is_held_back_and_counted_for_its_process(file: int) -> None:
    with captured_on(file, budget=50) as kernel:
        asking = Asking(file, CLIENT)
        for _ in range(500):
            asking.controlled(0x15, SET_TIMESLICE)
        told = len(_mine(kernel.take()))
        process = kernel.map("processes").get(struct.pack("<I", os.getpid()))
        assert process is not None
        held_back = STRUCTURES["PROCESS"].unpack(process)["held_back"]
        assert told + held_back == 500
        assert told <= 300
        assert kernel.counter(Counter.HELD_BACK) >= held_back  # others' requests are held back, too


def test_what_is_freed_or_closed_in_a_flood_is_held_back_no_less(answering: Path, file: int) -> None:
    """It would fill the ring, and others would not be told. What the maps have of it goes all the same."""
    with Captured(budget=50) as kernel:
        for handle in range(100):
            one = os.open(answering, os.O_RDWR)
            asking = Asking(one, CLIENT)
            asking.made(2, handle, DEVICE)
            asking.freed(handle)
            os.close(one)
        told = _mine(kernel.take())
        process = STRUCTURES["PROCESS"].unpack(kernel.map("processes").get(struct.pack("<I", os.getpid())) or b"")
        assert {What.MADE, What.FREED, What.CLOSED} == {event.what for event in told}
        assert process["requests"] == len(told)
        assert process["held_back"] > 0
        for name in ("objects", "files"):
            assert not [key for key in kernel.map(name).all_keys() if key[:4] == struct.pack("<I", os.getpid())]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the calls of 32 bits are x86's")
def test_a_caller_of_32_bits_is_not_told_and_disturbs_nobody(file: int) -> None:
    """The kernel's tracepoints of single system calls leave these callers out: looks find them."""
    memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    low = ctypes.CDLL(None, use_errno=True).mmap
    low.restype = ctypes.c_void_p
    low.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    argument = low(None, 4096, 3, 0x62, -1, 0)  # private, anonymous, below 4 GiB
    ctypes.memmove(argument, struct.pack("<IIIIQQIII4x", CLIENT, 2, 0x15, GROUP, 0, 0, 0, 0, 0), 48)
    code = b"\x53\x89\xfb\x89\xf1\xb8\x36\x00\x00\x00\xcd\x80\x5b\xc3"  # ioctl(edi, esi, edx) by int 0x80
    memory.write(code)
    call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_uint, ctypes.c_uint)(
        ctypes.addressof(ctypes.c_char.from_buffer(memory))
    )
    with captured_on(file) as kernel:
        assert call(file, number(0x2B, 48), argument) in (0, -25)  # 0, or ENOTTY where FUSE takes no such caller
        Asking(file, CLIENT).made(2, 0x16, GROUP)
        assert [event.object for event in _mine(kernel.take())] == [0x16]


def test_two_daemons_have_programs_of_their_own(file: int) -> None:
    with captured_on(file) as first, captured_on(file) as second:
        Asking(file, CLIENT).made(2, 0x15, GROUP)
        assert [event.object for event in _mine(first.take())] == [0x15]
        assert [event.object for event in _mine(second.take())] == [0x15]
    with captured_on(file) as third:
        Asking(file, CLIENT).made(2, 0x16, GROUP)
        assert [event.object for event in _mine(third.take())] == [0x16]


def test_all_groups_of_processes_that_fork_and_are_killed(answering: Path) -> None:
    """Fewer than `python -m bench kernel_capture` makes, in the same way. Where the reader had no processor for long
    some may be dropped, and are counted then.
    """
    with captured_on(answering) as kernel:
        result = make_groups(answering, kernel.take, processes=8, groups=600)
        dropped = kernel.counter(Counter.DROPPED)
    assert result.made == 600
    assert dropped < result.made / 10
    assert result.made - dropped <= result.captured <= result.made
    assert result.captured - dropped <= result.attributed <= result.captured
