"""A relay between a stranger and the daemon: what passes, what does not, and how much it holds."""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from runlist import wire
from runlist.daemon.relay import channel, ferry
from runlist.daemon.relay.channel import Say
from runlist.daemon.relay.relays import Relays
from runlist.daemon.relay.vet import refusal
from runlist.daemon.requests.messages import Kind, Messages, TenantMessage
from runlist.frames import Inbox
from runlist.planes.nvidia.plane import NvidiaPlane
from runlist.planes.nvidia.rm.transport import choose_driver
from runlist.planes.process.region import create
from tests.conftest import ON_NVIDIA
from tests.fixtures.daemon import NOBODY, As, needs_root, wait_for
from tests.fixtures.ear import CloseHere

PATIENCE_S = 50.0
STATUS = wire.encode(wire.GetStatus())
MORE_THAN_A_SOCKET_TAKES = 240_000
ASK = wire.encode(wire.BorrowRequest(1, 2))


class Ends(NamedTuple):
    """The stranger's end of a connection, the daemon's, and the daemon's end of the relay's channel."""

    stranger: socket.socket
    daemon: socket.socket
    channel: socket.socket


@pytest.fixture
def ends(on_device: None) -> Iterator[Ends]:
    """A relay of our own user, in a thread."""
    ours, theirs = channel.pair()
    stranger, handed = socket.socketpair()
    daemon, served = socket.socketpair()
    messages, sender = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    relay = ferry.Ferry(NvidiaPlane(choose_driver()), theirs, messages)
    thread = threading.Thread(target=relay.serve, daemon=True)
    thread.start()
    channel.send(ours, Say.CONNECT, 1, fds=[handed.fileno(), served.fileno()])
    for sock in (handed, served):
        sock.close()
    for sock in (ours, stranger, daemon):
        sock.settimeout(PATIENCE_S)
    channel.send(ours, Say.GO, 1)
    assert channel.receive(ours) == (Say.GO, 1, b"", [])
    yield Ends(stranger, daemon, ours)
    for sock in (ours, stranger, daemon, sender):
        sock.close()
    thread.join(PATIENCE_S)
    for sock in (theirs, messages):
        sock.close()


def heard(ends: Ends, count: int) -> list[int]:
    """So many descriptors that come to the daemon, with whatever frames."""
    inbox = Inbox()
    while len(inbox.fds) < count:
        assert inbox.read(ends.daemon)
    return list(inbox.fds)


