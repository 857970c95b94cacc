"""The page by which kernels are asked to stop: memory that processes of one user and the GPU see.

    0     MAGIC
    16    a byte for each who may stop: 1 from asking to letting go. The GPU reads these 16 bytes, and nothing else.
    64    a byte for each who runs kernels: 1 while some of its kernels may be on the GPU
    1024  for each of those 64 bytes: who it is, and how far it came (`Progress`)

A place among either belongs to whoever holds a lock of the file on its byte, so that it is free again when its process
dies, however it dies; what a dead one asked for is then taken back by those who wait for it. Nobody writes a byte that
is another's, so that none needs more than a plain store. The places of a process stay its own when it forks: in the
child its pages are as newly opened.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import stat
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Self

from runlist import byte_lock, trusted
from runlist.errors import NotSupportedError, RunlistError, UsageError

MAGIC = b"RLBLKS01"
SIZE = 4096
STOPS, RUNS, PROGRESS = 16, 64, 1024
PLACES = 16
"""Of each kind."""

_RECORD = struct.Struct("=6Q")
_RECORD_BYTES = 64
_NOTHING = bytes(PLACES)
_POLL_S = 0.0002
_LOST = -2
"""In place of a descriptor, after a fork where there is no file, or none to be had: every place counts as another's."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a process came. `epoch` counts its launches; `step` is the kernel of a sequence of `steps`, of which
    `next` of `total` logical blocks were taken. What changes while kernels run is known when they have stopped.
    """

    pid: int
    epoch: int
    step: int
    steps: int
    next: int
    total: int


class Page:
    """The page in a file, or with no path in memory of this process alone.

    The file is made where there is none. It and its folder must be this user's alone. Raises Untrusted where others
    could write them, OSError as the kernel does.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._descriptor = -1 if self.path is None else _opened(self.path)
        self._bytes = mmap.mmap(-1, SIZE) if self.path is None else _mapped(self._descriptor)
        self._held: set[int] = set()
        self._lock = threading.Lock()
        self._closed = False
        _pages.add(self)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._bytes))
        """Of the page, in this process."""

    def close(self) -> None:
        """Gives back the places; the memory stays as long as somebody has its address."""
        with self._lock:
            for byte in self._held:
                self._bytes[byte] = 0
                self._release(byte)
            self._held.clear()
            self._closed = True
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def asked(self) -> bool:
        """Whether somebody asks for a stop. What a dead one asked for is taken back."""
        return self._bytes[STOPS : STOPS + PLACES] != _NOTHING and self._any_alive(STOPS)

    def running(self) -> bool:
        """Whether some kernels may be on the GPU; those of the dead are not."""
        return self._any_alive(RUNS)

    def until_free(self, timeout_s: float | None = None) -> bool:
        """Waits until nobody asks for a stop any more; whether that was so within the time."""
        return _until(lambda: not self.asked(), timeout_s)

    def until_off(self, timeout_s: float | None = None) -> bool:
        """Waits until no kernels are on the GPU; whether that was so within the time."""
        return _until(lambda: not self.running(), timeout_s)

    def claim(self, kind: int) -> int:
        """A place of its own among `STOPS` or `RUNS`: the offset of its byte, which is 0 now. Raises RunlistError where
        all are taken.
        """
        with self._lock:
            for byte in range(kind, kind + PLACES):
                if byte not in self._held and self._take(byte):
                    self._held.add(byte)
                    self._bytes[byte] = 0
                    return byte
        raise RunlistError(f"{PLACES} use {self.path or 'this page'} already: end one of them")

    def give_back(self, byte: int) -> None:
        """Ends a claim."""
        with self._lock:
            if byte in self._held:
                self._bytes[byte] = 0
                self._held.discard(byte)
                self._release(byte)

    def holds(self, byte: int) -> bool:
        """Whether a place is this process' own."""
        return byte in self._held

    def write(self, byte: int, value: bool) -> None:
        """What the owner of a place says."""
        if byte in self._held:  # not those that came by fork
            self._bytes[byte] = int(value)

    def tell(self, byte: int, progress: Progress) -> None:
        """How far the owner of a place among `RUNS` came."""
        place = PROGRESS + (byte - RUNS) * _RECORD_BYTES
        _RECORD.pack_into(self._bytes, place, *astuple(progress))

    def told(self) -> list[Progress]:
        """Of all who run kernels and are alive."""
        return [
            Progress(*_RECORD.unpack_from(self._bytes, PROGRESS + place * _RECORD_BYTES))
            for place in range(PLACES)
            if self._taken(RUNS + place)
        ]

    def opened_anew(self) -> None:
        """In the child of a fork: locks are of the open file, which it must not keep, and has one of its own now."""
        self._lock = threading.Lock()  # another thread of the parent may have had it
        self._held = set()
        inherited, self._descriptor = self._descriptor, _LOST
        if inherited >= 0:
            try:
                self._descriptor = _another(inherited)
            finally:
                os.close(inherited)

    def _any_alive(self, kind: int) -> bool:
        """Whether a byte is set by somebody who lives; those of the dead are cleared. Whoever clears has the place
        meanwhile: nobody else may claim it and set its byte between the look and the clearing.
        """
        found = False
        for byte in range(kind, kind + PLACES):
            if not self._bytes[byte]:
                continue
            with self._lock:
                if byte in self._held or not self._take(byte):
                    found = True
                    continue
                self._bytes[byte] = 0
                self._release(byte)
        return found

    def _taken(self, byte: int) -> bool:
        with self._lock:
            if byte in self._held:
                return True
            if not self._take(byte):
                return True
            self._release(byte)
            return False

    def _take(self, byte: int) -> bool:
        if self._closed:  # without its locks everybody would seem dead
            raise RunlistError(f"{self.path or 'this page'} was closed")
        if self._descriptor < 0:
            return self._descriptor != _LOST
        return byte_lock.lock(self._descriptor, byte)

    def _release(self, byte: int) -> None:
        if self._descriptor >= 0:
            byte_lock.lock(self._descriptor, byte, byte_lock.NONE)


