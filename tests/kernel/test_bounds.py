"""Whose requests are captured at all, and how much room in the maps each has."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import tempfile
import termios
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from bench.harness.captured import Captured, of_file
from bench.harness.ioctl_file import ioctl_file
from runlist.planes.interface import DriverFiles
from runlist.planes.kernel import kernel_types
from runlist.planes.kernel.events import Event
from runlist.planes.kernel.maps import STRUCTURES
from runlist.planes.nvidia.capture import CAPTURE
from runlist.protocol.kernel_autogen import MOST_GROUPS, MOST_PROCESSES, NOWHERE, Counter, Kind, Verb, What
from tests.fixtures.kernel import GROUP, SET_TIMESLICE, Asking, needs_kernel
from tests.kernel.test_forgetting import sweep

pytestmark = [
    needs_kernel,
    pytest.mark.skipif(bool(kernel_types.find().unknown), reason="the kernel does not tell its types"),
]
CLIENT = 0xC1D00077
FIRST, SECOND = 60_001, 60_002


def mine(events: list[Event]) -> list[Event]:
    return [event for event in events if event.pid == os.getpid()]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where any user may go."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


# -- whose file it is ------------------------------------------------------------------------------


def test_a_file_of_the_programs_own_is_not_the_drivers(answering: Path, folder: Path) -> None:
    with ioctl_file(folder / "own") as path, Captured(capture=of_file(answering)) as kernel:
        own, drivers = os.open(path, os.O_RDWR), os.open(answering, os.O_RDWR)
        Asking(own, CLIENT).made(2, 0x15, GROUP)
        Asking(own, CLIENT).made_behind_pointer(2, 0x16, GROUP)
        Asking(drivers, CLIENT).made(2, 0x17, GROUP)
        Asking(drivers, CLIENT).made_behind_pointer(2, 0x18, GROUP)
        os.dup2(drivers, own)
        Asking(own, CLIENT).made(2, 0x19, GROUP)
        Asking(own, CLIENT).freed(0x19)
        thread = threading.Thread(target=lambda: Asking(drivers, CLIENT).made(2, 0x20, GROUP))
        thread.start()
        thread.join()
        seen = [event.object for event in mine(kernel.take())]
        os.close(own)
        os.close(drivers)
    assert seen == [0x17, 0x18, 0x19, 0x19, 0x20]


def test_others_groups_are_not_freed_by_a_file_of_ones_own(answering: Path, folder: Path) -> None:
    with ioctl_file(folder / "own") as path, Captured(capture=of_file(answering)) as kernel:
        own, drivers = os.open(path, os.O_RDWR), os.open(answering, os.O_RDWR)
        Asking(drivers, CLIENT).made(2, 0x15, GROUP)
        Asking(own, CLIENT).freed(0x15)
        assert kernel.map("groups").get(struct.pack("<III", os.getpid(), CLIENT, 0x15)) is not None
        os.close(own)
        os.close(drivers)


@pytest.mark.parametrize("devices", ["its own", "another"])
def test_a_device_is_the_drivers_by_its_major_number(devices: str) -> None:
    """A terminal is a device whose ioctl fills its argument with what it was told before: what it is taken for here is
    an allocation that was done.
    """
    shape = STRUCTURES["SHAPE"].pack(
        verb=Verb.ALLOCATE, bytes=8, client_at=60, parent_at=60, object_at=0, class_at=4, status_at=60,
        source_client_at=NOWHERE, source_at=NOWHERE,
    )  # fmt: skip
    one, other = pty.openpty()
    major = os.major(os.fstat(other).st_rdev)
    capture = msgspec.structs.replace(
        CAPTURE,
        shapes={termios.TIOCGWINSZ: bytes(shape)},
        files=DriverFiles(major=major if devices == "its own" else major + 1),
    )
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("<II", 0x1234, GROUP))
    with Captured(capture=capture) as kernel:
        fcntl.ioctl(other, termios.TIOCGWINSZ, bytes(8))
        seen = [(event.kind, event.object) for event in mine(kernel.take())]
    os.close(one)
    os.close(other)
    assert seen == ([(Kind.GROUP, 0x1234)] if devices == "its own" else [])


# -- how much room -----------------------------------------------------------------------------------


def as_user(uid: int, path: Path, groups: range) -> int:
    """A process of a user's that makes these groups and ends; its number."""
    child = os.fork()
    if child == 0:
        fd = os.open(path, os.O_RDWR)
        os.setresuid(uid, uid, uid)
        for handle in groups:
            Asking(fd, CLIENT).made(2, handle, GROUP)
        os._exit(0)
    os.waitpid(child, 0)
    return child


def groups_of(kernel: Captured, pid: int) -> int:
    return sum(struct.unpack_from("<I", key)[0] == pid for key in set(kernel.map("groups").all_keys()))


