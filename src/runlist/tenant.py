"""Messages of a program to the daemon that manages it: segments, latencies of its requests, and hints.

All of it is optional, costs microseconds and never fails because of the daemon: without one, nothing happens.

    with runlist.segment(priority=1) as segment:    # from here on this work comes before that of lower segments
        segment.in_force                            # whether the daemon says so
        runlist.report_latency(0.0021)              # a request took 2.1 ms
    runlist.hint(0.0005)                            # in half a millisecond the GPU will be wanted
    with runlist.request():                         # from here on to the answer: the GPU is taken before it is needed

Messages are datagrams of one fixed record, so this module imports nothing else of Runlist but the protocol. `runlist.h`
is the same for C.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from operator import index
from typing import TYPE_CHECKING, SupportsIndex

from runlist.protocol import environment_autogen as names
from runlist.protocol import tenant_autogen
from runlist.protocol.tenant_autogen import MAGIC, VERSION, Effect, Kind

if TYPE_CHECKING:  # it takes milliseconds, and most programs never need it
    import ctypes

RECORD = struct.Struct(tenant_autogen.RECORD)
IN_FORCE_S = tenant_autogen.IN_FORCE_MS / 1000
ROOM_S = tenant_autogen.ROOM_MS / 1000
LOOK_AGAIN_S = tenant_autogen.LOOK_AGAIN_MS / 1000

_SEQUENCES = 1 << 32
_ANSWERABLE = 64  # messages: an answer to none of the last ones is none
_MAX_SECONDS = 1e9
_PRIORITIES = range(-(1 << 31), 1 << 31)


class Segment:
    """A segment that was begun, by this thread."""

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.thread = threading.get_ident()

    @property
    def in_force(self) -> bool:
        """Whether this process has this priority, or a higher one, and the daemon keeps the others off for it, by its
        newest answer.

        False without a daemon, where it does not manage this process (yet), for a batch task, after a more urgent
        segment of another, once segments have had the time that they may have, and with a daemon before 0.5, which does
        not say.
        """
        return _tenant.in_force(self)


@contextlib.contextmanager
def segment(priority: int) -> Iterator[Segment]:
    """Give a stretch of work a priority of 32 bits, higher is more urgent: `with runlist.segment(priority=1):`.

    In a segment within a segment the inner priority counts, then the outer one again. A segment belongs to its thread;
    the process has the highest priority of its threads. A child of fork starts outside of segments. Raises TypeError
    for what is no whole number, and ValueError for one of more than 32 bits.
    """
    if not isinstance(priority, SupportsIndex):
        raise TypeError(f"a segment's priority is a whole number, not {priority!r}")
    if index(priority) not in _PRIORITIES:
        raise ValueError(f"a segment's priority has 32 bits, not {priority}")
    mark = Segment(index(priority))
    try:
        _tenant.begin(mark)
        yield mark
    finally:
        _tenant.end(mark)


def report_latency(seconds: float) -> None:
    """Say how many seconds a request took. It counts for the target of `--p99`. Raises TypeError for what is no number,
    and ValueError for one below 0 or beyond 1e9.
    """
    _tenant.say(Kind.REPORT_LATENCY, _nanoseconds("a latency", seconds))


def hint(in_seconds: float) -> None:
    """Say that this process will want the GPU in so many seconds; 0 is now. Raises as `report_latency` does."""
    nanoseconds = _nanoseconds("the time of a hint", in_seconds)
    if (library := _preloaded()) is not None:
        library.rl_hint_ns(nanoseconds)
    else:
        _tenant.say(Kind.HINT, nanoseconds)


@contextlib.contextmanager
def request() -> Iterator[None]:
    """Around what is done for a request that will need the GPU, from when its data came in until its answer is there:
    the GPU is taken before it is needed.

    Requests may overlap, in one thread and in several; a request within a request is the same one. A child of fork
    starts outside of requests.
    """
    library = _preloaded()
    if library is None:
        _tenant.say(Kind.ANNOUNCE, 0)
        yield
        return
    pid = os.getpid()
    library.rl_request_begin()
    try:
        yield
    finally:
        if os.getpid() == pid:
            library.rl_request_end()


@functools.cache
def _preloaded() -> ctypes.CDLL | None:
    """librunlist.so, where it is in this process: it knows whether anybody wants to hear of a request, and loads the
    GPU's context.
    """
    import ctypes

    try:
        library = ctypes.CDLL(None)
        for name in ("rl_request_begin", "rl_request_end", "rl_hint_ns"):
            getattr(library, name)
    except (AttributeError, OSError):
        return None
    library.rl_hint_ns.argtypes = (ctypes.c_uint64,)
    return library


def _nanoseconds(what: str, seconds: float) -> int:
    try:
        if 0 <= seconds <= _MAX_SECONDS:
            return round(seconds * 1e9)
    except TypeError:
        raise TypeError(f"{what} is a number of seconds, not {seconds!r}") from None
    raise ValueError(f"{what} is 0 to {_MAX_SECONDS:.0e} seconds, not {seconds!r}")


class _Tenant:
    """This process' open segments, and what the daemon knows of them.

    The daemon is told the priority in force, each time that it changes: so the next message mends a lost one.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may report in the middle of a message
        self._open: list[Segment] = []
        self._link: _Link | None = None
        # Of the last message. A stranger in a network of its own may take our name there, and have the daemon answer to
        # it here: nobody is to know the number.
        self._sequence = int.from_bytes(os.urandom(4), "little")
        self._look_at = 0.0  # when to look for a daemon (monotonic clock)
        self._wait_from = 0.0  # when to wait for the daemon's answers again

    def begin(self, mark: Segment) -> None:
        with self._lock:
            self._open.append(mark)
            before = self._sequence
            told = self._tell(ROOM_S)
            link, sequence = self._link, self._sequence
        now = time.monotonic()
        asked = told and sequence != before and now >= self._wait_from
        if asked and link is not None and not link.wait(sequence, now + IN_FORCE_S):
            self._wait_from = time.monotonic() + LOOK_AGAIN_S

    def end(self, mark: Segment) -> None:
        with self._lock:
            if mark in self._open:  # not in a child of fork
                self._open.remove(mark)
                self._tell(ROOM_S)

    def in_force(self, mark: Segment) -> bool:
        with self._lock:
            link = self._link
            if mark not in self._open or link is None or not link.is_ours():
                return False
            link.read()
            return link.knows is not None and link.knows >= mark.priority and link.effect == Effect.IN_FORCE

    def say(self, kind: Kind, nanoseconds: int) -> None:
        with self._lock:
            if self._tell(0):  # first what was missed
                self._send(kind, 0, nanoseconds, 0)

    def _tell(self, patience_s: float) -> bool:
        """Tell the daemon the priority in force; returns whether it knows it."""
        link = self._linked()
        if link is None:
            return False
        priority = self._priority()
        if priority == link.knows:
            return True
        link.read()  # old answers leave no room for the one to this
        link.expect((self._sequence + 1) % _SEQUENCES)
        kind = Kind.SEGMENT_END if priority is None else Kind.SEGMENT_BEGIN
        if not self._send(kind, priority or 0, 0, patience_s):
            return False
        link.knows = priority
        return True

    def _priority(self) -> int | None:
        """The highest of the threads' innermost priorities."""
        innermost = {mark.thread: mark.priority for mark in self._open}
        return max(innermost.values(), default=None)

    def _linked(self) -> _Link | None:
        if self._link is not None and not self._link.is_ours():
            self._link = None
        if self._link is None and time.monotonic() >= self._look_at:
            self._link = _find()
            if self._link is None:
                self._look_at = time.monotonic() + LOOK_AGAIN_S
        return self._link

    def _send(self, kind: Kind, priority: int, nanoseconds: int, patience_s: float) -> bool:
        assert self._link is not None
        self._sequence = (self._sequence + 1) % _SEQUENCES
        record = RECORD.pack(MAGIC, VERSION, kind, priority, self._sequence, nanoseconds, 0)
        try:
            return self._link.send(record, patience_s)
        except OSError:  # the daemon is gone
            self._link.close()
            self._link = None
            return False


