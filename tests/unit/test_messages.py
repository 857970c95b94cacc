"""The daemon's datagram socket: what is taken, what is dropped, and that neither hurts."""

from __future__ import annotations

import array
import asyncio
import os
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runlist.daemon.relay.channel import Datagram
from runlist.daemon.requests.messages import Answer, Effect, Kind, Messages, TenantMessage, parse
from runlist.errors import RunlistError, UsageError
from runlist.proc import owners
from runlist.proc.owners import Owner
from tests.fixtures.adoption import until
from tests.fixtures.daemon import NOBODY, As, needs_root, short_path
from tests.fixtures.ear import CloseHere, Ear, ear

# As they are to be: taken from the code they would hold whatever it says.
MAX_PER_WAKEUP = 32

__all__ = ["ear", "short_path"]

BEGIN = TenantMessage(Kind.SEGMENT_BEGIN, -3, 7, 0)
REPORT = TenantMessage(Kind.REPORT_LATENCY, 0, 8, 1234)


@pytest.fixture
def sender(ear: Ear) -> Iterator[socket.socket]:
    """A tenant's socket, named by the kernel, connected to the daemon's."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(b"")
        sock.connect(str(ear.path))
        sock.settimeout(60)
        yield sock


def flushed(ear: Ear, sender: socket.socket) -> None:
    """All that was sent before has been dealt with, and the next message still arrives."""
    sender.send(REPORT.encode())
    while ear.next().message.sequence != REPORT.sequence:
        pass


def test_the_record_is_what_the_documents_say() -> None:
    assert BEGIN.encode().hex() == "524c4d3101000100fdffffff07000000" + "00" * 16
    assert REPORT.encode().hex() == "524c4d31010003000000000008000000d204000000000000" + "00" * 8
    assert parse(BEGIN.encode(), b"\0abcde") == TenantMessage(Kind.SEGMENT_BEGIN, -3, 7, 0, b"\0abcde")


@pytest.mark.parametrize(
    "change",
    [
        {"magic": 0},
        {"version": 2},
        {"kind": 0},
        {"kind": 7},
        {"kind": 6},  # with a priority
        {"kind": 6, "priority": 0, "nanoseconds": 1},
        {"kind": 5, "nanoseconds": 1 << 32},
        {"kind": 5},  # with a priority
        {"kind": 3},  # with a priority
        {"nanoseconds": 1},  # of a segment
        {"effect": 1},
    ],
)
def test_what_this_version_does_not_know_is_dropped(change: dict[str, int]) -> None:
    fields = {"magic": 0x314D4C52, "version": 1, "kind": 1, "priority": 5, "sequence": 1, "nanoseconds": 0}
    record = struct.pack("<IHHiIQQ", *{**fields, "effect": 0, **change}.values())
    assert parse(record) is None


@given(st.binary(max_size=80))
def test_anything_is_parsed_or_dropped(record: bytes) -> None:
    message = parse(record)
    assert message is None or message.encode() == record


@given(
    st.builds(
        TenantMessage,
        st.just(Kind.SEGMENT_BEGIN),
        st.integers(-(2**31), 2**31 - 1),
        st.integers(0, 2**32 - 1),
        st.just(0),
    )
    | st.builds(
        TenantMessage,
        st.sampled_from([Kind.REPORT_LATENCY, Kind.HINT]),
        st.just(0),
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**64 - 1),
    )
    | st.builds(TenantMessage, st.just(Kind.WORK), st.just(0), st.integers(0, 2**32 - 1), st.just(0))
    | st.builds(TenantMessage, st.just(Kind.JOIN), st.just(0), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
)
def test_what_is_encoded_is_parsed(message: TenantMessage) -> None:
    assert parse(message.encode()) == message


def test_the_kernel_says_who_it_was(ear: Ear, sender: socket.socket) -> None:
    sender.send(REPORT.encode())
    heard = ear.next()
    assert (heard.pid, heard.uid) == (os.getpid(), os.getuid())
    assert heard.message.sender == sender.getsockname()


@needs_root
def test_another_users_claim_to_be_somebody_else_is_refused_by_the_kernel(ear: Ear, short_path: Path) -> None:
    def claim() -> str:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            credentials = (socket.SOL_SOCKET, socket.SCM_CREDENTIALS, struct.pack("3i", 1, 0, 0))
            try:
                sock.sendmsg([REPORT.encode()], [credentials], 0, str(short_path / "open" / "m"))
            except OSError as error:
                return error.strerror
            return "taken"

    short_path.chmod(0o711)
    (short_path / "open").mkdir()
    (short_path / "open").chmod(0o711)
    with Ear(short_path / "open" / "m") as heard:
        assert As(NOBODY)(claim) == "Operation not permitted"
        assert heard.heard.empty()


def test_whether_an_answer_could_be_sent_is_known(ear: Ear, sender: socket.socket, short_path: Path) -> None:
    ear.answers = False
    sender.send(BEGIN.encode())
    ear.next()
    assert ear.do(lambda: ear.answer(Effect.IN_FORCE)) is True
    assert sender.recv(100) == BEGIN.encode(Effect.IN_FORCE)
    sender.send(REPORT.encode())
    ear.next()
    assert ear.do(lambda: ear.answer(Effect.IN_FORCE)) is False
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as named:
        named.bind(str(short_path / "named"))
        named.sendto(BEGIN.encode(), str(ear.path))
        ear.next()
        assert ear.do(lambda: ear.answer(Effect.IN_FORCE)) is False


class Strangers:
    """Notes what it is to take."""

    def __init__(self) -> None:
        self.taken: list[tuple[Owner, bool]] = []

    def share(self, messages: socket.socket, on_datagram: object) -> None:
        self.messages = messages

    def take(self, owner: Owner, wanted: bool, done: Callable[[], None], apart: object = None) -> None:
        self.taken.append((owner, wanted))
        self.done = done


@needs_root
def test_what_a_stranger_sends_with_descriptors_is_left_to_others_one_at_a_time(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short_path.chmod(0o711)
    inside = Owner(os.getuid(), "0" * 64)
    monkeypatch.setattr(owners, "cgroup_of", lambda _: ("/", "0" * 64))
    strangers, heard = Strangers(), []

    async def test() -> None:
        def hear(pid: int, uid: int, message: TenantMessage, answer: Answer) -> bool:
            heard.append(message.kind)
            return True

        messages = Messages(short_path / "m", hear, CloseHere(), strangers, lambda pid, uid: pid == os.getpid())
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.connect(str(short_path / "m"))
            for kind in (Kind.JOIN, Kind.HINT):
                socket.send_fds(sock, [TenantMessage(kind, 0, 1, 7).encode()], [0])
            sock.send(TenantMessage(Kind.HINT, 0, 2, 5).encode())
            await asyncio.sleep(0.1)
            assert strangers.taken == [(inside, True)]  # and no other until it is out of the queue
            for _ in range(2):
                strangers.messages.recv(100)
                strangers.done()
                await asyncio.sleep(0.05)
        assert strangers.taken == [(inside, True), (Owner(os.getuid()), False)]
        assert heard == [Kind.HINT]
        assert messages.dropped == {"foreign": 1}
        messages.close()
        strangers.done()  # of what was being taken: nobody hears any more
        strangers.messages.close()

    asyncio.run(test())


def test_a_segment_is_answered_with_its_effect_and_nothing_else_is(ear: Ear, sender: socket.socket) -> None:
    sender.send(REPORT.encode())
    sender.send(TenantMessage(Kind.SEGMENT_END, 0, 9, 0).encode())
    for effect in (Effect.IN_FORCE, Effect.NOT_IN_FORCE):
        ear.effect = effect
        sender.send(BEGIN.encode())
        assert sender.recv(100) == BEGIN.encode(effect)
    ear.answers = False
    sender.send(BEGIN.encode())
    flushed(ear, sender)
    sender.setblocking(False)
    with pytest.raises(BlockingIOError):
        sender.recv(100)


def test_a_process_that_is_not_managed_is_counted_and_answered_at_once(ear: Ear, sender: socket.socket) -> None:
    ear.managed = False
    sender.send(BEGIN.encode())
    assert sender.recv(100) == BEGIN.encode(Effect.NOT_MANAGED)
    sender.send(REPORT.encode())
    ear.managed = True
    flushed(ear, sender)
    assert ear.messages.dropped["foreign"] in (1, 2)  # the second depends on when it was read


def test_only_names_that_the_kernel_chose_are_answered(ear: Ear, short_path: Path) -> None:
    """A path could be made a link to a socket that the daemon may write to and the sender may not."""
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as victim,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock,
    ):
        victim.bind(str(short_path / "victim"))
        victim.setblocking(False)
        for name in (str(short_path / "named"), b"\0chosen", b"\0ABCDE"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
                bound.bind(name)
                bound.connect(str(ear.path))
                bound.settimeout(0.1)
                if isinstance(name, str):
                    os.unlink(name)
                    os.symlink(short_path / "victim", name)
                bound.send(BEGIN.encode())
                ear.next()
                with pytest.raises(TimeoutError):
                    bound.recv(100)
        sock.sendto(BEGIN.encode(), str(ear.path))  # no name at all
        ear.next()
        with pytest.raises(BlockingIOError):
            victim.recv(100)


@pytest.mark.parametrize(
    "record", [b"", b"x", BEGIN.encode()[:-1], BEGIN.encode() + b"\0", b"\xff" * 32, bytes(32), b"y" * 60_000]
)
def test_hostile_datagrams_are_dropped_and_counted(ear: Ear, sender: socket.socket, record: bytes) -> None:
    for _ in range(3):
        sender.send(record)
    flushed(ear, sender)
    assert ear.messages.dropped == {"malformed": 3}


def test_descriptors_that_come_along_are_closed(ear: Ear, sender: socket.socket) -> None:
    before = len(os.listdir("/proc/self/fd"))
    fds = array.array("i", [sender.fileno()] * 50)
    for _ in range(20):
        sender.sendmsg([REPORT.encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        ear.next()
    assert len(os.listdir("/proc/self/fd")) == before


def joining(client: int = 0xC1D00007) -> bytes:
    return TenantMessage(Kind.JOIN, 0, 3, client).encode()


def with_descriptors(sender: socket.socket, record: bytes, count: int) -> None:
    fds = array.array("i", [sender.fileno()] * count)
    sender.sendmsg([record], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_who_joins_sends_its_descriptors(ear: Ear, sender: socket.socket) -> None:
    before = descriptors()
    for count in (1, 2, 3, 253):
        with_descriptors(sender, joining(), count)
        message = ear.next().message
        assert (message.kind, message.nanoseconds) == (Kind.JOIN, 0xC1D00007)
        assert len(message.descriptors) == min(count, 2)
        for fd in message.descriptors:
            assert os.path.sameopenfile(fd, sender.fileno())
            assert not os.get_inheritable(fd)
            os.close(fd)
    assert descriptors() == before


def test_who_joins_without_descriptors_or_with_a_bad_handle_does_not(ear: Ear, sender: socket.socket) -> None:
    before = descriptors()
    sender.send(joining())
    with_descriptors(sender, joining(1 << 32), 2)
    with_descriptors(sender, b"x", 2)
    flushed(ear, sender)
    assert ear.messages.dropped == {"malformed": 3}
    assert descriptors() == before


def test_what_somebody_sent_whom_nobody_manages_is_closed(ear: Ear, sender: socket.socket) -> None:
    ear.managed = False
    before = descriptors()
    for _ in range(20):
        with_descriptors(sender, joining(), 2)
        ear.next()
    ear.managed = True
    flushed(ear, sender)
    assert ear.messages.dropped["foreign"] >= 20
    assert descriptors() == before


def test_what_a_process_sent_that_has_no_number_here_is_closed(ear: Ear, sender: socket.socket) -> None:
    """One of another pid namespace."""
    before = descriptors()
    sent = Datagram(joining(), 0, os.geteuid(), b"", (os.dup(sender.fileno()), os.dup(sender.fileno())))
    ear.do(lambda: ear.messages._take(sent))
    assert ear.messages.dropped == {"nobody": 1}
    assert ear.heard.empty()
    assert descriptors() == before


class Full:
    """Takes no more descriptors."""

    room = False

    def __init__(self) -> None:
        self.discarded: list[int] = []

    def discard(self, fds: Sequence[int]) -> None:
        self.discarded += fds


def test_without_room_for_descriptors_none_is_received(short_path: Path) -> None:
    heard: list[TenantMessage] = []

    async def run() -> None:
        def take(pid: int, uid: int, message: TenantMessage, answer: Answer) -> bool:
            heard.append(message)
            return True

        full = Full()
        messages = Messages(short_path / "m", take, full)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.connect(str(short_path / "m"))
            with_descriptors(sender, joining(), 2)
            with_descriptors(sender, REPORT.encode(), 2)
            await asyncio.sleep(0.05)
        assert (messages.dropped, full.discarded) == ({"malformed": 1}, [])
        messages.close()

    before = descriptors()
    asyncio.run(run())
    assert [message.kind for message in heard] == [Kind.REPORT_LATENCY]
    assert descriptors() == before


def test_a_flood_leaves_the_loop_free(ear: Ear, sender: socket.socket) -> None:
    """Whoever sends as fast as it can gets a part of the loop's time; the rest is for everything else."""
    sender.setblocking(False)
    for _ in range(20):
        for _ in range(200):
            try:
                sender.send(REPORT.encode())
            except BlockingIOError:
                break
        ear.do(lambda: None)  # who is not answered gives up