def test_one_user_cannot_take_the_room_of_others(folder: Path) -> None:
    with ioctl_file(folder / "driver") as path, Captured(budget=1 << 30, capture=of_file(folder / "driver")) as kernel:
        greedy = as_user(FIRST, path, range(1, MOST_GROUPS + 101))
        assert groups_of(kernel, greedy) == MOST_GROUPS
        assert kernel.counter(Counter.FULL) >= 100
        assert groups_of(kernel, as_user(FIRST, path, range(1, 4))) == 0
        assert groups_of(kernel, as_user(SECOND, path, range(1, 4))) == 3
        sweep(kernel)
        assert groups_of(kernel, as_user(FIRST, path, range(1, 4))) == 3
        assert groups_of(kernel, greedy) == 0


def test_what_is_freed_makes_room(folder: Path) -> None:
    with ioctl_file(folder / "driver") as path, Captured(budget=1 << 30, capture=of_file(folder / "driver")) as kernel:
        fd = os.open(path, os.O_RDWR)
        asking = Asking(fd, CLIENT)
        for handle in range(1, MOST_GROUPS + 101):
            asking.made(2, handle, GROUP)
            asking.made(2, handle, GROUP)  # the same once more takes no more
            asking.freed(handle)
        asking.made(2, 0x7, GROUP)
        assert groups_of(kernel, os.getpid()) == 1
        os.close(fd)


def test_one_user_cannot_take_the_room_of_others_processes(folder: Path) -> None:
    """Processes that were seen, and sleep."""
    with ioctl_file(folder / "driver") as path, Captured(capture=of_file(folder / "driver")) as kernel:
        processes = kernel.map("processes")
        owners = kernel.map("owners")
        owner = STRUCTURES["OWNER"].pack(processes=MOST_PROCESSES - 1)
        owners.put(struct.pack("<Q", FIRST), bytes(owner))
        reader, writer = os.pipe()
        made, says_made = os.pipe()
        children = []
        for uid in (FIRST, FIRST, SECOND):
            child = os.fork()
            if child == 0:
                os.close(writer)
                fd = os.open(path, os.O_RDWR)
                os.setresuid(uid, uid, uid)
                Asking(fd, CLIENT).made(2, 0x15, GROUP)
                os.write(says_made, b".")
                os.read(reader, 1)
                os._exit(0)
            children.append(child)
            os.read(made, 1)
        known = [processes.get(struct.pack("<I", child)) is not None for child in children]
        os.close(writer)
        for child in children:
            os.waitpid(child, 0)
        for end in (reader, made, says_made):
            os.close(end)
        left = STRUCTURES["OWNER"].unpack(owners.get(struct.pack("<Q", FIRST)) or bytes(16))["processes"]
    assert known == [True, False, True]
    assert left == MOST_PROCESSES - 1


def test_who_becomes_another_user_has_no_more_room_by_that(folder: Path) -> None:
    """What is made under a taken number counts for whom it counted: else a user could have less than nothing."""
    with ioctl_file(folder / "driver") as path, Captured(capture=of_file(folder / "driver")) as kernel:
        child = os.fork()
        if child == 0:
            fd = os.open(path, os.O_RDWR)
            for uid in (FIRST, SECOND):
                os.setresuid(uid, uid, 0)
                Asking(fd, CLIENT).made(2, 0x15, GROUP)
                os.setresuid(0, 0, 0)
            os.setresuid(SECOND, SECOND, 0)
            Asking(fd, CLIENT).freed(0x15)
            os.close(fd)
            os._exit(0)
        os.waitpid(child, 0)
        left = {
            uid: STRUCTURES["OWNER"].unpack(kernel.map("owners").get(struct.pack("<Q", uid)) or bytes(16))
            for uid in (FIRST, SECOND)
        }
    nothing = {"processes": 0, "groups": 0, "objects": 0, "files": 0}
    assert left == {FIRST: nothing, SECOND: nothing}


def test_many_processes_of_a_user_take_nobody_elses_room_in_the_ring(folder: Path) -> None:
    """A fork storm of them that ask on and on: two of them, at most, are told all that one may be."""
    with ioctl_file(folder / "driver") as path, Captured(budget=50, capture=of_file(folder / "driver")) as kernel:
        fd = os.open(path, os.O_RDWR)
        children = []
        for _ in range(16):
            if not (child := os.fork()):
                os.setresuid(FIRST, FIRST, FIRST)
                for _ in range(50):
                    Asking(fd, CLIENT).controlled(0x15, SET_TIMESLICE)
                os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        as_user(SECOND, path, range(1, 11))
        told = kernel.take()
        os.close(fd)
    flood = [event for event in told if event.uid == FIRST and event.what is What.CONTROLLED]
    assert 100 <= len(flood) <= 400  # a second of a busy machine may end meanwhile, and another
    assert [event.object for event in told if event.uid == SECOND and event.what is What.MADE] == list(range(1, 11))


def test_roots_room_is_by_cgroup(folder: Path) -> None:
    with ioctl_file(folder / "driver") as path, Captured(capture=of_file(folder / "driver")) as kernel:
        fd = os.open(path, os.O_RDWR)
        Asking(fd, CLIENT).made(2, 0x15, GROUP)
        group = kernel.map("groups").get(struct.pack("<III", os.getpid(), CLIENT, 0x15))
        assert group is not None
        found = STRUCTURES["GROUP"].unpack(group)
        os.close(fd)
    assert found["owner"] == (1 << 63 | int(str(found["cgroup"])))
