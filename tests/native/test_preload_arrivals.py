"""What comes in is announced where it led to work before: what is learnt, and what nobody may notice."""

from __future__ import annotations

import time

import pytest

from runlist.daemon.requests.messages import Kind
from tests.fixtures.daemon import short_path
from tests.native.servers import (
    ANNOUNCEMENTS,
    GENERATE,
    HEALTH,
    PAUSE_MS,
    PREPARES_MS,
    WORK,
    Server,
    ear,
    server,
)

__all__ = ["ear", "server", "short_path"]


def test_what_leads_to_work_is_announced_with_how_soon(server: Server) -> None:
    server.connect()
    server.learns()
    server.watch()
    server.reads(GENERATE)
    (lead,) = server.announced()
    assert PREPARES_MS <= lead < 50
    assert server.watched() == (0 if lead <= 3 else WORK | ANNOUNCEMENTS)


@pytest.mark.parametrize("way", ["read", "recv", "recvfrom", "recvmsg", "recvmmsg", "readv", "pieces", "checked"])
def test_however_it_is_read(server: Server, way: str) -> None:
    server.connect()
    server.learns(way=way)
    server.watch()
    server.reads(GENERATE, way)
    assert len(server.announced()) == 1


def test_a_first_request_is_not_announced(server: Server) -> None:
    server.connect()
    for _ in range(2):
        server.serves(GENERATE)
    assert [kind for kind, _ in server.said()] == [Kind.WORK] * 2


@pytest.mark.parametrize("by", ["accept", "accept4"])
def test_each_on_a_connection_of_its_own(server: Server, by: str) -> None:
    for _ in range(10):
        server.connect(by)
        server.serves(GENERATE)
    server.forget()
    server.connect(by)
    server.watch()
    server.reads(GENERATE)
    assert len(server.announced()) == 1


def test_health_checks_are_not_announced(server: Server) -> None:
    server.connect()
    for _ in range(6):
        server.serves(GENERATE)
        server.ignores(HEALTH)
    server.forget()
    server.watch()
    server.reads(HEALTH)
    assert server.announced() == []
    server.do(f"pause-{PAUSE_MS}")
    server.reads(GENERATE)
    assert len(server.announced()) == 1


def test_messages_that_are_all_different_are_known_by_their_door(server: Server) -> None:
    server.connect()
    for number in range(14):
        server.serves(b"%016d" % (number * 7919))
    server.forget()
    server.watch()
    server.reads(b"another one that it has never seen")
    assert len(server.announced()) == 1


def test_what_is_thrown_away_is_not_looked_at(server: Server) -> None:
    """There is no place where it lies."""
    server.connect()
    server.learns()
    server.watch()
    server.reads(GENERATE, "nowhere")
    assert server.announced() == []
    assert server.do("launch", "stream") == 0


def test_what_no_longer_leads_to_work_is_announced_no_longer(server: Server) -> None:
    server.connect()
    server.learns(times=6)
    for _ in range(5):
        server.ignores(GENERATE)
    server.forget()
    server.watch()
    server.reads(GENERATE)
    assert server.announced() == []


def test_what_the_driver_reads_itself_is_no_request(server: Server) -> None:
    """It answers over a socket, on an emulated GPU and to clients of MPS, and holds its locks meanwhile."""
    server.do("launch", "stream")
    for _ in range(12):
        server.do("take", "pause-3")
        server.watch()
        server.do("give", "launch", "stream")
    server.forget()
    server.do("take", "pause-3")
    server.watch()
    assert server.do("give") == 0
    assert server.announced() == []


def test_a_host_function_may_fault_whoever_called_the_first_one(server: Server) -> None:
    """A touch that is put off is one, and the driver may start its thread for them there."""
    server.connect()
    server.learns()
    server.watch()
    server.reads(GENERATE)
    assert server.do("launch", "stream", "host-faults") == 1


@pytest.mark.parametrize("bits", [0, WORK])
def test_who_was_not_asked_announces_nothing(server: Server, bits: int) -> None:
    server.connect()
    server.learns()
    server.watch(bits)
    server.reads(GENERATE)
    assert server.said() == []
    assert server.watched() == bits


def test_what_comes_in_while_it_works_is_not_announced(server: Server) -> None:
    server.connect()
    server.learns()
    server.watch(ANNOUNCEMENTS)
    server.do("launch")
    server.reads(GENERATE)
    assert server.announced() == []


def test_a_request_far_ahead_is_told_and_nobody_makes_room_yet(server: Server) -> None:
    server.connect()
    for _ in range(6):
        server.serves(GENERATE, prepares_ms=20)
    server.forget()
    server.watch()
    server.reads(GENERATE)
    (lead,) = server.announced()
    assert 20 <= lead < 50
    assert server.watched() == WORK | ANNOUNCEMENTS
    server.do("launch")
    assert [kind for kind, _ in server.said()] == [Kind.WORK]


def test_the_rest_of_a_message_is_the_same_one(server: Server) -> None:
    server.connect()
    for number in range(10):
        server.watch()
        server.reads(GENERATE)
        server.client.sendall(b"%016d" % (number * 7919))  # its body
        server.do("read-read", "launch", "stream", "pause-8")
    server.forget()
    server.watch()
    server.reads(GENERATE)
    assert len(server.announced()) == 1


