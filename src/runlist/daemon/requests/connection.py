"""One connection to the daemon: frames and descriptors in, answers out."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Iterator

import msgspec
import structlog

from runlist import wire
from runlist.daemon.relay.channel import Peer
from runlist.daemon.requests.handlers import Handlers
from runlist.daemon.requests.manager import Manager
from runlist.daemon.requests.turns import MOST_UNREAD, MOST_WAITING, Turns
from runlist.frames import MAX_REQUEST_BODY, Inbox

_log = structlog.get_logger()
_BORROW_PATIENCE_S = 5.0
_SEND_PATIENCE_S = 30.0
_MAX_WAITING_REQUESTS = 64


class Connection:
    """One connection of a `peer`. Requests of a connection are served one after the other; those of a stranger's
    connections begin, and go on, one after the other, too, so that others come between. `on_end` is called at the end.
    """

    def __init__(
        self,
        sock: socket.socket,
        peer: Peer,
        manager: Manager,
        status: Callable[[int], wire.DaemonStatus],
        stop: asyncio.Event,
        turns: Turns,
        on_end: Callable[[Connection], None],
    ) -> None:
        self._sock = sock
        self._manager = manager
        self._loop = asyncio.get_running_loop()
        self._launcher = _Launcher(self, self._loop)
        self._handlers = Handlers(peer, manager, self._launcher, self.tell, status, stop, turns)
        self._inbox = Inbox(MAX_REQUEST_BODY)
        self._decoder = msgspec.json.Decoder(wire.Request)
        self._queue: asyncio.Queue[wire.Message | None] = asyncio.Queue()
        self._borrowing: deque[asyncio.Future[int]] = deque()  # requests to lend that were not answered yet
        self._telling: set[asyncio.Task[bool]] = set()
        self._uid = peer.uid
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
                if isinstance(message, wire.Launch | wire.Manage) and message.region:
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
        if self._turns.waiting >= MOST_WAITING:
            raise ValueError("too many requests of one user at once")
        self._turns.waiting += 1
        self._queue.put_nowait(message)

    def _take_region(self) -> None:
        if not self._inbox.fds:
            raise ValueError("a request without the region that it names")
        self._handlers.regions.append(self._inbox.fds.popleft())

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
            answer = await self._handlers.answer(message)
            if not await self._send(wire.encode(answer)):
                break
        if self._handlers.launched is not None:
            await self._manager.launches.hung_up(self._handlers.launched, self._launcher)
        self._loop.remove_reader(self._sock)
        self._manager.descriptors.discard([*self._handlers.regions, *self._inbox.fds])
        self._inbox.fds.clear()
        self._sock.close()
        self._turns.waiting -= sum(left is not None for left in self._left())
        self._on_end(self)

    async def _send(self, answer: bytes) -> bool:
        """Whether the other end took it."""
        if self._turns.unread + len(answer) > MOST_UNREAD:
            _log.warning("a client is hung up on: its user reads no answers", user=self._uid)
            return False
        self._turns.unread += len(answer)
        try:
            async with asyncio.timeout(_SEND_PATIENCE_S):
                await self._loop.sock_sendall(self._sock, answer)
        except (OSError, TimeoutError):
            return False
        finally:
            self._turns.unread -= len(answer)
        return True

    def _left(self) -> Iterator[wire.Message | None]:
        while not self._queue.empty():
            yield self._queue.get_nowait()

    async def _next(self) -> wire.Message | None:
        """The next request, in its turn."""
        message = await self._queue.get()
        if message is not None:
            self._turns.waiting -= 1
            await self._turns.next()
        return message

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

    def tell(self, text: str) -> None:
        """Have the launcher at the other end say a line to its user."""
        telling = self._loop.create_task(self._send(wire.encode(wire.Note(text))))
        self._telling.add(telling)
        telling.add_done_callback(self._telling.discard)


class _Launcher:
    """A `runlist run` process as borrower: an ancestor has the right to borrow where others do not."""

    way = "launcher"

    def __init__(self, peer: Connection, loop: asyncio.AbstractEventLoop) -> None:
        self._peer = peer
        self._loop = loop

    def borrow(self, pid: int, pidfd: int, fd: int) -> int:
        """Called in the discovery thread."""
        del pidfd
        return asyncio.run_coroutine_threadsafe(self._peer.borrow(pid, fd), self._loop).result()
