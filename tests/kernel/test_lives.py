"""How long a process lives, and whose a descriptor is, on the kernel that runs here: by what a program that is written
for it could lose what the kernel counts of it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.harness.captured import Captured, of_file
from bench.harness.ioctl_file import ioctl_file
from runlist.planes.kernel import kernel_types
from runlist.planes.kernel.events import Event
from runlist.planes.kernel.maps import STRUCTURES
from runlist.proc.process import start_of
from runlist.protocol.kernel_autogen import What
from tests.fixtures.kernel import DEVICE, GROUP, MEMORY, Asking, needs_kernel
from tests.kernel.test_policy_map import counted

pytestmark = [
    needs_kernel,
    pytest.mark.skipif(bool(kernel_types.find().unknown), reason="the kernel does not tell its types"),
]
CLIENT = 0xC1D00077
_EXIT_THREAD = {"x86_64": 60, "aarch64": 93}[platform.machine()]


@contextmanager
def child(work: Callable[[], object]) -> Iterator[int]:
    """A process that does this, and then waits until it is killed."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            while True:
                signal.pause()
        finally:
            os._exit(1)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def of(events: list[Event], pid: int) -> list[What]:
    return [event.what for event in events if event.pid == pid]


def told(kernel: Captured, pid: int, what: What) -> list[What]:
    """What is told of a process until that is."""
    return of(kernel.take_until(lambda events: what in of(events, pid)), pid)


