"""The daemon's relays: who has one, who is refused and why, and when they end. They are real processes."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from runlist import wire
from runlist.daemon import helper
from runlist.daemon.relay import channel, relay, relays
from runlist.daemon.relay.channel import Datagram, Say
from runlist.daemon.relay.relays import NO_ROOM, Relays
from runlist.frames import Inbox
from runlist.proc.owners import Owner
from runlist.proc.process import behind
from tests.fixtures.daemon import PATIENCE_S, running
from tests.unit.test_relay import until

pytestmark = pytest.mark.usefixtures("on_device")

ONE, OTHER = Owner(1001), Owner(1002)


class World:
    """Relays over a datagram socket of the test's."""

    def __init__(self) -> None:
        self.relays = Relays("emulated")
        self.heard: list[Datagram] = []
        self.messages, self.sender = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.messages.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.relays.share(self.messages, self.heard.append)
        self._socks: list[socket.socket] = []

    def connect(self, owner: Owner) -> tuple[socket.socket, tuple[socket.socket, Callable[[], None]] | None]:
        """A connection of a stranger, and what came of it."""
        mine, handed = socket.socketpair()
        mine.setblocking(False)
        served = self.relays.connect(owner, handed)
        assert handed.fileno() < 0  # in no case is it still here
        self._socks += [mine, *([served[0]] if served else [])]
        return mine, served

    async def served(self, owner: Owner) -> tuple[socket.socket, socket.socket, Callable[[], None]]:
        """A connection that is served: both ends, and what to call at its end."""
        mine, served = self.connect(owner)
        assert served is not None
        ours, ended = served
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(mine, wire.encode(wire.GetStatus()))
        assert await asyncio.wait_for(loop.sock_recv(ours, 1 << 16), PATIENCE_S) == wire.encode(wire.GetStatus())
        return mine, ours, ended

    async def relay_of(self, owner: Owner | None) -> int:
        """The process of a user's relay, once it is known: a relay may have answered before."""
        one = self.relays._undertaker if owner is None else self.relays._relays[owner]
        assert one is not None
        await until(lambda: one.is_running)
        assert one._pidfd is not None
        return behind(one._pidfd)

    def close(self) -> None:
        self.relays.close()
        for sock in (*self._socks, self.messages, self.sender):
            sock.close()


async def last_words(mine: socket.socket) -> str:
    """What a refused connection hears before it ends."""
    loop, data = asyncio.get_running_loop(), b""
    while more := await asyncio.wait_for(loop.sock_recv(mine, 1 << 16), PATIENCE_S):
        data += more
    inbox = Inbox()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data)
        inbox.read(ours)
    (body,) = inbox.frames()
    failure = msgspec.json.decode(body, type=wire.Answer)
    assert isinstance(failure, wire.Failure)
    return failure.message


def run(test: Callable[[World], object]) -> None:
    async def main() -> None:
        world = World()
        try:
            await test(world)  # type: ignore[misc]
        finally:
            world.close()

    asyncio.run(main())


def sockets_of(pid: int) -> set[str]:
    return {name for fd in Path(f"/proc/{pid}/fd").iterdir() if (name := os.readlink(fd)).startswith("socket:")}


def test_who_is_a_stranger() -> None:
    assert not Relays.is_stranger(0)
    assert not Relays.is_stranger(os.geteuid())
    assert Relays.is_stranger(os.geteuid() + 1)


def test_each_user_has_one_relay_and_so_many_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relays, "MAX_CONNECTIONS", 2)

    async def test(world: World) -> None:
        _, _, ended = await world.served(ONE)
        first = await world.relay_of(ONE)
        await world.served(ONE)
        await world.served(OTHER)
        assert await world.relay_of(ONE) == first != await world.relay_of(OTHER)
        assert (nursery := world.relays._nursery._process) is not None
        assert not sockets_of(first) & sockets_of(nursery.pid)  # none has a way to what starts those of others
        mine, served = world.connect(ONE)
        assert served is None
        assert await last_words(mine) == "you have 2 connections to the daemon: end some"
        ended()
        await world.served(ONE)

    run(test)


def test_several_relays_may_start_at_once() -> None:
    async def test(world: World) -> None:
        await asyncio.gather(*(world.served(Owner(1001 + number)) for number in range(4)))
        assert len({await world.relay_of(Owner(1001 + number)) for number in range(4)}) == 4

    run(test)


