"""Messages that are known by a part of them alone, that lie there to be read, and that come by pipes."""

from __future__ import annotations

import errno
import random
import socket
import struct
import time
from collections.abc import Callable

import pytest

from tests.fixtures.daemon import short_path
from tests.native.servers import GENERATE, HEALTH, PAUSE_MS, Server, ear, server

__all__ = ["ear", "server", "short_path"]


# Messages that begin differently each time: what is the same further on, or their length, tells them from those that
# lead nowhere.


def numbered(name: bytes, size: int) -> bytes:
    """An id, as of a request of ZMQ's, and what is asked for."""
    return random.randbytes(20) + b'{"do": "%s"}' % name + random.randbytes(size)


def framed(name: bytes, size: int) -> bytes:
    """Its length, as of a message of multiprocessing's, and a pickle."""
    text = b"\x80\x04\x95" + struct.pack("<Q", size) + b"\x8c\x08" + name + random.randbytes(size)
    return struct.pack("!i", len(text)) + text


def hidden(name: bytes, size: int) -> bytes:
    """As under TLS."""
    size += 40 if name == b"healthz!" else 300
    return b"\x17\x03\x03" + struct.pack("!H", size) + random.randbytes(size)


@pytest.mark.parametrize(
    ("message", "way"), [(numbered, "read"), (framed, "length"), (framed, "pieces"), (framed, "read"), (hidden, "read")]
)
def test_what_begins_differently_each_time(server: Server, message: Callable[[bytes, int], bytes], way: str) -> None:
    server.connect()
    for _ in range(20):
        server.serves(message(b"generate", random.randrange(150)), way)
        server.ignores(message(b"healthz!", random.randrange(8)), way)
    server.forget()
    told = 0
    for _ in range(4):
        server.watch()
        server.reads(message(b"healthz!", random.randrange(8)), way)
        assert server.announced() == []
        server.do(f"pause-{PAUSE_MS}")
        server.serves(message(b"generate", random.randrange(150)), way)
        told += len(server.announced())
    assert told >= 2  # the time from a message to its work is learnt, too, and may be another on a busy machine


# What can be read is looked at before it is: another thread may read it, and late.

WAITS = ["poll", "checked", "epoll", "epwait"]


@pytest.mark.parametrize("by", WAITS)
def test_what_can_be_read_is_announced_before_it_is(server: Server, by: str) -> None:
    server.connect()
    for _ in range(10):
        server.watch()
        server.client.sendall(GENERATE)
        # Read after longer than what is read at once takes.
        done = server.results(f"wait-{by}", "pause-8", "read-read", "launch", "stream", "pause-3")
        assert done == [1, 0, len(GENERATE), 0, 0, 0]
    server.forget()
    server.watch()
    server.client.sendall(GENERATE)
    server.do(f"wait-{by}", "pause-10")
    server.ear.catch_up()
    assert not server.ear.heard.empty(), "before it is read"
    server.do(f"wait-{by}", "read-read")
    assert len(server.announced()) == 1


@pytest.mark.parametrize("by", WAITS)
def test_health_checks_that_can_be_read_are_not_announced(server: Server, by: str) -> None:
    server.connect()
    for _ in range(4):
        for text in (GENERATE, HEALTH):
            server.watch()
            server.client.sendall(text)
            then = ["launch", "stream", "pause-3"] if text == GENERATE else [f"pause-{PAUSE_MS}"]
            server.do(f"wait-{by}", "read-read", *then)
    server.forget()
    server.watch()
    server.client.sendall(HEALTH)
    server.do(f"wait-{by}")
    assert server.announced() == []


@pytest.mark.parametrize("by", ["accept", "accept4"])
def test_what_came_with_a_connection_is_announced_as_that_comes_in(server: Server, by: str) -> None:
    def connects() -> None:
        server.client = socket.create_connection(server.address)
        server.client.sendall(GENERATE)
        time.sleep(0.01)

    for _ in range(10):
        connects()
        server.watch()
        server.do(by, "pause-2", "read-read", "launch", "stream", "pause-3")
    server.forget()
    server.watch()
    connects()
    server.do(by)
    assert len(server.announced()) == 1
    assert server.do("read-read") == len(GENERATE)


@pytest.mark.parametrize("by", WAITS)
def test_an_error_is_left_for_who_reads(server: Server, by: str) -> None:
    server.connect()
    server.learns()
    server.watch()
    assert isinstance(server.client, socket.socket)
    server.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    server.client.close()  # by a reset
    assert server.do(f"wait-{by}") == 1
    assert server.do("fails") == errno.ECONNRESET


def test_who_peeks_at_a_place_of_its_own_finds_it_there(server: Server) -> None:
    server.do("pair", "peek-at-0")
    server.watch()
    server.do("tell", "wait-poll")
    assert server.do("read-peek-now", "first") == ord("t")


# Pipes, by which the processes of a program ask one another.


@pytest.mark.parametrize("way", ["read", "length"])
def test_a_pipe(server: Server, way: str) -> None:
    server.pipe()
    server.learns(way=way)
    server.watch()
    server.reads(GENERATE, way)
    assert len(server.announced()) == 1


def test_health_checks_by_a_pipe(server: Server) -> None:
    server.pipe()
    for _ in range(4):
        server.serves(GENERATE)
        server.ignores(HEALTH)
    server.forget()
    server.watch()
    server.reads(HEALTH)
    assert server.announced() == []


@pytest.mark.parametrize("by", ["pair", "pipe"])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_wakes_that_are_read_at_once_are_no_message(server: Server, by: str, count: int) -> None:
    server.do(by)
    for _ in range(8):
        server.watch()
        assert server.results(*["wake"] * count, "read-read", "launch", "stream", "pause-3")[count] == count
    server.forget()
    server.watch()
    server.do(*["wake"] * count, "read-read")
    assert server.announced() == []


def test_what_comes_by_a_standard_descriptor_is_none(server: Server) -> None:
    server.pipe()
    server.do("standard")
    server.learns()
    server.watch()
    server.reads(GENERATE)
    assert server.announced() == []
