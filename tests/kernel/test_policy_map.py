"""The policy map on the kernel that runs here: which entry names a process, what it forbids, and what is refused.

Where this kernel takes no program that refuses (BPF_LSM), the instructions of that program are verified by it all the
same, and run on requests that are made up: nothing but its hook differs.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.harness.captured import Captured
from runlist.planes.kernel import bpf, kernel_types, loading, program
from runlist.planes.kernel.events import Event
from runlist.planes.kernel.maps import MOST_ENTRIES, STRUCTURES
from runlist.protocol import kernel_autogen as protocol
from runlist.protocol.kernel_autogen import BY_CGROUP, BY_COMM, BY_USER, Counter, Refusal, What
from tests.fixtures.kernel import (
    CHANNEL,
    DISABLE_CHANNELS,
    GET_TIMESLICE,
    GROUP,
    SET_TIMESLICE,
    Asking,
    captured_on,
    needs_kernel,
    number,
)

pytestmark = needs_kernel
CLIENT = 0xC1D00077
GROUPS_AT = STRUCTURES["PROCESS"].offsets["groups"]
_RAW_TRACEPOINT, _PROG_LOAD, _TEST_RUN = 17, 5, 10
_COPY_FROM_USER, _READ_USER = 148, 112
_CALL = 0x85


class Map:
    """The policy map as a daemon writes it: entries, then that they are in force."""

    def __init__(self, kernel: Captured) -> None:
        self._kernel = kernel
        self.generation = 1
        self.which = 0

    def enter(self, order: int = 0, flags: int = 0, most_groups: int = 0, gpus: int = 0, **key: object) -> None:
        """An entry by `cgroup`, `user` and `comm`, as far as they are named."""
        bits = {"cgroup": BY_CGROUP, "user": BY_USER, "comm": BY_COMM}
        which = sum(bits[name] for name in key)
        packed = STRUCTURES["POLICY_KEY"].pack(which=which, generation=self.generation, **key)
        value = STRUCTURES["POLICY"].pack(
            order=order, number=order + 1, flags=flags, most_groups=most_groups, gpus=gpus
        )  # fmt: skip
        self._kernel.map("policy").put(bytes(packed), bytes(value))
        self.which |= 1 << which | (protocol.FORCE_REFUSES if flags else 0)

    def begin(self) -> None:
        """Have the entries count."""
        self._kernel.map("force").put(bytes(4), struct.pack("<II", self.generation, self.which))


def mine(events: list[Event]) -> list[Event]:
    return [event for event in events if event.pid == os.getpid()]


def cgroup() -> int:
    """The number of our own cgroup, as the kernel tells it of us."""
    path = Path("/proc/self/cgroup").read_text().splitlines()[-1].split("::")[1]
    return next(
        (above / path.lstrip("/")).stat().st_ino
        for above in (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
        if (above / "cgroup.procs").exists()
    )


@pytest.fixture(autouse=True)
def own_name() -> Iterator[None]:
    """A name that no other process has: what entries forbid is forbidden on the whole machine."""
    before = comm()
    Path("/proc/thread-self/comm").write_text(f"test-{os.getpid()}")
    yield
    Path("/proc/thread-self/comm").write_bytes(before)


def comm() -> bytes:
    return Path("/proc/thread-self/comm").read_bytes().strip()


@pytest.mark.parametrize("names", [("cgroup",), ("user",), ("comm",), ("cgroup", "user", "comm"), ("user", "comm")])
def test_the_entry_that_names_a_process_comes_with_its_group(file: int, names: tuple[str, ...]) -> None:
    own = {"cgroup": cgroup(), "user": os.getuid(), "comm": comm()}
    others = {"cgroup": cgroup() + 1, "user": 12345, "comm": b"another"}
    with captured_on(file) as kernel:
        entries = Map(kernel)
        entries.enter(6, **{name: own[name] for name in names})
        entries.enter(2, **{name: others[name] for name in names})
        asking = Asking(file, CLIENT)
        asking.made(2, 0x15, GROUP)  # nothing is in force yet
        entries.begin()
        asking.made(2, 0x16, GROUP)
        asking.made(0x16, 0x17, CHANNEL)
        assert [event.entry for event in mine(kernel.take())] == [0, 7, 0]


def test_of_several_entries_the_first_counts(file: int) -> None:
    with captured_on(file) as kernel:
        entries = Map(kernel)
        entries.enter(5, cgroup=cgroup(), comm=comm())
        entries.enter(3, user=os.getuid())
        entries.enter(4, comm=comm())
        entries.begin()
        Asking(file, CLIENT).made(2, 0x15, GROUP)
        assert [event.entry for event in mine(kernel.take())] == [4]


def test_entries_of_another_generation_do_not_count(file: int) -> None:
    with captured_on(file) as kernel:
        entries = Map(kernel)
        entries.enter(1, user=os.getuid())
        entries.begin()
        entries.generation = 2
        entries.enter(8, user=os.getuid())
        asking = Asking(file, CLIENT)
        asking.made(2, 0x15, GROUP)
        entries.begin()
        asking.made(2, 0x16, GROUP)
        assert [event.entry for event in mine(kernel.take())] == [2, 9]


def test_what_the_map_forbids_is_counted_and_told_where_it_was_done(file: int) -> None:
    with captured_on(file) as kernel:
        entries = Map(kernel)
        entries.enter(flags=protocol.REFUSE_SLICES | protocol.REFUSE_GROUPS, most_groups=2, comm=comm())
        entries.begin()
        if not kernel.loaded.lenient:
            pytest.skip("this kernel refuses: nothing forbidden is done")
        asking = Asking(file, CLIENT)
        for handle in (0x15, 0x16, 0x17):
            asking.made(2, handle, GROUP)
        asking.controlled(0x15, SET_TIMESLICE)
        asking.controlled(0x15, GET_TIMESLICE)
        told = [event for event in mine(kernel.take()) if event.what is What.FORBIDDEN]
        counted = kernel.map("refusals").get(struct.pack("<II", os.getpid(), Refusal.SLICES))
        assert [(event.parent, event.object, event.entry) for event in told] == [
            (Refusal.GROUPS, 0x17, 1),
            (Refusal.SLICES, 0x15, 1),
        ]
        assert counted == struct.pack("<Q", 1)
        assert kernel.counter(Counter.FORBIDDEN) == 2


def test_who_is_exempt_is_refused_nothing_and_told_of_for_nothing(file: int) -> None:
    """The daemon's helpers, whatever entry names them."""
    with Captured(exempt=(os.getppid(), os.getpid())) as kernel:
        entries = Map(kernel)
        entries.enter(flags=protocol.REFUSE_SLICES | protocol.REFUSE_GROUPS, most_groups=1, comm=comm())
        entries.begin()
        asking = Asking(file, CLIENT)
        for handle in (0x15, 0x16):
            asking.made(2, handle, GROUP)
        asking.controlled(0x15, SET_TIMESLICE)
        refusing = Refusing(kernel)
        assert (refusing.control(0x15, SET_TIMESLICE), refusing.group(0x17)) == (0, 0)
        refusing.close()
        assert [event.what for event in mine(kernel.take())] == [What.MADE, What.MADE]
        assert kernel.counter(Counter.FORBIDDEN) == 0