def test_a_process_lives_as_long_as_one_of_its_threads(answering: Path) -> None:
    """Else a program would have its groups forgotten by ending its first thread."""

    def work() -> None:
        asking = Asking(os.open(answering, os.O_RDWR), CLIENT)
        asking.client_made()
        asking.made(CLIENT, 0x15, GROUP)
        first = os.getpid()

        def go_on() -> None:
            while Path(f"/proc/self/task/{first}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                os.sched_yield()
            asking.made(CLIENT, 0x16, GROUP)
            signal.pause()

        threading.Thread(target=go_on).start()
        ctypes.CDLL(None).syscall(ctypes.c_long(_EXIT_THREAD), ctypes.c_long(0))

    with Captured(capture=of_file(answering)) as kernel:
        with child(work) as pid:
            seen = of(kernel.take_until(lambda events: of(events, pid).count(What.MADE) == 3), pid)
            number, alive = counted(kernel, pid), start_of(pid) is not None
        ended = of(kernel.take(), pid)
        assert counted(kernel, pid) == 0
    assert alive
    assert seen == [What.MADE] * 3
    assert number == 2
    assert ended == [What.ENDED]


def test_a_thread_that_runs_another_program_is_the_process_from_then_on(answering: Path) -> None:
    """The kernel ends the first thread, and gives its number to that one."""

    def work() -> None:
        fd = os.open(answering, os.O_RDWR)
        os.set_inheritable(fd, True)
        asking = Asking(fd, CLIENT)
        asking.client_made()
        asking.made(CLIENT, 0x15, GROUP)
        threading.Thread(target=lambda: os.execvp("sleep", ["sleep", "60"])).start()

    with Captured(capture=of_file(answering)) as kernel, child(work) as pid:
        assert told(kernel, pid, What.EXECUTED) == [What.MADE, What.MADE, What.EXECUTED]
        assert counted(kernel, pid) == 1


@pytest.mark.parametrize("another", ["a file of its own", "the driver's file, opened once more"])
def test_a_number_that_stands_for_another_file_takes_no_groups_with_it(answering: Path, another: str) -> None:
    """Of dup2 nobody is told. What is closed then is not the file on which the groups are."""
    with Captured(capture=of_file(answering)) as kernel:
        fd = os.open(answering, os.O_RDWR)
        asking = Asking(fd, CLIENT)
        asking.client_made()
        asking.made(CLIENT, 2, DEVICE)
        asking.made(2, 0x15, GROUP)
        kept = os.dup(fd)
        other = os.open("/dev/null" if another.startswith("a file") else answering, os.O_RDWR)
        os.dup2(other, fd)
        os.close(other)
        os.close(fd)
        assert counted(kernel, os.getpid()) == 1
        os.close(kept)


def test_a_number_that_stands_for_another_file_when_the_driver_answers(tmp_path: Path) -> None:
    """The group is on the file on which it was asked for."""
    asked, says_asked = os.pipe()
    go_on, says_go_on = os.pipe()

    def before() -> None:
        os.write(says_asked, b".")
        os.read(go_on, 1)

    with ioctl_file(tmp_path / "slow", before) as path, Captured(capture=of_file(path)) as kernel:
        fd, other = (os.open(path, os.O_RDWR) for _ in range(2))
        asking = Asking(fd, CLIENT)
        os.write(says_go_on, b".")
        asking.client_made()
        kept = os.dup(fd)
        thread = threading.Thread(target=lambda: asking.made(CLIENT, 0x15, GROUP))
        thread.start()
        assert len(os.read(asked, 1) + os.read(asked, 1)) == 2
        os.dup2(other, fd)
        os.close(other)
        os.write(says_go_on, b".")
        thread.join()
        os.close(fd)
        assert counted(kernel, os.getpid()) == 1
        os.close(kept)
    for end in (asked, says_asked, go_on, says_go_on):
        os.close(end)


def test_who_is_killed_or_becomes_another_while_the_driver_answers(tmp_path: Path) -> None:
    """One that is killed leaves nothing behind that it had begun. Of one whose name changes meanwhile, what counts is
    the one that it has when the driver has answered.
    """
    asked, says_asked = os.pipe()
    go_on, says_go_on = os.pipe()

    def before() -> None:
        os.write(says_asked, b".")
        os.read(go_on, 1)

    def becomes(asking: Asking) -> None:
        tid = threading.get_native_id()

        def change() -> None:
            os.read(asked, 1)
            Path(f"/proc/self/task/{tid}/comm").write_text("another")
            os.write(says_go_on, b".")

        thread = threading.Thread(target=change)
        thread.start()
        asking.made(CLIENT, 0x15, GROUP)
        thread.join()

    with ioctl_file(tmp_path / "slow", before) as path, Captured(capture=of_file(path)) as kernel:
        fd = os.open(path, os.O_RDWR)
        asking = Asking(fd, CLIENT)
        with child(lambda: asking.made(CLIENT, 0x15, GROUP)) as killed:
            os.read(asked, 1)
            os.kill(killed, signal.SIGKILL)
            os.write(says_go_on, b".")
        with child(lambda: becomes(asking)) as pid:
            events = kernel.take_until(lambda events: of(events, pid))
            (made,) = [event for event in events if event.pid == pid]
        places = [place for _, place in kernel.map("places").entries() if STRUCTURES["CALL"].unpack(place)["who"]]
        os.close(fd)
    for end in (asked, says_asked, go_on, says_go_on):
        os.close(end)
    assert (made.what, made.name) == (What.MADE, "another")
    assert places == []


# -- what goes with what -------------------------------------------------------------------------------


def device_with_groups(asking: Asking, device: int, *groups: int) -> None:
    asking.made(asking.client, device, DEVICE)
    for group in groups:
        asking.made(device, group, GROUP)


@pytest.mark.parametrize("then", ["the client is freed", "its file is closed"])
def test_groups_that_went_with_their_device_do_not_go_once_more_with_their_client(answering: Path, then: str) -> None:
    """Else others would go in their place."""
    with Captured(capture=of_file(answering)) as kernel:
        fd, other = (os.open(answering, os.O_RDWR) for _ in range(2))
        first, second = Asking(fd, CLIENT), Asking(other, CLIENT + 1)
        for each in (first, second):
            each.client_made()
        device_with_groups(first, 2, 0x15, 0x16)
        first.freed(2)
        device_with_groups(second, 2, 0x15, 0x16)
        assert counted(kernel, os.getpid()) == 2
        if then == "the client is freed":
            first.freed(CLIENT)
        os.close(fd)
        left = counted(kernel, os.getpid())
        os.close(other)
    assert left == 2


@pytest.mark.parametrize("again", ["", "a device of the same number"])
def test_whose_number_something_else_has_is_not_freed_with_it(answering: Path, again: str) -> None:
    """Groups went with their device. Their numbers may be those of memory then, of which nothing is captured."""
    with Captured(capture=of_file(answering)) as kernel:
        fd = os.open(answering, os.O_RDWR)
        asking = Asking(fd, CLIENT)
        asking.client_made()
        device_with_groups(asking, 2, 0x15, 0x16)
        asking.freed(2)
        device_with_groups(asking, 2 if again else 3, 0x17, 0x18)
        asking.made(2 if again else 3, 0x15, MEMORY)
        asking.freed(0x15)
        left = counted(kernel, os.getpid())
        asking.freed(0x17)
        assert counted(kernel, os.getpid()) == 1
        os.close(fd)
        assert counted(kernel, os.getpid()) == 0
    assert left == 2