class _Link:
    """A socket that is connected to a daemon, and that the kernel gave a name for answers.

    `knows` is the segment priority that the daemon was told, `effect` what it said of that.
    """

    def __init__(self, path: str) -> None:
        self.knows: int | None = None
        self.effect: int = Effect.UNTOLD
        self._expected = 0  # number of the newest message that changes the priority
        self._answered = 0  # number of the newest message that was answered
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            self._socket.bind(b"")  # "autobind"
            self._name = self._socket.getsockname()
            self._socket.connect(path)
        except BaseException:
            self._socket.close()
            raise

    def is_ours(self) -> bool:
        """Whether the descriptor is still our socket: a program may close descriptors that it does not know, and open
        others under their numbers.
        """
        with contextlib.suppress(OSError):
            if self._socket.getsockname() == self._name:
                return True
        self._socket.detach()
        return False

    def close(self) -> None:
        if self.is_ours():
            self._socket.close()

    __del__ = close

    def send(self, record: bytes, patience_s: float) -> bool:
        """Whether the record went out. Raises OSError when the daemon is gone."""
        try:
            self._socket.send(record)
        except BlockingIOError:
            if not patience_s or not self._poll(select.POLLOUT, patience_s):
                return False
            try:
                self._socket.send(record)
            except BlockingIOError:
                return False
        return True

    def wait(self, sequence: int, until: float) -> bool:
        """Wait until the daemon answers this message, or a later one; returns whether it did. Threads may read each
        other's answers, so each also looks now and then.
        """
        while (self._answered - sequence) % _SEQUENCES >= _SEQUENCES // 2:
            left = until - time.monotonic()
            if left <= 0:
                return False
            try:
                if self._poll(select.POLLIN, min(left, 0.001)) and self.is_ours():
                    self.read()
            except (OSError, ValueError):  # closed by another thread
                return False
        return True

    def read(self) -> None:
        """Take the answers that are here."""
        with contextlib.suppress(OSError):  # nothing more, or an error that the next message meets again
            while True:
                record = self._socket.recv(RECORD.size + 1)
                if len(record) == RECORD.size:
                    *_, sequence, _, effect = RECORD.unpack(record)
                    if sequence == self._expected:
                        self.effect = effect
                    is_ours = (self._expected - sequence) % _SEQUENCES < _ANSWERABLE
                    if is_ours and 0 < (sequence - self._answered) % _SEQUENCES < _SEQUENCES // 2:
                        self._answered = sequence

    def expect(self, sequence: int) -> None:
        """The next message changes the priority: what was said of the last one is over."""
        self._expected, self.effect = sequence, Effect.UNTOLD
        if (sequence - self._answered) % _SEQUENCES > _SEQUENCES // 4:  # numbers wrap: keep the two near each other
            self._answered = (sequence - 1) % _SEQUENCES

    def _poll(self, event: int, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._socket, event)
        return bool(poll.poll(max(1, round(seconds * 1e3))))


