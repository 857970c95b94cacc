"""Strangers at the daemon's socket: they come by way of a relay, and share one budget. The driver is in memory."""

from __future__ import annotations

import resource
import socket
from pathlib import Path

import pytest

from runlist import __version__, wire
from runlist.daemon.relay.channel import Peer
from runlist.daemon.relay.relays import NO_ROOM
from runlist.daemon.requests import connection
from runlist.daemon.requests import server as module
from runlist.proc.owners import Owner
from tests.fixtures.adoption import own_usage, until
from tests.fixtures.daemon import short_path
from tests.fixtures.served import Served, serving
from tests.unit.test_server import message_of

pytestmark = pytest.mark.usefixtures("own_usage", "on_device")
__all__ = ["own_usage", "short_path"]

STRANGER = 54_321


def test_a_stranger_is_served_by_way_of_a_relay_and_has_a_budget(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "peer_of", lambda sock: Peer(0, STRANGER))
    monkeypatch.setattr(connection, "MOST_WAITING", 3)

    async def test(world: Served) -> None:
        messages, sender = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        world.relays.share(messages, lambda _: None)
        clients = [world.client() for _ in range(3)]
        for client in clients:
            assert await client.ask(wire.ListTasks()) == wire.Tasks([], [], __version__)
            for stop in (wire.Stop(), wire.UsePolicy("fair", {})):
                assert "only root and the daemon's own user may" in message_of(await client.ask(stop))
        assert not world.stop.is_set()
        (turns,) = world.server._turns.values()
        await until(lambda: turns.waiting == 0)
        clients[0].send(*[wire.ListTasks()] * 4)
        while await clients[0].answer() is not None:
            pass
        await until(lambda: len(world.server._connections) == 2)
        await until(lambda: turns.waiting == 0)  # what was not served counts no more
        assert world.relays._relays[Owner(STRANGER)].connections == 2
        assert isinstance(await clients[1].ask(wire.ListTasks()), wire.Tasks)
        monkeypatch.setattr(module, "_RESERVE", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        assert message_of(await world.client().answer()) == NO_ROOM
        for sock in (messages, sender):
            sock.close()

    serving(short_path, test)


def test_so_many_requests_of_a_stranger_may_wait_on_all_connections(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "peer_of", lambda sock: Peer(0, STRANGER))

    async def test(world: Served) -> None:
        messages, sender = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        world.relays.share(messages, lambda _: None)
        clients = [world.client() for _ in range(5)]
        for client in clients:
            await client.ask(wire.ListTasks())
        (turns,) = world.server._turns.values()
        async with turns.turn:  # nothing begins meanwhile
            for client in clients[:4]:
                client.send(wire.ListTasks())
            await until(lambda: len(turns.turn._waiters or ()) == 4)  # one of each is on its way
            for client in clients[:4]:
                client.send(*[wire.ListTasks()] * 64)
            await until(lambda: turns.waiting == 256)
            clients[4].send(wire.ListTasks())
            assert await clients[4].answer() is None
        for client in clients[:4]:
            assert all([isinstance(await client.answer(), wire.Tasks) for _ in range(65)])
        for sock in (messages, sender):
            sock.close()

    serving(short_path, test)


def test_requests_of_one_that_was_hung_up_on_wait_no_more(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "peer_of", lambda sock: Peer(0, STRANGER))
    monkeypatch.setattr(connection, "MOST_WAITING", 3)

    async def test(world: Served) -> None:
        messages, sender = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        world.relays.share(messages, lambda _: None)
        one, other = world.client(), world.client()
        for client in (one, other):
            await client.ask(wire.ListTasks())
        (turns,) = world.server._turns.values()
        with monkeypatch.context() as patch:
            patch.setattr(connection, "MOST_UNREAD", 0)
            async with turns.turn:  # nothing begins meanwhile
                one.send(*[wire.ListTasks()] * 3)
                await until(lambda: turns.waiting == 2)
            assert await one.answer() is None
            await until(lambda: len(world.server._connections) == 1)
        async with turns.turn:
            other.send(*[wire.ListTasks()] * 3)
            await until(lambda: turns.waiting == 2)
        assert all([isinstance(await other.answer(), wire.Tasks) for _ in range(3)])
        for sock in (messages, sender):
            sock.close()

    serving(short_path, test)