def test_a_connection_a_moment_too_early_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay.Relay, "may_connect", lambda _: False)

    async def test(world: World) -> None:
        mine, served = world.connect(ONE)
        assert served is None
        assert "connections a second: make fewer" in await last_words(mine)

    run(test)


def test_with_all_relays_in_use_others_wait_and_an_idle_one_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relays, "MAX_RELAYS", 1)

    async def test(world: World) -> None:
        mine, _, ended = await world.served(ONE)
        process = await world.relay_of(ONE)
        refused, served = world.connect(OTHER)
        assert served is None
        assert "other users have connections to the daemon: try again later" in await last_words(refused)
        assert running(process)
        mine.close()
        ended()
        await world.served(OTHER)
        await until(lambda: not running(process))

    run(test)


def test_one_that_hangs_is_ended_and_its_user_waits_longer_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relays, "_LOOK_S", 0.05)
    monkeypatch.setattr(relay, "_SIGN_S", 1.0)  # of a busy machine, too
    monkeypatch.setattr(relays, "_FIRST_PENALTY_S", 0.2)

    async def test(world: World) -> None:
        waits = []
        for _ in range(2):
            await world.served(ONE)
            await world.served(OTHER)
            process, other = await world.relay_of(ONE), await world.relay_of(OTHER)
            os.kill(process, signal.SIGSTOP)
            await until(lambda: ONE not in world.relays._relays)
            began = time.monotonic()
            assert world.connect(ONE)[1] is None
            await until(lambda: not running(process))  # noqa: B023
            await until(lambda: world.connect(ONE)[1] is not None)
            waits.append(time.monotonic() - began)
            assert await world.relay_of(OTHER) == other
        assert waits[0] > 0.15
        assert waits[1] > 0.35

    run(test)


def test_what_is_long_ago_is_forgiven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relays, "_LOOK_S", 0.05)
    monkeypatch.setattr(relays, "_FIRST_PENALTY_S", 60.0)
    monkeypatch.setattr(relays, "_FORGIVEN_S", 0.3)

    async def test(world: World) -> None:
        await world.served(ONE)
        os.kill(await world.relay_of(ONE), signal.SIGKILL)
        await until(lambda: ONE not in world.relays._relays)
        assert world.connect(ONE)[1] is None
        await until(lambda: world.connect(ONE)[1] is not None)

    run(test)


def test_each_time_that_a_users_relay_hangs_there_is_none_for_twice_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=lambda: clock.now, now=1000.0)
    monkeypatch.setattr(relays, "time", clock)
    world: Any = SimpleNamespace(_records={})
    waits = []
    for after_s in (0, 5, 5, 5, 5, 5, 5, 5, 5, 120, 120.1, 1):
        clock.now += after_s
        Relays._blame(world, ONE)
        waits.append(round(world._records[ONE].until - clock.now, 3))
    assert waits == [0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60, 0.5, 1]


def test_no_penalty_is_endless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relays, "_FIRST_PENALTY_S", 0.05)
    monkeypatch.setattr(relays, "_MAX_PENALTY_S", 0.1)

    async def test(world: World) -> None:
        began = time.monotonic()
        for _ in range(4):
            await until(lambda: world.connect(ONE)[1] is not None)
            await until(lambda: world.relays._relays[ONE].is_running)
            os.kill(await world.relay_of(ONE), signal.SIGKILL)
            await until(lambda: ONE not in world.relays._relays)
        assert world.relays._records[ONE].kills == 4
        assert world.relays._records[ONE].until < time.monotonic() + 0.15
        assert time.monotonic() - began > 0.2

    run(test)


def test_a_relay_without_connections_ends_and_so_does_what_starts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relays, "_LOOK_S", 0.05)
    monkeypatch.setattr(relays, "IDLE_S", 0.5)

    async def test(world: World) -> None:
        _, _, ended = await world.served(ONE)
        mine, _ = socket.socketpair()
        world.relays.refuse(OTHER, mine, "no")
        await until(lambda: world.relays._undertaker is not None and world.relays._undertaker.is_running)
        process, undertaker = await world.relay_of(ONE), await world.relay_of(None)
        await asyncio.sleep(0.8)
        assert running(process)  # it has one
        await until(lambda: not running(undertaker))
        nursery = world.relays._nursery._process
        assert nursery is not None
        assert nursery.poll() is None
        ended()
        since = time.monotonic()
        await until(lambda: not running(process))
        assert time.monotonic() - since > 0.4
        await until(lambda: nursery.poll() is not None)
        assert ONE not in world.relays._relays
        await world.served(ONE)  # and all begin again

    run(test)