def test_groups_that_went_with_their_client_are_not_counted_on(file: int) -> None:
    """A program that makes contexts and frees them, one after the other, never has more than one."""
    with captured_on(file) as kernel:
        entries = Map(kernel)
        entries.enter(flags=protocol.REFUSE_GROUPS, most_groups=2, comm=comm())
        entries.begin()
        for round_ in range(4):
            asking = Asking(file, CLIENT + round_)
            asking.client_made()
            asking.made(CLIENT + round_, 2, 0x80)
            asking.made(2, 0x15, GROUP)
            asking.made(2, 0x16, GROUP)
            asking.freed((CLIENT + round_) if round_ % 2 else 2)
        assert [event for event in mine(kernel.take()) if event.what is What.FORBIDDEN] == []
        assert counted(kernel, os.getpid()) == 0


def counted(kernel: Captured, pid: int) -> int:
    """How many groups the kernel takes a process to have."""
    process = kernel.map("processes").get(struct.pack("<I", pid)) or bytes(72)
    return int(struct.unpack_from("<I", process, GROUPS_AT)[0])


def test_a_group_goes_with_the_last_copy_of_its_file(answering: Path) -> None:
    """A program that copies the descriptor and closes one could have any number of groups."""
    with captured_on(answering) as kernel:
        fd = os.open(answering, os.O_RDWR)
        asking = Asking(fd, CLIENT)
        asking.client_made()
        asking.made(CLIENT, 0x15, GROUP)
        other = os.dup(fd)
        os.close(fd)
        assert counted(kernel, os.getpid()) == 1
        os.close(other)
        fd = os.open(answering, os.O_RDWR)
        asking = Asking(fd, CLIENT + 1)
        asking.client_made()
        asking.made(CLIENT + 1, 0x15, GROUP)
        os.close(fd)
        assert counted(kernel, os.getpid()) == 1