def test_what_is_only_looked_at_is_not_read(server: Server) -> None:
    server.connect()
    server.learns()
    server.watch()
    server.client.sendall(GENERATE)
    server.do("read-peek")
    assert server.announced() == []
    server.do("read-read")
    assert len(server.announced()) == 1


def test_threads_that_wake_one_another_send_no_requests(server: Server) -> None:
    server.do("pair")
    for _ in range(8):
        server.watch()
        server.do("wake", "read-read", "launch", "stream", "pause-3")
    server.forget()
    server.watch()
    server.do("wake", "read-read")
    assert server.announced() == []


def test_a_descriptor_that_becomes_a_file_is_none_after_a_while(server: Server) -> None:
    server.connect()
    server.learns()
    server.do("file")
    time.sleep(1.2)  # so long it is believed
    server.watch()
    for _ in range(8):
        server.watch()
        assert server.do("read-read") == 4096
        server.do("launch", "stream", "pause-3")
    assert server.announced() == []


# What a program may do in a read.


def test_in_a_signal_handler(server: Server) -> None:
    server.connect()
    server.learns()
    server.watch()
    server.client.sendall(GENERATE)
    time.sleep(0.05)
    assert server.do("handler") == len(GENERATE)
    assert len(server.announced()) == 1
    assert server.do("launch", "stream") == 0


def test_a_thread_is_cancelled_in_a_read(server: Server) -> None:
    server.connect()
    server.learns()
    server.watch()
    assert server.do("cancel") == 0
    server.reads(GENERATE)
    assert len(server.announced()) == 1


@pytest.mark.parametrize("way", ["fork", "vfork"])
def test_a_child_says_nothing_for_its_parent(server: Server, way: str) -> None:
    server.connect()
    server.learns()
    server.watch()
    server.client.sendall(GENERATE)
    assert server.do(way) == len(GENERATE)
    assert server.said() == []
    assert server.watched() == WORK | ANNOUNCEMENTS
    server.do(f"pause-{PAUSE_MS}")
    server.reads(GENERATE)
    assert len(server.announced()) <= 1
    assert server.do("launch", "stream") == 0


def test_while_a_stream_is_captured(server: Server) -> None:
    """In the mode that forbids most: what we do is no part of it, and does not end it."""
    server.connect()
    server.learns()
    server.watch()
    server.do("capture", "launch")
    server.reads(GENERATE)
    assert server.do("launch", "captured") == 0
    assert server.do("launch", "stream") == 0


def test_a_context_that_ends_is_touched_no_more(server: Server) -> None:
    server.connect()
    server.learns()
    assert server.do("reset") == 0
    server.watch()
    server.reads(GENERATE)
    assert len(server.announced()) == 1


def test_ten_thousand_connections(server: Server) -> None:
    """More than there are places for: what is known of each is only forgotten."""
    server.watch()
    for number in range(10_000):
        server.connect()
        if number % 100 == 0:
            server.watch()
            server.reads(GENERATE)
            server.do("launch", "stream")
        server.client.close()
    assert server.do("launch", "stream") == 0


def test_where_the_daemon_does_not_hear_it_goes_on(server: Server) -> None:
    server.connect()
    server.learns()
    server.ear.do(lambda: server.ear.loop.remove_reader(server.ear.messages._socket))
    for _ in range(20):  # more than its queue takes
        server.serves(GENERATE)
    assert server.do("launch", "stream") == 0


# Requests as the program says them, and hints.


def test_a_request_that_begins_is_announced_at_once(server: Server) -> None:
    server.watch()
    assert server.do("begin") == 0
    assert server.said() == [(Kind.ANNOUNCE, 0)]
    assert server.watched() == 0
    assert server.do("begin", "launch", "stream", "end") == 0
    assert server.do("end") == 0
    assert server.do("end") == -22
    assert server.said() == []


def test_where_nobody_asked_a_request_costs_no_message(server: Server) -> None:
    server.watch(WORK)
    assert server.do("begin", "end") == 0
    assert server.said() == []


def test_a_hint_is_said_and_does_no_harm_without_work(server: Server) -> None:
    for _ in range(3):
        assert server.do("hint", "launch", "stream") == 0
    assert [kind for kind, _ in server.said() if kind is not Kind.WORK] == [Kind.HINT] * 3


def test_a_hint_for_soon_is_announced_where_that_is_asked_for(server: Server) -> None:
    """So what is armed for announcements acts at once."""
    server.watch()
    assert server.do("hint-2000") == 0
    assert server.said() == [(Kind.ANNOUNCE, 2), (Kind.HINT, 2)]
    assert server.watched() == 0
    server.watch(WORK)
    server.do("hint-2000")
    server.watch()
    server.do("hint-4000")
    assert [kind for kind, _ in server.said()] == [Kind.HINT] * 2


def test_a_read_costs_little_more(server: Server) -> None:
    """Some system calls of its own would be several times as much."""
    server.do("launch", "stream", "pause-3")  # at work nothing is looked at
    off = server.do("cost")
    server.watch(ANNOUNCEMENTS)
    on = server.do("cost")
    print(f"a read costs {off} ns, and {on} ns where announcements are asked for")
    assert on - off < 5_000