def test_what_is_refused_is_buried_elsewhere_and_only_so_much_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relays, "MAX_HELD", 3)

    async def test(world: World) -> None:
        strangers = []
        for number in range(3):
            assert not world.relays.full
            mine, handed = socket.socketpair()
            mine.setblocking(False)
            strangers.append(mine)
            world.relays.refuse(ONE, handed, f"{NO_ROOM} {number}")
            assert handed.fileno() < 0
        assert world.relays.full
        assert [await last_words(mine) for mine in strangers] == [f"{NO_ROOM} {number}" for number in range(3)]
        assert not world.relays.full
        for mine in strangers:
            mine.close()

    run(test)


def test_after_the_end_nothing_is_started_any_more() -> None:
    async def test(world: World) -> None:
        mine, handed = socket.socketpair()
        world.relays.refuse(ONE, handed, "no")
        world.relays.close()
        await asyncio.sleep(0.1)
        assert world.relays._undertaker is None
        assert world.relays._nursery._process is None
        mine.close()

    run(test)


def test_an_undertaker_that_ends_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        async def refused() -> str:
            mine, handed = socket.socketpair()
            mine.setblocking(False)
            with mine:
                world.relays.refuse(ONE, handed, "no")
                return await last_words(mine)

        assert await refused() == "no"
        before = await world.relay_of(None)
        os.kill(before, signal.SIGKILL)
        await until(lambda: world.relays._undertaker is None)
        assert await refused() == "no"
        assert await world.relay_of(None) != before
        assert world.connect(ONE)[1] is not None  # nobody is blamed for the undertaker

    run(test)


def test_a_nursery_that_ends_takes_its_relays_along_and_is_replaced() -> None:
    async def test(world: World) -> None:
        await world.served(ONE)
        process, nursery = await world.relay_of(ONE), world.relays._nursery._process
        assert nursery is not None
        nursery.kill()
        await until(lambda: not running(process))
        await until(lambda: ONE not in world.relays._relays)
        await world.served(OTHER)

    run(test)


def test_a_relay_that_fails_says_why_and_leaves_nothing_behind() -> None:
    ours, theirs = channel.pair()
    nursery = helper.start("runlist.daemon.relay", "emulated", ours, theirs)
    end, handed = channel.pair()
    messages = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, end, handed, messages[0], messages[1], open("/dev/null") as no_socket:
        for each in (ours, end):
            each.settimeout(PATIENCE_S)
        channel.send(ours, Say.START, 7, fds=[handed.fileno(), messages[0].fileno()])
        started = channel.receive(ours)
        assert started is not None
        assert (started.say, started.number, len(started.fds)) == (Say.STARTED, 7, 1)
        process = behind(started.fds[0])
        handed.close()
        channel.send(end, Say.CONNECT, 1, fds=[no_socket.fileno()])
        channel.send(end, Say.GO, 1)
        said = channel.receive(end)
        assert said is not None
        assert (said.say, said.number) == (Say.BROKEN, 0)
        assert "OSError" in said.body.decode()
        assert channel.receive(end) is None
        select.select(started.fds, [], [], PATIENCE_S)
        started.close()
        asyncio.run(until(lambda: not Path(f"/proc/{process}").exists()))  # nor as a zombie
    assert nursery.wait(PATIENCE_S) == 0