def test_nothing_is_touched_before_the_daemon_says_so(on_device: None) -> None:
    ours, theirs = channel.pair()
    stranger, handed = socket.socketpair()
    relay = ferry.Ferry(NvidiaPlane(choose_driver()), theirs, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    thread = threading.Thread(target=relay.serve, daemon=True)
    thread.start()
    channel.send(ours, Say.CLOSE, 7, b"no room", [handed.fileno()])
    handed.close()
    stranger.settimeout(0.2)
    with pytest.raises(TimeoutError):
        stranger.recv(1)
    channel.send(ours, Say.GO, 7)
    stranger.settimeout(PATIENCE_S)
    assert stranger.recv(10) == b"no room"
    assert stranger.recv(1) == b""
    assert channel.receive(ours)
    ours.close()
    thread.join(PATIENCE_S)


def test_whole_frames_pass_and_answers_come_back(ends: Ends) -> None:
    ends.stranger.sendall(STATUS + STATUS[:5])
    assert ends.daemon.recv(1 << 16) == STATUS
    ends.stranger.sendall(STATUS[5:])
    assert ends.daemon.recv(1 << 16) == STATUS
    ends.daemon.sendall(b"x" * 300_000)
    received = 0
    while received < 300_000:
        received += len(ends.stranger.recv(1 << 16))
    ends.stranger.shutdown(socket.SHUT_WR)
    assert ends.daemon.recv(1) == b""
    ends.daemon.sendall(b"last")
    ends.daemon.close()
    assert ends.stranger.recv(10) == b"last"
    assert ends.stranger.recv(10) == b""


@pytest.mark.skipif(ON_NVIDIA, reason="of the emulated GPU")
def test_the_drivers_files_and_regions_pass_and_nothing_else(ends: Ends, tmp_path: Path) -> None:
    control = choose_driver().open()
    _, region = create(tmp_path, strict=True)
    pipe = os.pipe()
    sent = [control.fileno(), region.fileno(), pipe[0], ends.stranger.fileno()]
    for fd in sent:
        ends.daemon.sendall(ASK)
        assert ends.stranger.recv(1 << 16) == ASK
        socket.send_fds(ends.stranger, [wire.encode(wire.Borrowed())], [fd])
        (got,) = heard(ends, 1)
        passes = fd in sent[:2]
        assert os.path.sameopenfile(fd, got) == passes
        assert bool(refusal(got)) != passes
        os.close(got)
    for fd in pipe:
        os.close(fd)
    control.close()
    region.close()


def test_the_kernel_refuses_descriptors_that_are_not_due(ends: Ends) -> None:
    """Where it can (6.16): after the first, until one is asked for."""
    try:
        ends.stranger.getsockopt(socket.SOL_SOCKET, 83)
    except OSError:
        pytest.skip("the kernel takes every descriptor")

    def refused() -> bool:
        try:
            socket.send_fds(ends.stranger, [STATUS], [0])
        except PermissionError:
            return True
        os.close(heard(ends, 1)[0])
        return False

    assert not refused()
    wait_for(refused)
    ends.daemon.sendall(ASK)
    assert ends.stranger.recv(1 << 16) == ASK
    assert not refused()


@pytest.mark.parametrize("data", [b"\x05\0\0", struct.pack("<I", 100) + b"{"])
def test_half_a_frame_does_not_stay(ends: Ends, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(ferry, "HALF_S", 0.1)
    ends.stranger.sendall(data)
    assert ends.stranger.recv(1) == b""
    packet = channel.receive(ends.channel)
    assert packet is not None
    assert (packet.say, packet.number) == (Say.BROKEN, 1)
    assert b"half a frame" in packet.body


@pytest.mark.parametrize("length", [1 << 15, 15 << 20, 0xFFFF_FFFF])
def test_a_frame_that_is_too_long_is_not_waited_for(ends: Ends, length: int) -> None:
    ends.stranger.sendall(struct.pack("<I", length))
    assert ends.stranger.recv(1) == b""
    packet = channel.receive(ends.channel)
    assert packet is not None
    assert packet.body == f"a frame of {length} bytes".encode()


def is_closed(reader: int) -> bool:
    """Whether nobody has the writing end of a pipe any more."""
    os.set_blocking(reader, False)
    try:
        return os.read(reader, 1) == b""
    except BlockingIOError:
        return False


def test_descriptors_without_a_frame_are_hung_up_on_and_closed(ends: Ends) -> None:
    ends.daemon.sendall(ASK * 20)
    assert ends.stranger.recv(1 << 16)[:5] == ASK[:5]
    reader, writer = os.pipe()
    for _ in range(2):
        socket.send_fds(ends.stranger, [b"\x05"], [writer] * 10)
    os.close(writer)
    assert channel.receive(ends.channel) == (Say.BROKEN, 1, b"descriptors without a frame", [])
    wait_for(lambda: is_closed(reader))
    os.close(reader)


def test_what_a_stranger_sent_with_half_a_frame_is_closed_with_its_connection(ends: Ends) -> None:
    ends.daemon.sendall(ASK)
    assert ends.stranger.recv(1 << 16) == ASK
    reader, writer = os.pipe()
    socket.send_fds(ends.stranger, [wire.encode(wire.Borrowed())[:6]], [writer])
    os.close(writer)
    ends.stranger.close()
    assert ends.daemon.recv(1) == b""
    assert not is_closed(reader)  # the daemon may still answer what was asked before
    ends.daemon.close()
    wait_for(lambda: is_closed(reader))
    os.close(reader)


def test_what_the_daemon_said_before_it_hung_up_is_still_passed_on(ends: Ends) -> None:
    ends.daemon.sendall(b"last words")
    ends.daemon.close()
    assert ends.stranger.recv(100) == b"last words"
    assert ends.stranger.recv(1) == b""


def test_answers_that_nobody_reads_are_given_up_after_the_daemon_hung_up(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody broke the protocol, so nothing is told."""
    monkeypatch.setattr(ferry, "HALF_S", 0.1)
    ends.daemon.sendall(b"x" * MORE_THAN_A_SOCKET_TAKES)
    ends.daemon.close()
    ends.channel.settimeout(1.5)
    with pytest.raises(TimeoutError):
        channel.receive(ends.channel)
    received = 0
    while data := ends.stranger.recv(1 << 16):
        received += len(data)
    assert received < MORE_THAN_A_SOCKET_TAKES


def test_an_idle_connection_and_one_with_whole_frames_stay(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ferry, "HALF_S", 0.1)
    monkeypatch.setattr(ferry, "_LOOK_S", 0.02)
    for _ in range(4):
        ends.stranger.sendall(STATUS[:7])
        time.sleep(0.02)
        ends.stranger.sendall(STATUS[7:])
        assert ends.daemon.recv(1 << 16) == STATUS
        time.sleep(0.05)
    ends.channel.setblocking(False)
    with pytest.raises(BlockingIOError):
        channel.receive(ends.channel)
    ends.daemon.sendall(b"still there")
    assert ends.stranger.recv(100) == b"still there"


def test_a_relay_looks_at_its_connections_now_and_then_and_sleeps_meanwhile(
    on_device: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = channel.pair()
    messages, sender = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    relay = ferry.Ferry(NvidiaPlane(choose_driver()), theirs, messages)
    now, slept = 100.0, [0.0]
    looks: list[float] = []

    def select(seconds: float) -> list[tuple[SimpleNamespace, int]]:
        nonlocal now
        now += seconds
        slept.append(seconds)
        return [(SimpleNamespace(data=None), selectors.EVENT_READ)] if len(slept) > 5 else []

    monkeypatch.setattr(ferry, "time", SimpleNamespace(monotonic=lambda: now))
    relay.selector.close()
    relay.selector = SimpleNamespace(select=select)  # type: ignore[assignment]
    relay._connections = [SimpleNamespace(look=lambda: looks.append(now))]  # type: ignore[assignment,list-item]
    ours.close()
    relay.serve()
    assert slept == [0.0] + [ferry._LOOK_S] * 5
    assert looks == [101.0, 102.0, 103.0, 104.0]
    for sock in (theirs, messages, sender):
        sock.close()


@pytest.mark.parametrize(("one", "other"), [("stranger", "daemon"), ("daemon", "stranger")])
def test_what_the_other_end_does_not_read_yet_arrives_later(ends: Ends, one: str, other: str) -> None:
    sender, reader = getattr(ends, one), getattr(ends, other)
    sender.settimeout(0.2)
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < 64 << 20:
            sender.sendall(STATUS)
            sent += 1
    received = b""
    while len(received) < sent * len(STATUS):
        received += reader.recv(1 << 16)
    assert received[: sent * len(STATUS)] == STATUS * sent


@pytest.mark.parametrize("one", ["stranger", "daemon"])
def test_who_does_not_read_does_not_fill_the_relay(ends: Ends, one: str) -> None:
    sock: socket.socket = getattr(ends, one)
    sock.setblocking(False)
    taken, end = 0, time.monotonic() + 0.5
    while time.monotonic() < end:
        try:
            taken += sock.send(STATUS * 100)
        except BlockingIOError:
            time.sleep(0.01)
    assert taken < 2 << 20


@needs_root
def test_a_datagram_of_a_stranger_comes_by_way_of_its_relay(short_path: Path, on_device: None) -> None:
    """What it sends along was looked at there; what nobody wants, and what lingers, keeps nobody waiting."""
    short_path.chmod(0o711)
    path, region = create(short_path, strict=True)
    os.chown(path, NOBODY, NOBODY)
    heard: list[tuple[int, TenantMessage]] = []

    def send() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.connect(str(short_path / "m"))
            join = TenantMessage(Kind.JOIN, 0, 1, 7).encode()
            socket.send_fds(sock, [join], [0, region.fileno(), 0])
            sock.send(TenantMessage(Kind.HINT, 0, 2, 5).encode())

    async def listen(wanted: bool, count: int) -> None:
        loop = asyncio.get_running_loop()
        arrived = asyncio.Semaphore(0)

        def take(pid: int, uid: int, message: TenantMessage, in_force: Callable[[], None]) -> bool:
            heard.append((uid, message))
            arrived.release()
            return True

        relays = Relays("nvidia" if ON_NVIDIA else "emulated")
        messages = Messages(short_path / "m", take, CloseHere(), relays, lambda *_: wanted)
        await loop.run_in_executor(None, As(NOBODY), send)
        for _ in range(count):
            await asyncio.wait_for(arrived.acquire(), PATIENCE_S)
        messages.close()
        relays.close()

    asyncio.run(listen(wanted=False, count=1))
    assert [message.kind for _, message in heard] == [Kind.HINT]
    heard.clear()
    asyncio.run(listen(wanted=True, count=2))
    assert {uid for uid, _ in heard} == {NOBODY}
    (join,) = (message for _, message in heard if message.kind is Kind.JOIN)
    first, second = join.descriptors
    assert (refusal(first), refusal(second)) == ("it is no file", "")
    assert os.path.sameopenfile(second, region.fileno())
    for fd in join.descriptors:
        os.close(fd)
    region.close()
