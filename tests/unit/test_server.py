"""The daemon's socket: requests in, answers out, who is hung up on. The driver is in memory, the clients are ours."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runlist import __version__, wire
from runlist.daemon.relay.relays import Relays
from runlist.daemon.requests import connection, handlers
from runlist.daemon.requests import server as module
from runlist.errors import ExitCode, RunlistError
from runlist.views.structs import TaskView
from tests.fixtures.adoption import PID, child, own_usage, until
from tests.fixtures.daemon import short_path
from tests.fixtures.manager import NO_PROCESS
from tests.fixtures.served import Client, Served, readable, serving
from tests.unit.test_view import managed
from tests.unit.test_view import one as seen_one

# As they are to be: taken from the code they would hold whatever it says.
ACCEPTED_AT_ONCE = 16
MAX_WAITING_REQUESTS = 64
PIECE_S = 0.001
RESERVE = 64
REST_S = 0.1

pytestmark = pytest.mark.usefixtures("own_usage", "on_device")
__all__ = ["own_usage", "short_path"]


def message_of(answer: wire.Message | None) -> str:
    assert isinstance(answer, wire.Failure)
    assert answer.version == __version__
    return answer.message


# -- answers ---------------------------------------------------------------------------------------


def test_requests_are_answered_in_their_order(short_path: Path) -> None:
    async def test(world: Served) -> None:
        world.tenant()
        await world.adopt(await world.launched())
        one, other = world.client(), world.client()
        changes = [wire.Attach(PID, {"weight": "300"}), wire.Suspend(PID), wire.ListTasks(), wire.Resume(PID)]
        one.send(*changes, wire.Change(PID, {"weight": "50"}), wire.Detach(PID))
        answers = [await one.answer() for _ in range(6)]
        assert all(isinstance(answer, wire.Tasks) and answer.version == __version__ for answer in answers)
        seen = [[(task.pid, task.weight, task.suspended) for task in answer.tasks] for answer in answers]  # type: ignore[union-attr]
        before, running, stopped = [(PID, 300, False)], [(PID, 50, False)], [(PID, 300, True)]
        assert seen == [before, stopped, stopped, before, running, []]
        assert await other.ask(wire.ListTasks()) == wire.Tasks([], [], __version__)
        assert world.server._pause is None  # there is room

    serving(short_path, test)


def test_what_is_asked_wrongly_says_so_and_a_release_lets_all_go(short_path: Path) -> None:
    async def test(world: Served) -> None:
        client = world.client()
        refused = await client.ask(wire.Attach(NO_PROCESS))
        assert isinstance(refused, wire.Failure)
        assert refused.exit_code == ExitCode.NO_TARGET
        await world.launched()
        assert world.server.busy
        assert await client.ask(wire.Release()) == wire.Tasks([], [], __version__)
        assert world.processes.roots == {}

    serving(short_path, test)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RunlistError("not now"), "not now"),
        (OSError(errno.EIO, "Input/output error"), "the driver could not be reached: Input/output error"),
        (ZeroDivisionError("oops"), "the daemon failed at this request (ZeroDivisionError('oops')): see its log"),
    ],
)
def test_a_request_that_fails_is_answered_and_the_next_is_served(short_path: Path, error: Exception, line: str) -> None:
    async def test(world: Served) -> None:
        def fail(uid: int) -> None:
            raise error

        release, world.manager.release = world.manager.release, fail  # type: ignore[method-assign]
        client = world.client()
        assert message_of(await client.ask(wire.Release())) == line
        world.manager.release = release  # type: ignore[method-assign]
        assert isinstance(await client.ask(wire.Release()), wire.Tasks)

    serving(short_path, test)


def test_one_that_reads_no_answers_keeps_nobody_waiting(short_path: Path) -> None:
    async def test(world: Served) -> None:
        def fail(uid: int) -> None:
            raise RunlistError("x" * 5_000)

        world.manager.release = fail  # type: ignore[method-assign,assignment]
        one, other = world.client(), world.client()
        one.send(*[wire.Release()] * 60)
        await asyncio.sleep(0.1)
        assert isinstance(await other.ask(wire.ListTasks()), wire.Tasks)
        assert [len(message_of(await one.answer())) for _ in range(60)] == [5_000] * 60

    serving(short_path, test)


# -- hanging up ------------------------------------------------------------------------------------


def test_so_many_requests_may_wait(short_path: Path) -> None:
    async def test(world: Served) -> None:
        client = world.client()
        most = MAX_WAITING_REQUESTS
        client.send(*[wire.ListTasks()] * most)
        assert all([isinstance(await client.answer(), wire.Tasks) for _ in range(most)])
        client.send(*[wire.ListTasks()] * (most + 1))
        answers = 0
        while await client.answer() is not None:
            answers += 1
        assert answers == most  # those that came before are served
        await until(lambda: not world.server.busy)

    serving(short_path, test)


@pytest.mark.parametrize(
    "messages",
    [
        [wire.Borrowed()],
        [wire.ListTasks(), wire.Borrowed(errno.EPERM)],
        [wire.Launch(PID, {}, region=True)],
        [wire.Tasks([])],
    ],
)
def test_what_breaks_the_protocol_is_hung_up_on(short_path: Path, messages: list[wire.Message]) -> None:
    async def test(world: Served) -> None:
        client, other = world.client(), world.client()
        client.send(*messages)
        while await client.answer() is not None:
            pass
        assert isinstance(await other.ask(wire.ListTasks()), wire.Tasks)
        assert world.processes.roots == {}

    serving(short_path, test)


@pytest.mark.parametrize("data", [b"\xff\xff\xff\x7f", b"\2\0\0\0{}", b"\2\0\0\0[["])
def test_what_is_no_request_is_hung_up_on(short_path: Path, data: bytes) -> None:
    async def test(world: Served) -> None:
        client = world.client()
        client.sock.send(data)
        assert await client.answer() is None

    serving(short_path, test)


def test_descriptors_that_nobody_asked_for_are_hung_up_on_and_closed(short_path: Path) -> None:
    async def test(world: Served) -> None:
        client = world.client()
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        client.send(wire.ListTasks(), fds=(writer,))
        os.close(writer)
        while await client.answer() is not None:
            pass
        await readable(reader)
        assert os.read(reader, 1) == b""  # nobody has the other end any more
        os.close(reader)

    serving(short_path, test)


def test_at_the_end_all_are_hung_up_on_and_nobody_is_accepted(short_path: Path) -> None:
    async def test(world: Served) -> None:
        client = world.client()
        assert isinstance(await client.ask(wire.ListTasks()), wire.Tasks)
        assert world.server.busy
        world.server.close()
        world.server.close()
        assert await client.answer() is None
        with pytest.raises(ConnectionRefusedError):
            Client(world.path)
        await until(lambda: not world.server.busy)

    serving(short_path, test)


# -- accepting -------------------------------------------------------------------------------------


def test_many_at_once_are_all_accepted(short_path: Path) -> None:
    async def test(world: Served) -> None:
        clients = [world.client() for _ in range(3 * ACCEPTED_AT_ONCE)]
        for client in clients:
            client.send(wire.ListTasks())
        assert all([isinstance(await client.answer(), wire.Tasks) for client in clients])

    serving(short_path, test)


def test_with_only_the_reserve_left_connections_are_refused_and_later_accepted_again(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(world: Served) -> None:
        served = world.client()
        await served.ask(wire.ListTasks())
        reserve = RESERVE
        monkeypatch.setattr(module, "_RESERVE", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        refused = world.client()
        assert await refused.answer() is None
        assert isinstance(await served.ask(wire.ListTasks()), wire.Tasks)
        monkeypatch.setattr(module, "_RESERVE", reserve)
        assert isinstance(await world.client().ask(wire.ListTasks()), wire.Tasks)

    serving(short_path, test)


def test_while_too_many_wait_to_be_hung_up_on_nobody_is_accepted(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(world: Served) -> None:
        monkeypatch.setattr(Relays, "full", True)
        client = world.client()
        client.send(wire.ListTasks())
        await asyncio.sleep(2.5 * REST_S)
        assert not world.server.busy
        monkeypatch.setattr(Relays, "full", False)
        assert isinstance(await client.answer(), wire.Tasks)

    serving(short_path, test)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ECONNABORTED])
def test_an_accept_that_fails_ends_nothing(short_path: Path, code: int) -> None:
    """Without descriptors it rests; a connection that is gone already is no reason to."""

    class Failing:
        def __init__(self, sock: socket.socket) -> None:
            self.sock, self.failures, self.at = sock, 1, 0.0

        def __getattr__(self, name: str) -> Any:
            return getattr(self.sock, name)

        def accept(self) -> Any:
            if self.failures:
                self.failures -= 1
                self.at = asyncio.get_running_loop().time()
                raise OSError(code, os.strerror(code))
            return self.sock.accept()

    async def test(world: Served) -> None:
        failing: Any = Failing(world.listener)
        world.server._listener = failing
        client = world.client()
        assert isinstance(await client.ask(wire.ListTasks()), wire.Tasks)
        if code == errno.EMFILE:
            assert asyncio.get_running_loop().time() - failing.at >= 0.9 * REST_S
        world.server._listener = world.listener

    serving(short_path, test)


def test_a_long_answer_is_made_in_pieces_and_others_come_between(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = asyncio.Event()

    def many(*_: object) -> Iterator[TaskView]:
        for _ in range(1000):
            if heard.is_set():
                return
            time.sleep(PIECE_S)
            yield seen_one(managed())

    monkeypatch.setattr(handlers, "views", many)

    async def test(world: Served) -> None:
        one, other = world.client(), world.client()
        one.send(wire.ListTasks())
        await until(lambda: world.server.busy)
        assert isinstance(await other.ask(wire.GetStatus()), wire.DaemonStatus)
        heard.set()
        answer = await one.answer()
        assert isinstance(answer, wire.Tasks)
        assert len(answer.tasks) < 1000

    serving(short_path, test)


def test_who_reads_no_answers_is_hung_up_on(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: Served) -> None:
        client = world.client()
        await client.ask(wire.ListTasks())
        (mine,) = world.server._connections
        length = len(wire.encode(wire.Tasks([], [], __version__)))
        monkeypatch.setattr(connection, "MOST_UNREAD", length)
        for _ in range(3):  # what was read counts no more
            assert isinstance(await client.ask(wire.ListTasks()), wire.Tasks)
        mine._turns.unread += 1
        assert await client.ask(wire.ListTasks()) is None

    serving(short_path, test)


def test_the_daemons_own_user_may_stop_it_and_switch_its_policy(short_path: Path) -> None:
    async def test(world: Served) -> None:
        client = world.client()
        world.manager.gpus.use = lambda spec: used.append((spec.name, dict(spec.options)))  # type: ignore[method-assign]
        used: list[tuple[str, dict[str, str]]] = []
        world.server.status = lambda uid: wire.Tasks([])  # type: ignore[method-assign,assignment]
        await client.ask(wire.UsePolicy("fair", {}))
        assert used == [("fair", {})]
        await client.ask(wire.Stop())
        assert world.stop.is_set()

    serving(short_path, test)


# -- launchers -------------------------------------------------------------------------------------


def launched(short_path: Path, test: Callable[[Served, Client, Any, int], Awaitable[None]]) -> None:
    """With a `runlist run` process, and what the daemon borrows by."""

    async def whole(world: Served) -> None:
        with child() as pid:
            client = world.client()
            assert await client.ask(wire.Launch(pid)) == wire.Tasks([], [], __version__)
            _, launcher = world.processes.roots[pid].borrowers
            await test(world, client, launcher, pid)
            world.manager.release(0)

    serving(short_path, whole)


def test_a_launcher_lends_what_it_is_asked_for(short_path: Path) -> None:
    async def test(world: Served, client: Client, launcher: Any, pid: int) -> None:
        assert launcher.way == "launcher"
        for number in (3, 4):
            borrowing = asyncio.create_task(asyncio.to_thread(launcher.borrow, pid, -1, number))
            assert await client.answer() == wire.BorrowRequest(pid, number)
            client.send(wire.Borrowed(), fds=(client.sock.fileno(),))
            fd = await borrowing
            assert os.fstat(fd).st_ino == os.fstat(client.sock.fileno()).st_ino
            os.close(fd)

    launched(short_path, test)


@pytest.mark.parametrize(("told", "code"), [(errno.EPERM, errno.EPERM), (0, errno.EBADF)])
def test_a_launcher_that_cannot_lend_says_why(short_path: Path, told: int, code: int) -> None:
    async def test(world: Served, client: Client, launcher: Any, pid: int) -> None:
        borrowing = asyncio.create_task(asyncio.to_thread(launcher.borrow, pid, -1, 3))
        await client.answer()
        client.send(wire.Borrowed(told))
        with pytest.raises(OSError, match=os.strerror(code)) as caught:
            await borrowing
        assert caught.value.errno == code

    launched(short_path, test)


def test_a_launcher_that_hangs_up_lends_nothing_more(short_path: Path) -> None:
    async def test(world: Served, client: Client, launcher: Any, pid: int) -> None:
        borrowing = asyncio.create_task(asyncio.to_thread(launcher.borrow, pid, -1, 3))
        await client.answer()
        gone: list[int] = []

        async def launcher_gone(pid: int, of: object) -> None:
            assert of is launcher
            gone.append(pid)

        world.manager.launches.hung_up = launcher_gone  # type: ignore[method-assign]
        client.close()
        with pytest.raises(ConnectionResetError):
            await borrowing
        await until(lambda: gone == [pid])

    launched(short_path, test)


def test_what_is_lent_too_late_is_closed(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_BORROW_PATIENCE_S", 0.05)

    async def test(world: Served, client: Client, launcher: Any, pid: int) -> None:
        borrowing = asyncio.create_task(asyncio.to_thread(launcher.borrow, pid, -1, 3))
        await client.answer()
        with pytest.raises(TimeoutError):
            await borrowing
        client.send(wire.Borrowed(), fds=(0,))
        assert isinstance(await client.ask(wire.ListTasks()), wire.Tasks)

    launched(short_path, test)


def test_only_launchers_leave_something_behind(short_path: Path) -> None:
    async def test(world: Served) -> None:
        gone: list[int] = []

        async def launcher_gone(pid: int, of: object) -> None:
            gone.append(pid)

        world.manager.launches.hung_up = launcher_gone  # type: ignore[method-assign]
        client = world.client()
        await client.ask(wire.ListTasks())
        client.close()
        await until(lambda: not world.server.busy)
        assert gone == []

    serving(short_path, test)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("rests", [False, True])
def test_at_the_end_nobody_is_accepted_after_a_rest_either_and_a_socket_that_others_have_stays(
    shared: bool, rests: bool
) -> None:
    did: list[Any] = []

    def part(name: str, *calls: str) -> Any:
        return SimpleNamespace(**{call: lambda *which, call=call: did.append((name, call)) for call in calls})

    world: Any = SimpleNamespace(
        _closed=False, _shared=shared, _pause=part("rest", "cancel") if rests else None,
        _loop=part("loop", "remove_reader"), _listener=part("socket", "shutdown", "detach"),
        _connections=[part("connection", "close")],
    )  # fmt: skip
    module.Server.close(world)
    assert did == [
        *([("rest", "cancel")] if rests else []),
        ("loop", "remove_reader"),
        *([] if shared else [("socket", "shutdown")]),
        ("socket", "detach"),
        ("connection", "close"),
    ]
    did.clear()
    module.Server.close(world)  # again: who came meanwhile
    assert did == [("connection", "close")]
