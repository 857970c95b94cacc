"""The daemon's socket: who may connect, requests in, answers out."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from weakref import WeakValueDictionary

import msgspec
import structlog

from runlist import __version__, wire
from runlist.daemon.memory.census import KEPT_S
from runlist.daemon.relay.channel import peer_of
from runlist.daemon.relay.relays import NO_ROOM, Relays
from runlist.daemon.requests.manager import Manager
from runlist.daemon.requests.together import pids_together, together_notes
from runlist.daemon.requests.view import gpu_views, views
from runlist.daemon.tasks.managed import ManagedTask
from runlist.errors import ExitCode, NoPermissionError, RunlistError
from runlist.frames import MAX_REQUEST_BODY, Inbox
from runlist.policies import PolicySpec
from runlist.proc.exhaustion import passes

_log = structlog.get_logger()
_BORROW_PATIENCE_S = 5.0
_SEND_PATIENCE_S = 30.0
_MAX_WAITING_REQUESTS = 64
_MAX_WAITING_OF_USER = 256
_ACCEPTED_AT_ONCE = 16
_FLOOD_PAUSE_S = 0.002  # after so many: a flood gets a bounded part of the daemon's time
_REST_S = 0.1  # without descriptors or memory
_RESERVE = 64  # descriptors that connections may not take: tenants, the keeper and relays need some


class Server:
    """Accepts connections on a listening socket and serves them, those of strangers by way of `relays`. A client that
    asks the daemon to end sets `stop`.
    """

    def __init__(
        self,
        listener: socket.socket,
        manager: Manager,
        relays: Relays,
        device: str,
        private: bool,
        stop: asyncio.Event,
    ) -> None:
        self._device = device
        self._listener = listener
        self._manager = manager
        self._relays = relays
        self._private = private
        self._peers: set[_Peer] = set()
        self._turns: WeakValueDictionary[int, _Turns] = WeakValueDictionary()  # of strangers
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._closed = False
        self.stop = stop
        listener.setblocking(False)
        self._loop.add_reader(listener, self._accept)

    @property
    def busy(self) -> bool:
        """Whether anybody is connected or anything is managed."""
        return bool(self._peers or self._manager.processes.roots)

    def close(self) -> None:
        """Stop accepting, and hang up. May be called again."""
        if not self._closed:
            self._closed = True
            if self._pause is not None:
                self._pause.cancel()
            self._loop.remove_reader(self._listener)
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.detach()  # its queue is closed by the end of this process, which lingers for nothing
        for peer in list(self._peers):
            peer.close()

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            if self._relays.full:
                self._rest(_REST_S, "too many wait to be hung up on")
                return
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if passes(error):
                    self._rest(_REST_S, str(error))
                    return
                continue  # of that one connection
            self._welcome(sock)
            if self._pause is not None:
                return
        self._rest(_FLOOD_PAUSE_S)

    def _welcome(self, sock: socket.socket) -> None:
        uid = peer_of(sock)
        scarce = sock.fileno() >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _RESERVE
        if scarce:
            self._rest(_REST_S, "only the reserve is left")
        if not self._relays.is_stranger(uid):
            if scarce:
                sock.close()
            else:
                self._peers.add(_Peer(sock, uid, self._manager, self))
        elif scarce:
            self._relays.refuse(uid, sock, NO_ROOM)
        elif (served := self._relays.connect(uid, sock)) is not None:
            ours, on_end = served
            turns = self._turns.setdefault(uid, _Turns())
            self._peers.add(_Peer(ours, uid, self._manager, self, turns, on_end))

    def _rest(self, seconds: float, reason: str = "") -> None:
        """Accept nobody for a while: those that are there go on."""
        if self._pause is None:
            if reason:
                _log.warning("no connections are accepted for a moment", reason=reason)
            self._loop.remove_reader(self._listener)
            self._pause = self._loop.call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        self._pause = None
        if not self._closed:
            self._loop.add_reader(self._listener, self._accept)

    def forget(self, peer: _Peer) -> None:
        """A peer hung up."""
        self._peers.discard(peer)

    def status(self, uid: int) -> wire.DaemonStatus:
        """This daemon's status, for a user."""
        manager = self._manager
        waiting, others = manager.waiting(uid)
        return wire.DaemonStatus(
            pid=os.getpid(),
            version=__version__,
            driver=self._device,
            policy=manager.gpus.spec.name,
            policy_options=dict(manager.gpus.spec.options),
            private=self._private,
            keeper_pid=manager.keeper.pid,
            tasks=len(manager.tasks(0)),
            rules=str(manager.placement.path or ""),
            waiting=waiting,
            others_waiting=others,
            troubles=[trouble for scheduler in manager.gpus.all() for trouble in scheduler.troubles()],
            gpus=gpu_views(manager.gpus, manager.census, manager.processes.roots.values(), self._device),
        )