@pytest.mark.parametrize("keeps", [True, False])
def test_groups_stay_with_who_runs_another_program_and_keeps_the_file(answering: Path, keeps: bool) -> None:
    with captured_on(answering) as kernel:
        child = os.fork()
        if child == 0:
            fd = os.open(answering, os.O_RDWR)
            os.set_inheritable(fd, keeps)
            Asking(fd, CLIENT).made(CLIENT, 0x15, GROUP)
            os.execvp("sleep", ["sleep", "60"])
        kernel.take_until(lambda events: any(event.what is What.EXECUTED and event.pid == child for event in events))
        left = counted(kernel, child)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert left == keeps


@pytest.mark.parametrize(
    ("flood", "forbids", "told"),
    [
        (GET_TIMESLICE, protocol.REFUSE_SLICES | protocol.REFUSE_GROUPS, [Refusal.GROUPS, Refusal.SLICES]),
        (DISABLE_CHANNELS, protocol.REFUSE_GROUPS, [Refusal.GROUPS]),
    ],
)
def test_a_flood_hides_nothing_that_is_forbidden(file: int, flood: int, forbids: int, told: list[Refusal]) -> None:
    """Nor does one of requests that change who makes them, and fail: those are quickly made."""
    with captured_on(file, budget=50) as kernel:
        entries = Map(kernel)
        entries.enter(flags=forbids, most_groups=2, comm=comm())
        entries.begin()
        if not kernel.loaded.lenient:
            pytest.skip("this kernel refuses: nothing forbidden is done")
        asking = Asking(file, CLIENT)
        for _ in range(400):
            asking.controlled(0x15, flood, status=0x21 if flood == DISABLE_CHANNELS else 0)
        for handle in (0x15, 0x16, 0x17):
            asking.made(2, handle, GROUP)
        asking.controlled(0x15, SET_TIMESLICE)
        assert [event.parent for event in mine(kernel.take()) if event.what is What.FORBIDDEN] == told


def test_a_new_group_may_have_its_slice_set(file: int) -> None:
    """CUDA does that while it makes a context."""
    with Captured(settle_ms=3_600_000) as kernel:
        entries = Map(kernel)
        entries.enter(flags=protocol.REFUSE_SLICES, comm=comm())
        entries.begin()
        asking = Asking(file, CLIENT)
        asking.made(2, 0x15, GROUP)
        asking.controlled(0x15, SET_TIMESLICE)
        assert [event.what for event in mine(kernel.take())] == [What.MADE, What.CONTROLLED]
        refusing = Refusing(kernel)
        assert refusing.control(0x15, SET_TIMESLICE) == 0
        assert refusing.control(0x99, SET_TIMESLICE) == -errno.EPERM  # nobody saw it made
        refusing.close()


def test_two_daemons_have_maps_of_their_own(file: int) -> None:
    with captured_on(file) as strict, captured_on(file) as other:
        entries = Map(strict)
        entries.enter(flags=protocol.REFUSE_SLICES, comm=comm())
        entries.begin()
        if not strict.loaded.lenient:
            pytest.skip("this kernel refuses: for either")
        Asking(file, CLIENT).controlled(0x15, SET_TIMESLICE)
        assert [kernel.counter(Counter.FORBIDDEN) for kernel in (strict, other)] == [1, 0]


