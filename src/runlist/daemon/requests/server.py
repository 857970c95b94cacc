"""The daemon's socket: who may connect, requests in, answers out."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import structlog

from runlist import __version__, wire
from runlist.daemon.requests.manager import Manager
from runlist.daemon.requests.view import gpu_views, views
from runlist.daemon.tasks.managed import ManagedTask
from runlist.errors import ExitCode, NoPermissionError, RunlistError
from runlist.policies import PolicySpec

_log = structlog.get_logger()
_BORROW_PATIENCE_S = 5.0
_MAX_WAITING_REQUESTS = 64


class Server:
    """Accepts connections on a listening socket and serves them. A client that asks the daemon to end sets `stop`."""

    def __init__(
        self, listener: socket.socket, manager: Manager, device: str, private: bool, stop: asyncio.Event
    ) -> None:
        self._device = device
        self._listener = listener
        self._manager = manager
        self._private = private
        self._peers: set[_Peer] = set()
        self.stop = stop
        listener.setblocking(False)
        asyncio.get_running_loop().add_reader(listener, self._accept)

    @property
    def busy(self) -> bool:
        """Whether anybody is connected or anything is managed."""
        return bool(self._peers or self._manager.processes.roots)

    def close(self) -> None:
        """Stop accepting, and hang up. May be called again."""
        if self._listener.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
        for peer in list(self._peers):
            peer.close()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as error:
            _log.warning("a connection could not be accepted", reason=error.strerror)
            return
        self._peers.add(_Peer(sock, self._manager, self))

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


class _Peer:
    """One connection. Requests of a connection are served one after the other."""

    def __init__(self, sock: socket.socket, manager: Manager, server: Server) -> None:
        self._sock = sock
        self._manager = manager
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._inbox = wire.Inbox()
        self._decoder = msgspec.json.Decoder(wire.Request)
        self._queue: asyncio.Queue[wire.Message | None] = asyncio.Queue()
        self._borrowing: deque[asyncio.Future[int]] = deque()  # requests to lend that were not answered yet
        self._launched: int | None = None
        self._regions: deque[int] = deque()  # of launches that were not served yet
        self._uid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
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
                if self._queue.qsize() >= _MAX_WAITING_REQUESTS:
                    raise ValueError("too many requests at once")
                self._queue.put_nowait(message)
            if len(self._inbox.fds) > len(self._borrowing):
                raise ValueError("descriptors that nobody asked for")
        except BlockingIOError:
            return
        except (OSError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            _log.warning("a client broke the protocol", user=self._uid, reason=str(error))
            alive = False
        if not alive:
            self.close()

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
        while (message := await self._queue.get()) is not None:
            answer = await self._answer(message)
            try:
                await self._loop.sock_sendall(self._sock, wire.encode(answer))
            except OSError:
                break
        if self._launched is not None:
            self._manager.launcher_gone(self._launched)
        self._loop.remove_reader(self._sock)
        self._manager.descriptors.discard(self._regions)
        self._inbox.close()
        self._sock.close()
        self._server.forget(self)

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

    # -- one method per request --------------------------------------------------------------------

    async def _attach(self, request: wire.Attach) -> wire.Message:
        outcome = await self._manager.attach(request.pid, dict(request.settings), request.wait, self._uid)
        return self._tasks(outcome.tasks, outcome.notes)

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
        return self._tasks(self._manager.suspend(request.pid, isinstance(request, wire.Suspend), self._uid))

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
        await self._loop.sock_sendall(self._sock, wire.encode(wire.BorrowRequest(pid, fd)))
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