# -- where the daemon hears ------------------------------------------------------------------------


def candidates() -> list[str]:
    """Sockets where a daemon may hear this process, most likely first: the one that is named, and that of all users
    beside it; else those beside the sockets of `runlist.paths`.
    """
    environment = os.environ
    if named := environment.get(names.MESSAGES):
        beside = os.path.join(os.path.dirname(named), names.MESSAGES_SOCKET)
        return list(dict.fromkeys((named, beside)))
    if stream := environment.get(names.SOCKET):
        return [os.path.join(os.path.dirname(stream), names.MESSAGES_SOCKET)]
    device = environment.get(names.DEVICE) or names.DEFAULT_DEVICE
    if device == names.EMULATED:
        return [os.path.join(environment.get(names.EMULATED_GPU, ""), names.MESSAGES_SOCKET)]
    runtime = environment.get(names.RUNTIME_DIR)
    own = os.path.join(runtime, names.OWN_FOLDER) if runtime else _temporary()
    directories = [names.SYSTEM_FOLDER] if os.geteuid() == 0 else [own, names.SYSTEM_FOLDER]
    end = "" if device == names.DEFAULT_DEVICE else f"-{device}"
    return [os.path.join(directory + end, names.MESSAGES_SOCKET) for directory in directories]


def _temporary() -> str:
    """Where anybody may write: `_find` looks whose a socket is."""
    return os.path.join(names.TEMPORARY_FOLDER, f"{names.TEMPORARY_PREFIX}{os.geteuid()}")


def _find() -> _Link | None:
    """A link to the first daemon that hears. Of sockets that nobody named only root's and our own are taken."""
    named = os.environ.get(names.MESSAGES)
    for path in candidates():
        with contextlib.suppress(OSError, ValueError):  # ValueError: a path with a null character
            if path == named or os.stat(path).st_uid in (0, os.geteuid()):
                return _Link(path)
    return None


_tenant = _Tenant()


def _after_fork() -> None:
    """A child is another process: it has its own socket, and none of its parent's segments."""
    global _tenant
    _tenant = _Tenant()


os.register_at_fork(after_in_child=_after_fork)