def test_so_many_are_read_in_one_go(short_path: Path) -> None:
    async def run() -> int:
        count = 0

        def take(pid: int, uid: int, message: TenantMessage, answer: Answer) -> bool:
            nonlocal count
            count += 1
            sender.send(REPORT.encode())  # there is always one more
            return True

        messages = Messages(short_path / "m", take, CloseHere())
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.connect(str(short_path / "m"))
            sender.send(REPORT.encode())
            messages._read()
            seen = count
            await until(lambda: count > seen)  # it goes on
            messages.close()
        return seen

    assert asyncio.run(run()) == MAX_PER_WAKEUP


def test_a_stale_socket_is_replaced_and_a_live_one_is_not(short_path: Path) -> None:
    path = short_path / "m"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(str(path))
    with Ear(path) as ear:
        assert path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(RunlistError, match="another daemon hears its tenants at"):
            ear.do(lambda: Messages(path, lambda *_: True, CloseHere()))
    assert not path.exists()
    path.write_text("mine")
    with pytest.raises(UsageError, match="is not a socket: remove it"):
        asyncio.run(_open(path))
    assert path.read_text() == "mine"


async def _open(path: Path) -> None:
    Messages(path, lambda *_: True, CloseHere()).close()


@needs_root
def test_everybody_who_reaches_roots_socket_may_send(short_path: Path) -> None:
    short_path.chmod(0o711)
    with Ear(short_path / "m"):
        assert (short_path / "m").stat().st_mode & 0o777 == 0o666