def test_datagrams_are_taken_or_dropped_and_then_the_next_may_come(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        done = asyncio.Semaphore(0)
        reader, writer = os.pipe()
        socket.send_fds(world.sender, [b"first"], [reader])
        socket.send_fds(world.sender, [b"second"], [reader])
        os.close(reader)
        world.relays.take(ONE, False, done.release)
        await asyncio.wait_for(done.acquire(), PATIENCE_S)
        assert ONE not in world.relays._relays  # dropped by the undertaker
        world.relays.take(ONE, True, done.release)
        await asyncio.wait_for(done.acquire(), PATIENCE_S)
        await until(lambda: world.heard)
        (taken,) = world.heard
        assert (taken.record, taken.pid, taken.uid, len(taken.fds)) == (b"second", os.getpid(), os.getuid(), 1)
        os.close(taken.fds[0])
        os.close(writer)
        world.relays.take(ONE, True, done.release)  # nothing is there
        await asyncio.wait_for(done.acquire(), PATIENCE_S)
        assert len(world.heard) == 1

    run(test)


def test_while_no_relay_can_be_had_a_datagram_is_tried_again_later() -> None:
    async def test(world: World) -> None:
        done: list[float] = []
        world.relays.close()
        began = time.monotonic()
        world.relays.take(ONE, True, lambda: done.append(time.monotonic() - began))
        assert done == []
        await until(lambda: done)
        assert done[0] >= 0.04
        assert world.connect(ONE)[1] is None

    run(test)


def test_a_channel_is_for_packets_with_their_descriptors() -> None:
    ours, theirs = channel.pair()
    with ours, theirs:
        channel.send(ours, channel.Say.TAKE, 0xFFFF_FFFF, b"body", [0, 1])
        packet = channel.receive(theirs)
        assert packet is not None
        assert packet[:3] == (channel.Say.TAKE, 0xFFFF_FFFF, b"body")
        assert len(packet.fds) == 2
        packet.close()
        for fd in packet.fds:
            with pytest.raises(OSError, match="Bad file"):
                os.fstat(fd)
        ours.close()
        assert channel.receive(theirs) is None


class Undertaker:
    """Takes so many connections."""

    is_running = True

    def __init__(self, room: int) -> None:
        self.room = room
        self.did: list[object] = []

    def hand_over(self, say: Say, sock: socket.socket, *, body: bytes) -> bool:
        assert say is Say.CLOSE
        if self.room == len(self.did):
            return False
        self.did.append(body)
        sock.close()
        return True

    def go(self) -> None:
        self.did.append("go")

    def hang(self) -> None:
        self.did.append("hang")


@pytest.mark.parametrize(
    ("room", "runs", "did", "left", "again"),
    [
        (9, True, [b"a", b"b", b"c", "go"], [], []),
        (1, True, [b"a", "hang"], [b"b", b"c"], [0.05]),  # it is stuck
        (0, False, [], [b"a", b"b", b"c"], [0.05]),  # it is not there yet
        (None, False, [], [b"a", b"b", b"c"], [0.05]),
    ],
)
def test_what_nobody_wants_is_buried_in_its_order_or_tried_again(
    room: int | None, runs: bool, did: list[object], left: list[bytes], again: list[float]
) -> None:
    undertaker, calls = None if room is None else Undertaker(room), []
    if undertaker is not None:
        undertaker.is_running = runs
    others, held = [], deque()
    for words in (b"a", b"b", b"c"):
        ours, theirs = socket.socketpair()
        others.append(theirs)
        held.append((ours.detach(), words))
    world: Any = SimpleNamespace(
        _held=held, _closed=False, _the_undertaker=lambda: undertaker, _bury="again",
        _loop=SimpleNamespace(call_later=lambda *which: calls.append(which)),
    )  # fmt: skip
    Relays._bury(world)
    assert (undertaker.did if undertaker is not None else []) == did
    assert [words for _, words in held] == left
    assert calls == [(after_s, "again") for after_s in again]
    for fd, _ in held:
        os.close(fd)
    for other in others:
        other.close()
    world._held.clear()
    calls.clear()
    Relays._bury(world)  # nothing is left
    world._held.append((-1, b""))
    world._closed = True
    Relays._bury(world)
    assert (calls, undertaker is None or undertaker.did == did) == ([], True)


def test_what_a_relay_says_goes_to_the_daemon_or_its_log() -> None:
    heard: list[Datagram] = []
    world: Any = SimpleNamespace(_on_datagram=heard.append)
    sent = Datagram(b"record", 5, 6, b"\0name")
    said: Any = SimpleNamespace(owner=Owner(77, "0" * 64))
    with capture_logs() as logs:
        Relays._heard(world, said, channel.Packet(Say.DATAGRAM, 1, sent.encode(), []))
        Relays._heard(world, said, channel.Packet(Say.BROKEN, 1, b"half a \xff", []))
        Relays._heard(world, said, channel.Packet(Say.TAKEN, 1, b"", []))
    assert heard == [sent]
    assert [(log["user"], log["container"], log["reason"]) for log in logs] == [(77, "0" * 12, "half a \ufffd")]