_pages: weakref.WeakSet[Page] = weakref.WeakSet()


def _after_fork() -> None:
    for page in list(_pages):
        with contextlib.suppress(OSError):
            page.opened_anew()


os.register_at_fork(after_in_child=_after_fork)


class Stopper:
    """Stops the kernels of all who share a page: those of other processes, and of this one.

    A context manager; leaving it, or dying, lets go. As many may stop at once as a page has places: kernels go on when
    the last has let go.
    """

    def __init__(self, page: str | Path | Page) -> None:
        self._own = not isinstance(page, Page)
        self._page = page if isinstance(page, Page) else Page(page)
        self._byte = self._page.claim(STOPS)

    def stop(self) -> None:
        """Ask; returns at once. To ask again changes nothing."""
        if not self._page.holds(self._byte):
            raise RunlistError("this stopper was closed, or came by fork, and stops nobody: make another")
        self._page.write(self._byte, True)

    def until_off(self, timeout_s: float | None = None) -> bool:
        """Waits until the kernels have left the GPU, or their processes ended; whether that was so within the time.
        A process says so when it has seen its kernels end, which takes its processor some microseconds.
        """
        return self._page.until_off(timeout_s)

    def resume(self) -> None:
        """Let go."""
        self._page.write(self._byte, False)

    def close(self) -> None:
        """Let go for good."""
        self._page.give_back(self._byte)
        if self._own:
            self._page.close()

    @contextlib.contextmanager
    def stopped(self, timeout_s: float | None = None) -> Iterator[bool]:
        """Stops for the length of a `with` statement; `timeout_s` is the most to wait until the GPU is free, which it
        tells.
        """
        self.stop()
        try:
            yield self.until_off(timeout_s)
        finally:
            self.resume()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _until(holds: Callable[[], bool], timeout_s: float | None) -> bool:
    ends = None if timeout_s is None else time.monotonic() + timeout_s
    while not holds():
        if ends is not None and time.monotonic() >= ends:
            return False
        time.sleep(_POLL_S)
    return True


def _opened(path: Path) -> int:
    """A descriptor of the file, for reading and writing."""
    if path.name in ("", "..", "."):
        raise UsageError(f"{path} is no file")
    descriptor = trusted.make_file(path.absolute(), flags=os.O_NONBLOCK)
    try:
        _check(descriptor, path)
        # Those that make it at once write the same. It never shrinks, so that nobody's memory goes away.
        if os.fstat(descriptor).st_size == 0:
            try:
                os.posix_fallocate(descriptor, 0, SIZE)
            except OSError as error:
                raise NotSupportedError(f"{path}: no room for {SIZE} bytes: {error.strerror}") from error
        content = os.pread(descriptor, SIZE + 1, 0)
        if len(content) != SIZE or (content[: len(MAGIC)] != MAGIC and any(content)):
            raise UsageError(f"{path} is another kind of file: name one that does not exist yet")
        os.pwrite(descriptor, MAGIC, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _another(descriptor: int) -> int:
    """Another open file of the same one, whose locks are others."""
    return os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)


def _mapped(descriptor: int) -> mmap.mmap:
    """Its memory. By another open file: the mapping stays in children of this process, and would keep the locks."""
    other = _another(descriptor)
    try:
        return mmap.mmap(other, SIZE)
    finally:
        os.close(other)


def _check(descriptor: int, path: Path) -> None:
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise UsageError(f"{path} is no file")
    if found.st_uid != os.geteuid():
        raise trusted.Untrusted(f"{path} belongs to user {found.st_uid}: it must belong to you (chown)")
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise trusted.Untrusted(f"others can open {path}: take that right away (chmod 600 {path})")
