"""A relay between a stranger and the daemon: what it passes on, and what it lets go of."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from runlist.daemon.relay import channel, ferry, vet
from runlist.daemon.relay.channel import Datagram, Packet, Say
from runlist.daemon.relay.ferry import Ferry
from runlist.frames import frame
from tests.fixtures.daemon import PATIENCE_S, wait_for


class Relay:
    """One at work, in a thread."""

    def __init__(self) -> None:
        self.ours, theirs = channel.pair()
        self.messages, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._ends = [self.ours, theirs, self.messages, other]
        self.ours.settimeout(PATIENCE_S)
        self.ferry = Ferry(None, theirs, other)  # type: ignore[arg-type]
        self._thread = threading.Thread(target=self.ferry.serve, daemon=True)
        self._thread.start()

    def connect(self, number: int) -> tuple[socket.socket, socket.socket]:
        """A stranger's end of a connection, and the daemon's."""
        stranger, theirs = socket.socketpair()
        daemon, served = socket.socketpair()
        for one in (stranger, daemon):
            one.settimeout(PATIENCE_S)
        with theirs, served:
            channel.send(self.ours, Say.CONNECT, number, fds=[theirs.fileno(), served.fileno()])
        channel.send(self.ours, Say.GO, number)
        return stranger, daemon

    def ask(self, say: Say, number: int, body: bytes = b"", fds: tuple[int, ...] = ()) -> None:
        channel.send(self.ours, say, number, body, fds)

    def hear(self) -> Packet:
        packet = channel.receive(self.ours)
        assert packet is not None
        return packet

    def close(self) -> None:
        self.ours.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE_S)
        self.ferry.selector.close()
        for end in self._ends:
            end.close()


@pytest.fixture
def relay(monkeypatch: pytest.MonkeyPatch) -> Iterator[Relay]:
    monkeypatch.setattr(ferry, "_LOOK_S", 0.02)
    made = Relay()
    yield made
    made.close()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_requests_and_answers_are_passed_on_and_nothing_is_kept_of_who_left(relay: Relay) -> None:
    before = open_files()
    for ends_first in ("stranger", "daemon"):
        stranger, daemon = relay.connect(1)
        stranger.sendall(frame(b"{}"))
        assert daemon.recv(100) == frame(b"{}")
        daemon.sendall(b"answer")
        assert stranger.recv(100) == b"answer"
        first, second = (stranger, daemon) if ends_first == "stranger" else (daemon, stranger)
        first.close()
        assert second.recv(100) == b""
        second.close()
        wait_for(lambda: open_files() == before)
        assert not relay.ferry._connections


def test_an_answer_that_is_read_slowly_comes_whole(relay: Relay) -> None:
    stranger, daemon = relay.connect(1)
    answer = os.urandom(1 << 20)
    sending = threading.Thread(target=daemon.sendall, args=(answer,))
    sending.start()
    read = bytearray()
    while len(read) < len(answer):
        read += stranger.recv(4096)
    assert read == answer
    sending.join()
    stranger.close()
    daemon.close()


def test_who_breaks_the_protocol_is_told_of_and_hung_up_on(relay: Relay) -> None:
    before = open_files()
    stranger, daemon = relay.connect(5)
    assert (packet := channel.receive(relay.ours)) is not None
    assert packet.say is Say.GO
    stranger.sendall((1 << 31).to_bytes(4, "little"))  # no frame is so long
    assert (packet := channel.receive(relay.ours)) is not None
    assert (packet.say, packet.number) == (Say.BROKEN, 5)
    assert (stranger.recv(100), daemon.recv(100)) == (b"", b"")
    stranger.close()
    daemon.close()
    wait_for(lambda: open_files() == before)


def test_half_a_frame_for_long_is_the_end_of_its_connection_once(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ferry, "HALF_S", 0.0)
    stranger, daemon = relay.connect(6)
    idle, served = relay.connect(7)
    stranger.sendall(frame(b"{}")[:5])
    assert (stranger.recv(100), daemon.recv(100)) == (b"", b"")
    said = [channel.receive(relay.ours) for _ in range(3)]
    assert [(each.say, each.number) for each in said if each is not None] == [(Say.GO, 6), (Say.GO, 7), (Say.BROKEN, 6)]
    assert not any(one.look() for one in relay.ferry._connections)
    assert len(relay.ferry._connections) == 1
    for end in (stranger, daemon, idle, served):
        end.close()


def test_a_stranger_who_leaves_an_answer_unread_is_let_go_of(relay: Relay) -> None:
    before = open_files()
    stranger, daemon = relay.connect(1)
    sending = threading.Thread(target=_send_all, args=(daemon, bytes(1 << 22)))
    sending.start()
    assert stranger.recv(100)
    stranger.close()
    sending.join(PATIENCE_S)
    daemon.close()
    wait_for(lambda: open_files() == before)


def _send_all(sock: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):
        sock.sendall(data)


# -- datagrams -------------------------------------------------------------------------------------


def test_a_datagram_is_taken_with_its_first_descriptors_once_they_were_looked_at(relay: Relay) -> None:
    before = open_files()
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open(__file__, "rb")) for _ in range(3)]
        socket.send_fds(relay.messages, [b"record"], [file.fileno() for file in files])
    relay.ask(Say.TAKE, 5)
    assert relay.hear()[:3] == (Say.TAKEN, 5, b"")
    packet = relay.hear()
    assert packet[:2] == (Say.DATAGRAM, 5)
    found = Datagram.decode(packet)
    assert (found.record, found.pid, found.uid) == (b"record", os.getpid(), os.geteuid())
    assert len(found.fds) == 2
    assert all("not" in vet.refusal(fd) for fd in found.fds)  # neither is a region: the reason comes in its place
    for fd in found.fds:
        os.close(fd)
    relay.ask(Say.TAKE, 6)
    assert relay.hear()[:3] == (Say.TAKEN, 6, b"")  # there was none
    relay.ask(Say.GO, 6)
    assert relay.hear() == (Say.GO, 6, b"", [])
    assert open_files() == before


def test_a_datagram_that_nobody_wants_is_dropped_with_all_that_came_along(relay: Relay) -> None:
    before = open_files()
    with open("/dev/null", "rb") as file:
        socket.send_fds(relay.messages, [b"one"], [file.fileno()])
    relay.messages.send(b"other")
    for number in (1, 2, 3):
        relay.ask(Say.DROP if number != 2 else Say.TAKE, number)
    assert relay.hear()[:3] == (Say.TAKEN, 1, b"")
    assert relay.hear()[:3] == (Say.TAKEN, 2, b"")
    assert Datagram.decode(relay.hear()).record == b"other"
    assert relay.hear()[:3] == (Say.TAKEN, 3, b"")  # there was none
    assert open_files() == before


def test_who_is_to_be_hung_up_on_hears_the_last_words_when_the_daemon_has_closed_its_copy(relay: Relay) -> None:
    before = open_files()
    stranger, theirs = socket.socketpair()
    stranger.settimeout(PATIENCE_S)
    relay.ask(Say.CLOSE, 4, b"no room", (theirs.fileno(),))
    relay.ask(Say.GO, 3)
    assert relay.hear() == (Say.GO, 3, b"", [])
    stranger.setblocking(False)
    with pytest.raises(BlockingIOError):
        stranger.recv(100)
    stranger.settimeout(PATIENCE_S)
    theirs.close()
    relay.ask(Say.GO, 4)
    assert (stranger.recv(100), stranger.recv(100)) == (b"no room", b"")
    stranger.close()
    assert relay.hear() == (Say.GO, 4, b"", [])
    assert open_files() == before


def test_why_a_client_was_hung_up_on_is_told_in_two_hundred_bytes(relay: Relay) -> None:
    relay.ferry.broken(9, "x" * 300)
    assert relay.hear() == (Say.BROKEN, 9, b"x" * 200, [])


@pytest.mark.parametrize("sender", [b"", b"\0abcde", b"/run/one.sock", b"n" * 107])
@pytest.mark.parametrize("record", [b"", b"record"])
def test_a_datagram_comes_out_of_its_packet_as_it_was(sender: bytes, record: bytes) -> None:
    sent = Datagram(record, 1 << 22, (1 << 32) - 2, sender, (5, 6))
    packet = Packet(Say.DATAGRAM, 3, sent.encode(), [5, 6])
    assert Datagram.decode(packet) == sent


def test_the_kernel_says_who_sent_a_datagram_and_what_of_it_had_no_room() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    fds = [os.memfd_create(name) for name in ("one", "two")]
    with ours, theirs:
        for room in (2, 1, 0):
            socket.send_fds(theirs, [b"record"], fds)
            peeked = channel.receive_datagram(ours, 100, 0, socket.MSG_PEEK)
            assert (peeked.record, peeked.pid, peeked.uid, peeked.left) == (b"record", os.getpid(), os.geteuid(), True)
            found = channel.receive_datagram(ours, 3, room)
            assert (found.record, found.pid, found.uid) == (b"rec", os.getpid(), os.geteuid())
            assert (len(found.fds), found.left) == (room, room < 2)
            for fd, sent in zip(found.fds, fds, strict=False):
                assert os.fstat(fd).st_ino == os.fstat(sent).st_ino
                assert not os.get_inheritable(fd)
                os.close(fd)
        theirs.send(b"alone")
        assert channel.receive_datagram(ours, 100, 0) == Datagram(b"alone", os.getpid(), os.geteuid(), b"")
    for fd in fds:
        os.close(fd)