class _Turns:
    """The requests of one stranger, on all their connections."""

    def __init__(self) -> None:
        self.waiting = 0
        self.turn = asyncio.Lock()


class _Peer:
    """One connection of user `uid`. Requests of a connection are served one after the other; those of a stranger's
    connections begin one after the other, too, so that others come between. `on_end` is called at the end.
    """

    def __init__(
        self,
        sock: socket.socket,
        uid: int,
        manager: Manager,
        server: Server,
        turns: _Turns | None = None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._sock = sock
        self._manager = manager
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._inbox = Inbox(MAX_REQUEST_BODY)
        self._decoder = msgspec.json.Decoder(wire.Request)
        self._queue: asyncio.Queue[wire.Message | None] = asyncio.Queue()
        self._borrowing: deque[asyncio.Future[int]] = deque()  # requests to lend that were not answered yet
        self._launched: int | None = None
        self._regions: deque[int] = deque()  # of launches that were not served yet
        self._uid = uid
        self._turns = turns
        self._on_end = on_end
        sock.setblocking(False)
        self._loop.add_reader(sock, self._readable)
        self._serving = self._loop.create_task(self._serve())

    def close(self) -> None:
        """Hang up."""
        self._loop.remove_reader(self._sock)
        self._queue.put_nowait(None)
        for borrowing in self._borrowing:
            if not borrowing.done():
                borrowing.set_exception(ConnectionResetError(errno.ECONNRESET, "the launcher hung up"))
        self._borrowing.clear()

    def _readable(self) -> None:
        try:
            alive = self._inbox.read(self._sock)
            for body in self._inbox.frames():
                message = self._decoder.decode(body)
                if isinstance(message, wire.Borrowed):
                    self._take_lent(message)
                    continue
                if isinstance(message, wire.Launch) and message.region:
                    self._take_region()
                self._enqueue(message)
            if len(self._inbox.fds) > len(self._borrowing):
                raise ValueError("descriptors that nobody asked for")
        except BlockingIOError:
            return
        except (OSError, ValueError, RecursionError, MemoryError) as error:  # msgspec's errors are ValueErrors
            _log.warning("a client broke the protocol", user=self._uid, reason=str(error))
            alive = False
        if not alive:
            self.close()

    def _enqueue(self, message: wire.Message) -> None:
        if self._queue.qsize() >= _MAX_WAITING_REQUESTS:
            raise ValueError("too many requests at once")
        if self._turns is not None:
            if self._turns.waiting >= _MAX_WAITING_OF_USER:
                raise ValueError("too many requests of one user at once")
            self._turns.waiting += 1
        self._queue.put_nowait(message)

    def _take_region(self) -> None:
        if not self._inbox.fds:
            raise ValueError("a launch without the region that it names")
        self._regions.append(self._inbox.fds.popleft())

    def _take_lent(self, message: wire.Borrowed) -> None:
        if not self._borrowing:
            raise ValueError("a descriptor that nobody asked for")
        borrowing = self._borrowing.popleft()
        fd = self._inbox.fds.popleft() if self._inbox.fds and not message.error else None
        if borrowing.done():  # it took too long
            if fd is not None:
                os.close(fd)
        elif fd is None:
            code = message.error or errno.EBADF
            borrowing.set_exception(OSError(code, os.strerror(code)))
        else:
            borrowing.set_result(fd)

    async def _serve(self) -> None:
        while (message := await self._next()) is not None:
            answer = await self._answer(message)
            try:
                async with asyncio.timeout(_SEND_PATIENCE_S):
                    await self._loop.sock_sendall(self._sock, wire.encode(answer))
            except (OSError, TimeoutError):
                break
        if self._launched is not None:
            await self._manager.launcher_gone(self._launched)
        self._loop.remove_reader(self._sock)
        self._manager.descriptors.discard([*self._regions, *self._inbox.fds])
        self._inbox.fds.clear()
        self._sock.close()
        if self._turns is not None:
            self._turns.waiting -= sum(left is not None for left in self._left())
        self._server.forget(self)
        self._on_end()

    def _left(self) -> Iterator[wire.Message | None]:
        while not self._queue.empty():
            yield self._queue.get_nowait()

    async def _next(self) -> wire.Message | None:
        """The next request. Of a stranger's one begins in each round of the loop, whatever their number."""
        message = await self._queue.get()
        if message is not None and self._turns is not None:
            self._turns.waiting -= 1
            async with self._turns.turn:
                await asyncio.sleep(0)
        return message

    async def _answer(self, message: wire.Message) -> wire.Message:
        try:
            return await _HANDLERS[type(message)](self, message)
        except RunlistError as error:
            return _failure(str(error), error.exit_code)
        except OSError as error:
            return _failure(f"the driver could not be reached: {error.strerror or error}", ExitCode.FAILED)
        except Exception as error:
            _log.exception("a request failed in the daemon")
            return _failure(f"the daemon failed at this request ({error!r}): see its log", ExitCode.FAILED)

    def _tasks(self, tasks: list[ManagedTask], notes: list[str] | None = None) -> wire.Tasks:
        return wire.Tasks(views(tasks, self._manager.gpus, self._manager.census), notes or [], __version__)

    async def _together(self, tasks: list[ManagedTask], kept_s: float = 0.0) -> list[str]:
        manager = self._manager
        await manager.census.refresh(kept_s)
        others = [pids_together(task, manager.gpus.scheduler(task.task.key.gpu), manager.census) for task in tasks]
        return together_notes(tasks, others)

    # -- one method per request --------------------------------------------------------------------

    async def _attach(self, request: wire.Attach) -> wire.Message:
        outcome = await self._manager.attach(request.pid, dict(request.settings), request.wait, self._uid)
        return self._tasks(outcome.tasks, [*outcome.notes, *await self._together(outcome.tasks)])

    async def _launch(self, request: wire.Launch) -> wire.Message:
        region = self._regions.popleft() if request.region else None
        launcher = _Launcher(self, self._loop)
        notes = await self._manager.launch(request.pid, dict(request.settings), launcher, region, self._uid)
        self._launched = request.pid
        return self._tasks([], notes)

    async def _detach(self, request: wire.Detach) -> wire.Message:
        return self._tasks([], self._manager.detach(request.pid, self._uid))

    async def _release(self, request: wire.Release) -> wire.Message:
        del request
        return self._tasks([], self._manager.release(self._uid))

    async def _list(self, request: wire.ListTasks) -> wire.Message:
        del request
        return self._tasks(self._manager.visible(self._uid))

    async def _change(self, request: wire.Change) -> wire.Message:
        outcome = self._manager.change(request.pid, request.settings, self._uid)
        return self._tasks(outcome.tasks, outcome.notes)

    async def _suspend(self, request: wire.Suspend | wire.Resume) -> wire.Message:
        tasks = self._manager.suspend(request.pid, isinstance(request, wire.Suspend), self._uid)
        return self._tasks(tasks, await self._together(tasks, KEPT_S))

    async def _use_policy(self, request: wire.UsePolicy) -> wire.Message:
        self._only_owner("switch the policy")
        self._manager.gpus.use(PolicySpec(request.name, request.options))
        return self._server.status(self._uid)

    async def _status(self, request: wire.GetStatus) -> wire.Message:
        del request
        return self._server.status(self._uid)

    async def _stop(self, request: wire.Stop) -> wire.Message:
        del request
        self._only_owner("stop the daemon")
        self._server.stop.set()
        return self._server.status(self._uid)

    def _only_owner(self, what: str) -> None:
        """A policy file is code that runs in the daemon, with the daemon's rights."""
        if self._uid not in (0, os.geteuid()):
            raise NoPermissionError(f"only root and the daemon's own user may {what}")

    async def borrow(self, pid: int, fd: int) -> int:
        """Have the launcher at the other end copy a descriptor out of one of its descendants."""
        borrowing: asyncio.Future[int] = self._loop.create_future()
        self._borrowing.append(borrowing)
        try:
            async with asyncio.timeout(_BORROW_PATIENCE_S):
                await self._loop.sock_sendall(self._sock, wire.encode(wire.BorrowRequest(pid, fd)))
        except TimeoutError:  # it reads nothing, and has half of the request
            self.close()
            raise
        return await asyncio.wait_for(borrowing, _BORROW_PATIENCE_S)


def _failure(message: str, code: ExitCode) -> wire.Failure:
    return wire.Failure(message, code, __version__)


class _Launcher:
    """A `runlist run` process as borrower: an ancestor has the right to borrow where others do not."""

    way = "launcher"

    def __init__(self, peer: _Peer, loop: asyncio.AbstractEventLoop) -> None:
        self._peer = peer
        self._loop = loop

    def borrow(self, pid: int, pidfd: int, fd: int) -> int:
        """Called in the discovery thread."""
        del pidfd
        return asyncio.run_coroutine_threadsafe(self._peer.borrow(pid, fd), self._loop).result()


_HANDLERS: dict[type[wire.Message], Callable[[_Peer, Any], Awaitable[wire.Message]]] = {
    wire.Attach: _Peer._attach,
    wire.Launch: _Peer._launch,
    wire.Detach: _Peer._detach,
    wire.Release: _Peer._release,
    wire.ListTasks: _Peer._list,
    wire.Change: _Peer._change,
    wire.Suspend: _Peer._suspend,
    wire.Resume: _Peer._suspend,
    wire.UsePolicy: _Peer._use_policy,
    wire.GetStatus: _Peer._status,
    wire.Stop: _Peer._stop,
}