def test_a_full_map_says_so(file: int) -> None:
    with captured_on(file) as kernel:
        entries = Map(kernel)
        for user in range(2 * MOST_ENTRIES):
            entries.enter(user, user=user)
        with pytest.raises(OSError, match="Argument list too long"):
            entries.enter(0, user=1 << 20)
        entries.begin()
        Asking(file, CLIENT).made(2, 0x15, GROUP)
        assert len(mine(kernel.take())) == 1


# -- the program that refuses ----------------------------------------------------------------------


class Refusing:
    """The program that refuses, as this kernel verified it, run in this thread on requests that are made up. Its one
    helper that may wait is the one that may not: a program for a hook may, the one that is tried here may not.
    """

    def __init__(self, kernel: Captured) -> None:
        programs, licence = program.read(loading.read_object())
        (hooked,) = [each for each in programs if each.hook]
        code = bytearray(hooked.with_maps(kernel.loaded.maps, kernel_types.find().places))
        for at in range(0, len(code), 8):
            if code[at] == _CALL and struct.unpack_from("<i", code, at + 4) == (_COPY_FROM_USER,):
                struct.pack_into("<i", code, at + 4, _READ_USER)
        held = ctypes.create_string_buffer(bytes(code), len(code))
        words = ctypes.create_string_buffer(licence.encode())
        log = ctypes.create_string_buffer(1 << 16)
        attributes = struct.pack(
            "<IIQQIIQII16s", _RAW_TRACEPOINT, len(code) // 8, ctypes.addressof(held), ctypes.addressof(words), 4,
            len(log), ctypes.addressof(log), 0, 0, b"refusing",
        )  # fmt: skip
        self.fd = self._bpf(_PROG_LOAD, attributes, log)

    @staticmethod
    def _bpf(command: int, attributes: bytes, log: ctypes.Array[ctypes.c_char] | None = None) -> int:
        data = ctypes.create_string_buffer(attributes, len(attributes))
        done = bpf._libc.syscall(bpf._SYS_BPF, command, data, len(attributes))
        assert done >= 0, (os.strerror(ctypes.get_errno()), log and log.value[-500:])
        Refusing.answer = struct.unpack_from("<I", data.raw, 4)[0]
        return int(done)

    def asked(self, request: int, argument: bytes) -> int:
        """What the kernel would answer to an ioctl of ours: 0 where it may be, else -EPERM."""
        held = ctypes.create_string_buffer(argument, len(argument))
        context = struct.pack("<QQQ", 0, request, ctypes.addressof(held))
        given = ctypes.create_string_buffer(context, len(context))
        self._bpf(_TEST_RUN, struct.pack("<IIIIQQIIII QQIII4x", self.fd, 0, 0, 0, 0, 0, 0, 0, 24, 0,
                                         ctypes.addressof(given), 0, 0, 0, 0))  # fmt: skip
        return ctypes.c_int(Refusing.answer).value

    def control(self, handle: int, command: int) -> int:
        return self.asked(number(0x2A, 32), struct.pack("<IIIIQII", CLIENT, handle, command, 0, 0, 0, 0))

    def group(self, handle: int, class_: int = GROUP) -> int:
        return self.asked(number(0x2B, 48), struct.pack("<IIIIQQIII4x", CLIENT, 2, handle, class_, 0, 0, 0, 0, 0))

    def close(self) -> None:
        os.close(self.fd)


@pytest.fixture
def kernel() -> Iterator[Captured]:
    with Captured() as made:
        yield made


@pytest.fixture
def refusing(kernel: Captured) -> Iterator[Refusing]:
    made = Refusing(kernel)
    yield made
    made.close()


