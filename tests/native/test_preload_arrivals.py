"""What comes in over sockets is announced where it led to work before: what is learnt, and what nobody may notice."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runlist.daemon.requests.messages import Kind
from tests.fixtures.daemon import short_path
from tests.fixtures.ear import Ear
from tests.native.guests import Guests
from tests.native.regions import Region

__all__ = ["short_path"]

WORK, ANNOUNCEMENTS = 1, 2
GENERATE, HEALTH = b"POST /generate HTTP/1.1\r\n\r\n", b"GET /healthz HTTP/1.1\r\n\r\n"
PREPARES_MS = 2
PAUSE_MS = 60
"""After which nothing that came in is still to lead to work."""


class Server:
    """A program that serves as it is told, its slot, and a client of it."""

    def __init__(self, process: object, region: Region, ear: Ear) -> None:
        self._process = process
        self.region = region
        self.ear = ear
        self.pid: int = process.pid  # type: ignore[attr-defined]
        word, port = self.line().split()
        assert word == "ready"
        self.address = "127.0.0.1", int(port)
        self.client = socket.socket()

    def line(self) -> str:
        return str(self._process.stdout.readline().strip())  # type: ignore[attr-defined]

    def tell(self, word: str) -> None:
        self._process.stdin.write(word + "\n")  # type: ignore[attr-defined]
        self._process.stdin.flush()  # type: ignore[attr-defined]

    def do(self, *words: str) -> int:
        """Has it do these one by one; the result of the last. errno stayed."""
        result = 0
        for word in words:
            self.tell(word)
            said, number = self.line().split()
            assert said == word, number
            result = int(number)
        return result

    def connect(self, by: str = "accept") -> None:
        self.client = socket.create_connection(self.address)
        assert self.do(by) == 0

    def reads(self, text: bytes, way: str = "read") -> None:
        """Something comes in."""
        self.client.sendall(text)
        assert self.do(f"read-{way}") == len(text)

    def serves(self, text: bytes, way: str = "read", prepares_ms: int = PREPARES_MS) -> None:
        """A request comes in, which leads to work."""
        self.watch()
        self.reads(text, way)
        self.do(f"pause-{prepares_ms}", "launch", "stream")

    def ignores(self, text: bytes) -> None:
        """Something comes in that leads to none."""
        self.watch()
        self.reads(text)
        self.do(f"pause-{PAUSE_MS}")

    def learns(self, text: bytes = GENERATE, way: str = "read", times: int = 10) -> None:
        for _ in range(times):
            self.serves(text, way)
            self.do("pause-3")
        self.forget()

    def watch(self, bits: int = WORK | ANNOUNCEMENTS) -> None:
        self.region.watch(self.pid, bits)

    def watched(self) -> int:
        return self.region.watched()[self.pid]

    def forget(self) -> None:
        """What it said so far."""
        time.sleep(0.1)
        while not self.ear.heard.empty():
            self.ear.heard.get()

    def said(self) -> list[tuple[Kind, float]]:
        """What it said by now, and the milliseconds in that."""
        time.sleep(0.1)
        found = []
        while not self.ear.heard.empty():
            message = self.ear.heard.get().message
            found.append((message.kind, message.nanoseconds / 1e6))
        return found

    def announced(self) -> list[float]:
        """The leads of what it announced by now, in ms."""
        return [lead for kind, lead in self.said() if kind is Kind.ANNOUNCE]


@contextmanager
def served(guests: Guests, ear: Ear, **more: str) -> Iterator[Server]:
    region = guests.region()
    env = guests.environment(region, RUNLIST_MESSAGES=str(ear.path), **more)
    with guests.started("arrivals", env=env) as process:
        one = Server(process, region, ear)
        one.forget()
        yield one


@pytest.fixture
def ear(short_path: Path) -> Iterator[Ear]:
    with Ear(short_path / "messages.sock") as one:
        yield one


@pytest.fixture
def server(guests: Guests, ear: Ear) -> Iterator[Server]:
    with served(guests, ear) as one:
        yield one


def test_what_leads_to_work_is_announced_with_how_soon(server: Server) -> None:
    server.connect()
    server.learns()
    server.watch()
    server.reads(GENERATE)
    (lead,) = server.announced()
    assert PREPARES_MS <= lead < 50
    assert server.watched() == (0 if lead <= 3 else WORK | ANNOUNCEMENTS)


@pytest.mark.parametrize("way", ["read", "recv", "recvfrom", "recvmsg", "readv", "checked"])
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
        server.do("pause-3")
    server.forget()
    server.connect(by)
    server.watch()
    server.reads(GENERATE)
    assert len(server.announced()) == 1


def test_health_checks_are_not_announced(server: Server) -> None:
    server.connect()
    for _ in range(6):
        server.serves(GENERATE)
        server.do("pause-3")
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
        server.do("pause-3")
    server.forget()
    server.watch()
    server.reads(b"another one that it has never seen")
    assert len(server.announced()) == 1


def test_what_no_longer_leads_to_work_is_announced_no_longer(server: Server) -> None:
    server.connect()
    server.learns(times=6)
    for _ in range(5):
        server.ignores(GENERATE)
    server.forget()
    server.watch()
    server.reads(GENERATE)
    assert server.announced() == []


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
        server.do("pause-3")
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
        server.reads(b"%016d" % (number * 7919))  # its body
        server.do("launch", "stream", "pause-8")
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
        server.do("pause-3")
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


def test_a_read_costs_little_more(server: Server) -> None:
    """Some system calls of its own would be several times as much."""
    server.do("pair")
    off = server.do("cost")
    server.watch(ANNOUNCEMENTS)
    on = server.do("cost")
    assert on - off < 5_000


# Touches, beside a driver of our own that writes down what is asked of it.


class Touched:
    """A server on that driver."""

    def __init__(self, server: Server, path: Path) -> None:
        self.do = server.do
        self.server = server
        self._path = path
        self._seen = 0

    def asked(self) -> str:
        """What was asked of the driver since the last time: (q)uestions, (h)ost functions, fills of (m)emory."""
        text = self._path.read_text() if self._path.exists() else ""
        fresh, self._seen = text[self._seen :], len(text)
        return fresh


@contextmanager
def touched(guests: Guests, ear: Ear, **more: str) -> Iterator[Touched]:
    folder = guests.path("touched/libcuda.so.1").parent
    path = guests.new_path()
    with served(guests, ear, LD_LIBRARY_PATH=str(folder), TOUCHES=str(path), **more) as one:
        yield Touched(one, path)


@pytest.fixture
def on_driver(guests: Guests, ear: Ear) -> Iterator[Touched]:
    with touched(guests, ear) as one:
        one.do("hint", "launch", "stream")  # at a launch what a touch needs is made
        one.do("pause-2")
        assert one.asked() == ""
        yield one


def test_a_hint_touches(on_driver: Touched) -> None:
    for _ in range(3):
        on_driver.do("hint")
        assert on_driver.asked() == "qm"


def test_an_announcement_touches(on_driver: Touched) -> None:
    server = on_driver.server
    server.connect()
    server.learns()
    on_driver.asked()
    server.watch()
    server.reads(GENERATE)
    assert on_driver.asked() in ("qm", "qhm", ""), "nothing where it is far ahead"
    server.watch()
    server.do("begin")
    assert on_driver.asked() == "qm"


def test_a_touch_is_put_off_until_shortly_before_the_work(on_driver: Touched) -> None:
    on_driver.do("hint-2000")
    assert on_driver.asked() == "qhm"
    on_driver.do("hint-100")
    assert on_driver.asked() == "qm"
    on_driver.do("hint-4000")
    assert on_driver.asked() == ""


def test_a_touch_is_no_work(on_driver: Touched) -> None:
    region = on_driver.server.region
    before = region.activities()[on_driver.server.pid].work
    on_driver.do("hint", "hint")
    assert region.activities()[on_driver.server.pid].work == before


def test_in_a_thread_without_a_context(on_driver: Touched) -> None:
    on_driver.do("thread-hint")
    assert on_driver.asked() == "qm"


def test_no_handler_calls_the_driver(on_driver: Touched) -> None:
    assert on_driver.do("handler-hint") == 0
    assert on_driver.asked() == ""


def test_not_before_the_last_touch_is_done(guests: Guests, ear: Ear) -> None:
    with touched(guests, ear, ANSWER="600") as one:  # not ready
        one.do("hint", "launch", "stream", "hint", "hint")
        assert one.asked() == "qq"


def test_a_driver_that_refuses_is_asked_no_more(guests: Guests, ear: Ear) -> None:
    with touched(guests, ear, ANSWER="999") as one:
        one.do("hint", "launch", "stream", "hint", "hint", "launch", "hint")
        assert one.asked() == "q"


def test_before_there_is_a_context_nothing_is_touched(guests: Guests, ear: Ear) -> None:
    with touched(guests, ear) as one:
        one.do("hint", "hint")
        assert one.asked() == ""


def test_a_context_that_ended_is_left_alone_until_there_is_work_again(on_driver: Touched) -> None:
    on_driver.do("reset", "hint")
    assert on_driver.asked() == ""
    on_driver.do("launch", "stream", "hint")
    assert on_driver.asked() == "qm"


def test_who_hints_and_is_forked_touches_for_itself(on_driver: Touched) -> None:
    server = on_driver.server
    server.connect()
    server.learns()
    on_driver.asked()
    server.watch()
    server.client.sendall(GENERATE)
    server.do("fork")
    assert on_driver.asked() == ""
