"""Looking at descriptors that other processes sent, in threads of their own.

Such a file may be on a file system that its sender serves (FUSE), and then looking at it, and even closing it, takes as
long as the sender likes. So the event loop never touches one before such a thread has found it harmless, and what
strangers send comes by way of a relay, which passes on only what can do no harm.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec

from runlist.daemon.relay.vet import refusal
from runlist.planes.interface import Handle, Plane
from runlist.planes.process.region import Region, RegionError, ready

MAX_WAITING = 64
"""This many may wait for a look; then no descriptors are received."""

_Result = TypeVar("_Result")


class Sent(msgspec.Struct, frozen=True):
    """What a process sent, checked: a control file of the driver, and a region. `trouble` says why a region is
    refused.
    """

    file: Handle | None = None
    region: Region | None = None
    trouble: str = ""

    def close(self) -> None:
        """Close both."""
        for one in (self.file, self.region):
            if one is not None:
                one.close()


_Work: TypeAlias = "queue.SimpleQueue[Callable[[], None]]"


class Descriptors:
    """Two threads: one hands descriptors back as a control file or a region, the other closes."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._loop = asyncio.get_running_loop()
        self._waiting = 0
        self._looks = _thread()
        self._closes = _thread()
        ready()

    @property
    def room(self) -> bool:
        """Whether more may come."""
        return self._waiting < MAX_WAITING

    def discard(self, fds: Sequence[int]) -> None:
        """Close unwanted descriptors."""
        if fds:
            self._start(self._closes, lambda: _close(fds))

    async def joined(self, fds: Sequence[int], owner: int) -> Sent:
        """The control file, and perhaps the region, that a process of user `owner` sent."""
        return await self._start(self._looks, lambda: self._look(fds, owner))

    async def region(self, fd: int, owner: int) -> Region:
        """A region of user `owner`. Raises RegionError."""
        return await self._start(self._looks, lambda: self._region(fd, owner))

    def _start(self, thread: _Work, work: Callable[[], _Result]) -> asyncio.Future[_Result]:
        self._waiting += 1
        future: asyncio.Future[_Result] = self._loop.create_future()

        def run() -> None:
            try:
                result = work()
            except Exception as error:
                self._tell(future, future.set_exception, error)
            else:
                self._tell(future, future.set_result, result)

        thread.put(run)
        return future

    def _tell(self, future: asyncio.Future[_Result], say: Callable[[Any], None], what: object) -> None:
        """Hand a result to the event loop, where the receiver may be gone."""

        def tell() -> None:
            self._waiting -= 1
            if not future.done():
                say(what)

        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(tell)

    def _look(self, fds: Sequence[int], owner: int) -> Sent:
        file, trouble = None, ""
        region: Region | None = None
        if fds:
            try:
                file = self._plane.adopt(fds[0])
            except OSError:  # it was not taken over
                _close(fds[:1])
        if len(fds) > 1:
            try:
                region = self._region(fds[1], owner)
            except RegionError as error:
                trouble = str(error)
        _close(fds[2:])
        return Sent(file, region, trouble)

    def _region(self, fd: int, owner: int) -> Region:
        """A region of user `owner`. Raises RegionError."""
        if reason := refusal(fd):
            os.close(fd)
            raise RegionError(reason)
        sent = Region.adopt(fd, owner)
        sent.reopen()
        return _SentRegion(sent.fileno(), self._closes.put)


class _SentRegion(Region):
    """A region that is closed in a thread, `later`, also when the loop has ended: the last close of a file that was
    removed takes as long as it is large.
    """

    def __init__(self, fd: int, later: Callable[[Callable[[], None]], None]) -> None:
        super().__init__(fd)
        self._later = later

    def close(self) -> None:
        self._later(self._let_go())


def _thread() -> _Work:
    """A thread that does what is put into its queue. One that hangs does not keep the daemon from ending."""
    work: _Work = queue.SimpleQueue()

    def serve() -> None:
        while True:
            work.get()()

    threading.Thread(target=serve, daemon=True).start()
    return work


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