def test_what_is_forbidden_is_refused_and_nothing_else(kernel: Captured, refusing: Refusing, file: int) -> None:
    entries = Map(kernel)
    entries.enter(flags=protocol.REFUSE_SLICES | protocol.REFUSE_GROUPS, most_groups=1, comm=comm())
    assert refusing.control(0x15, SET_TIMESLICE) == 0  # not in force yet
    entries.begin()
    assert refusing.control(0x15, SET_TIMESLICE) == -errno.EPERM
    assert refusing.control(0x15, GET_TIMESLICE) == 0
    assert refusing.group(0x15) == 0
    Asking(file, CLIENT).made(2, 0x15, GROUP)
    assert refusing.group(0x16) == -errno.EPERM
    assert refusing.group(0x16, CHANNEL) == 0
    assert refusing.asked(number(0x29, 16), bytes(16)) == 0
    assert refusing.asked(0x5401, bytes(64)) == 0  # a terminal's
    told = [event for event in mine(kernel.take()) if event.what is What.REFUSED]
    assert [(event.parent, event.object) for event in told] == [(Refusal.SLICES, 0x15), (Refusal.GROUPS, 0x16)]
    assert kernel.counter(Counter.REFUSED) == 2


def test_a_request_behind_a_pointer_is_refused_as_well(kernel: Captured, refusing: Refusing) -> None:
    entries = Map(kernel)
    entries.enter(flags=protocol.REFUSE_SLICES, comm=comm())
    entries.begin()
    inner = ctypes.create_string_buffer(struct.pack("<IIIIQII", CLIENT, 1, SET_TIMESLICE, 0, 0, 0, 0), 32)
    wrapped = struct.pack("<IIQ", 0x2A, 32, ctypes.addressof(inner))
    assert refusing.asked(number(211, 16), wrapped) == -errno.EPERM


def test_what_cannot_be_read_is_let_through(kernel: Captured, refusing: Refusing) -> None:
    entries = Map(kernel)
    entries.enter(flags=protocol.REFUSE_SLICES, comm=comm())
    entries.begin()
    assert refusing.asked(number(211, 16), struct.pack("<IIQ", 0x2A, 32, 8)) == 0
    assert refusing.asked(number(0x2A, 32) ^ 1 << 16, bytes(64)) == 0  # of another size


def test_who_is_exempt_or_not_named_is_never_refused(kernel: Captured, refusing: Refusing) -> None:
    entries = Map(kernel)
    entries.enter(flags=protocol.REFUSE_SLICES, user=12345)
    entries.begin()
    assert refusing.control(0x15, SET_TIMESLICE) == 0
    entries.enter(flags=protocol.REFUSE_SLICES, comm=comm())
    entries.begin()
    assert refusing.control(0x15, SET_TIMESLICE) == -errno.EPERM
    kernel.map("exempt").put(struct.pack("<I", os.getpid()), struct.pack("<I", 1))
    assert refusing.control(0x15, SET_TIMESLICE) == 0


def test_a_flood_of_refused_requests_is_told_up_to_a_bound(file: int) -> None:
    with Captured(budget=20) as kernel:
        refusing = Refusing(kernel)
        entries = Map(kernel)
        entries.enter(flags=protocol.REFUSE_SLICES, comm=comm())
        entries.begin()
        assert {refusing.control(0x15, SET_TIMESLICE) for _ in range(300)} == {-errno.EPERM}
        refusing.close()
        told = len([event for event in mine(kernel.take()) if event.what is What.REFUSED])
        assert 0 < told < 150
        assert kernel.counter(Counter.REFUSED) == 300


def test_the_kernel_says_whether_it_refuses(file: int) -> None:
    """Where it takes the program, a true request ends with EPERM; where not, it says why, in words."""
    with captured_on(file) as kernel:
        entries = Map(kernel)
        entries.enter(flags=protocol.REFUSE_SLICES, comm=comm())
        entries.begin()
        asking = Asking(file, CLIENT)
        if kernel.loaded.lenient:
            asking.controlled(0x15, SET_TIMESLICE)
            return
        with pytest.raises(PermissionError):
            asking.controlled(0x15, SET_TIMESLICE)
        asking.controlled(0x15, GET_TIMESLICE)
