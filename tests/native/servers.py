"""Servers that do what they are told (preload/arrivals.c), and what they say to a daemon."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runlist.daemon.requests.messages import Kind
from tests.fixtures.ear import Ear, ear
from tests.native.guests import Guests
from tests.native.regions import Region

__all__ = ["ear"]

WORK, ANNOUNCEMENTS = 1, 2
GENERATE, HEALTH = b"POST /generate HTTP/1.1\r\n\r\n", b"GET /healthz HTTP/1.1\r\n\r\n"
PREPARES_MS = 2
PAUSE_MS = 60
"""After which nothing that came in is still to lead to work."""


class Pipe:
    """The other end of a pipe of a program's, written as a socket is."""

    def __init__(self, pid: int, number: int) -> None:
        self._path = Path(f"/proc/{pid}/fd/{number}")

    def sendall(self, text: bytes) -> None:
        self._path.write_bytes(text)

    def close(self) -> None:
        """It is the program's."""


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
        self.client: socket.socket | Pipe = socket.socket()

    def line(self) -> str:
        return str(self._process.stdout.readline().strip())  # type: ignore[attr-defined]

    def tell(self, *words: str) -> None:
        self._process.stdin.write("".join(f"{word}\n" for word in words))  # type: ignore[attr-defined]
        self._process.stdin.flush()  # type: ignore[attr-defined]

    def results(self, *words: str) -> list[int]:
        """Has it do these one by one, and waits for none of them with the next: on a busy machine each of our turns may
        take longer than a message takes to lead to work. What each came to; errno stayed.
        """
        self.tell(*words)
        found = [self.line().split() for _ in words]
        assert [word for word, _ in found] == list(words), found
        return [int(number) for _, number in found]

    def do(self, *words: str) -> int:
        """The same; the result of the last."""
        return self.results(*words)[-1]

    def connect(self, by: str = "accept") -> None:
        self.client = socket.create_connection(self.address)
        assert self.do(by) == 0

    def pipe(self) -> None:
        self.client = Pipe(self.pid, self.do("pipe"))

    def reads(self, text: bytes, way: str = "read") -> None:
        """Something comes in."""
        self.client.sendall(text)
        assert self.do(f"read-{way}") == len(text)

    def serves(self, text: bytes, way: str = "read", prepares_ms: int = PREPARES_MS) -> None:
        """A request comes in, which leads to work; a pause follows."""
        self.watch()
        self.client.sendall(text)
        came, *done = self.results(f"read-{way}", f"pause-{prepares_ms}", "launch", "stream", "pause-3")
        assert came == len(text)
        assert done == [0] * 4

    def ignores(self, text: bytes, way: str = "read") -> None:
        """Something comes in that leads to none."""
        self.watch()
        self.reads(text, way)
        self.do(f"pause-{PAUSE_MS}")

    def learns(self, text: bytes = GENERATE, way: str = "read", times: int = 10) -> None:
        for _ in range(times):
            self.serves(text, way)
        self.forget()

    def watch(self, bits: int = WORK | ANNOUNCEMENTS) -> None:
        self.region.watch(self.pid, bits)

    def watched(self) -> int:
        return self.region.watched()[self.pid]

    def forget(self) -> None:
        """What it said so far."""
        self.ear.catch_up()
        while not self.ear.heard.empty():
            self.ear.heard.get()

    def said(self) -> list[tuple[Kind, float]]:
        """What it said by now, and the milliseconds in that."""
        self.ear.catch_up()
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
def server(guests: Guests, ear: Ear) -> Iterator[Server]:
    with served(guests, ear) as one:
        yield one
