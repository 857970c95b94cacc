"""The daemon's side of the process that starts relays, beside a socket that stands for it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from runlist.daemon.relay import channel, nursery
from runlist.daemon.relay.channel import Say
from runlist.daemon.relay.nursery import Nursery
from tests.fixtures.adoption import until


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.theirs: list[socket.socket] = []
        self.ended: list[str] = []
        self.messages, self._other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        monkeypatch.setattr(nursery.helper, "start", self._start)
        self.nursery = Nursery("memory")

    def _start(self, module: str, plane: str, ours: socket.socket, theirs: socket.socket) -> Any:
        assert (module, plane) == ("runlist.daemon.relay", "memory")
        theirs.settimeout(60)
        self.theirs.append(theirs)
        return SimpleNamespace(kill=lambda: self.ended.append("killed"), wait=lambda: self.ended.append("waited"))

    def asked(self) -> channel.Packet:
        packet = channel.receive(self.theirs[-1])
        assert packet is not None
        return packet

    def close(self) -> None:
        self.nursery.close()
        for each in (*self.theirs, self.messages, self._other):
            each.close()


def with_one(test: Callable[[World], Awaitable[None]], monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        before = len(os.listdir("/proc/self/fd"))
        world = World(monkeypatch)
        await test(world)
        world.close()
        assert len(os.listdir("/proc/self/fd")) == before

    asyncio.run(run())


def test_each_relay_has_its_end_of_a_channel_and_the_datagram_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        births = [world.nursery.start(world.messages) for _ in range(2)]
        born: list[int | None] = []
        for number, birth in enumerate(births, 1):
            birth.on_born = born.append
            packet = world.asked()
            assert (packet.say, packet.number, packet.body) == (Say.START, number, b"")
            theirs, messages = packet.fds
            assert os.fstat(messages).st_ino == os.fstat(world.messages.fileno()).st_ino
            os.write(theirs, b"hello")
            assert birth.sock.recv(10) == b"hello"
            packet.close()
            birth.sock.close()
        pidfd = os.pidfd_open(os.getpid())
        channel.send(world.theirs[0], Say.STARTED, 1, fds=[pidfd])
        channel.send(world.theirs[0], Say.STARTED, 2)  # it could not be started
        channel.send(world.theirs[0], Say.STARTED, 9, fds=[pidfd])  # nobody asked
        os.close(pidfd)
        await until(lambda: len(born) == 2)
        await asyncio.sleep(0.005)
        assert (born[0] is not None, born[1]) == (True, None)
        os.close(born[0] or -1)
        assert len(world.theirs) == 1
        assert world.nursery._births == {}

    with_one(test, monkeypatch)


def test_one_that_does_not_answer_for_ten_seconds_is_ended_and_so_are_the_births(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(world: World) -> None:
        now = 100.0
        monkeypatch.setattr(nursery, "time", SimpleNamespace(monotonic=lambda: now))
        born: list[int | None] = []
        birth = world.nursery.start(world.messages)
        birth.on_born = born.append
        birth.sock.close()
        world.nursery.look(109.9)
        assert (world.ended, born) == ([], [])
        world.nursery.look(110.1)
        assert (world.ended, born) == (["killed", "waited"], [None])
        world.nursery.look(200.0)
        assert world.ended == ["killed", "waited"]
        world.nursery.start(world.messages).sock.close()  # another one is started
        assert len(world.theirs) == 2

    with_one(test, monkeypatch)


def test_one_that_ends_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        born: list[int | None] = []
        birth = world.nursery.start(world.messages)
        birth.on_born = born.append
        birth.sock.close()
        world.theirs[0].close()
        await until(lambda: born)
        assert (born, world.nursery._sock) == ([None], None)

    with_one(test, monkeypatch)


def test_where_it_cannot_be_told_nothing_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        world.nursery.start(world.messages).sock.close()
        world.theirs[0].close()
        with pytest.raises(OSError, match=r"Broken pipe|Connection reset"):
            world.nursery.start(world.messages)

    with_one(test, monkeypatch)


def test_numbers_begin_anew_where_a_packet_has_no_room_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        world.nursery._next = (1 << 32) - 2
        numbers = []
        for _ in range(3):
            world.nursery.start(world.messages).sock.close()
            packet = world.asked()
            numbers.append(packet.number)
            packet.close()
        assert numbers == [(1 << 32) - 2, (1 << 32) - 1, 1]

    with_one(test, monkeypatch)
