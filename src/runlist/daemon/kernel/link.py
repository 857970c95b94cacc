"""The daemon's side of the kernel plane: its loader is started, and started again, and its ring is read.

Without it all goes on by looking. A gap in what it tells, because the ring was full or the loader ended, is said to
whoever hears the events, who then looks.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import structlog

from runlist.daemon import helper
from runlist.daemon.kernel.made import Made, made_by
from runlist.daemon.kernel.policy import PolicyMap
from runlist.paths import daemon_socket
from runlist.planes.interface import Plane
from runlist.planes.kernel import events, inheriting, messages, rights
from runlist.planes.kernel.bpf import Map
from runlist.planes.kernel.events import Event
from runlist.planes.kernel.forgetting import NEEDED, take_out_ended
from runlist.planes.kernel.loading import Wanted, open_map
from runlist.planes.kernel.names import FOLDER, Names
from runlist.planes.kernel.ring import BrokenRing, Ring
from runlist.protocol import environment_autogen as names
from runlist.protocol.kernel_autogen import RING_BYTES, Counter

_log = structlog.get_logger()

LOADER = "runlist.planes.kernel.loader"
BUDGET = 10_000
"""Requests of a process that are captured in a second, of each sort; of an owner, twice as many."""
MOST_AT_ONCE = 64
"""Events at a time: others are answered in between."""
ANSWER_S = 20.0
"""So long the loader may take."""
RETRY_S, LONGEST_RETRY_S = 0.5, 60.0
LONG_LIFE_S = 10.0
_ENDS_WELL = b"."
SETTLE_MS = 1500
"""So long a program may set the slices of a group that it has just made: CUDA does."""
SWEEP_S, SWEEP_REST = 0.2, 20
"""So long processes that end are gathered before their entries go, or so many times as long as that took the last time:
who fills the maps, and has processes end, costs a bounded part of a core.
"""
_COUNTED = (Counter.SEEN, Counter.REFUSED)
"""Of which requests the kernel counts more of."""
_NUMBER, _LONG = struct.Struct("<I"), struct.Struct("<Q")


class KernelLink:
    """The loader and the ring. `hear` gets events in their order, `gap` is called when some are missing. `policy` is
    kept in the kernel, and `helpers` are the processes that it refuses nothing. `begin` gets what an earlier daemon was
    told, at first. Call it in the event loop's thread.
    """

    def __init__(
        self,
        plane: Plane,
        hear: Callable[[Sequence[Event]], None],
        gap: Callable[[], None],
        policy: PolicyMap,
        helpers: Callable[[], Sequence[int]],
        begin: Callable[[Sequence[Event]], None],
    ) -> None:
        self.state = "not started"
        self.lenient = ""
        """Why the kernel refuses nothing, while events come."""
        self.policy = policy
        self._helpers = helpers
        self._begin = begin
        self._inherited = False
        self._exempt: set[int] = set()
        self.maps: dict[str, Map] = {}
        self._plane = plane
        self._hear = hear
        self._gap = gap
        self._loop = asyncio.get_running_loop()
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None
        self._ring: Ring | None = None
        self._dropped = 0
        self._requests: list[int] = []  # seen and refused
        self._seen = 0
        self._asked: dict[int, int] = {}  # when each process did last
        self._said = ""
        self._started = 0.0
        self._rest_s = RETRY_S
        self._timer: asyncio.TimerHandle | None = None
        self._full = 0
        self._ended_unseen = False
        self._ended_pids: set[int] = set()
        self._sweep_took_s = 0.0
        self._sweeping: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """The loader's process id, 0 where none runs."""
        return 0 if self._process is None else self._process.pid

    @property
    def works(self) -> bool:
        """Whether events come."""
        return self._ring is not None

    @property
    def told(self) -> str:
        """Whether they do, and if not, why, in words."""
        return "on" if self.works else self.state

    def start(self) -> None:
        """Start the loader, where the plane has requests that the kernel sees."""
        self._timer = None
        capture = self._plane.capture()
        if capture is None:
            self.state = "the kernel sees no requests to this device"
            return
        if (switch := os.environ.get(names.KERNEL_PLANE, "off")) != "on":
            self.state = f"off: {names.KERNEL_PLANE}=on switches it on"
            if switch != "off":
                _log.warning(f"the kernel plane is off: {names.KERNEL_PLANE} is on or off", value=switch[:20])
            return
        if why := rights.hindered():  # as most private daemons are
            self.state = why
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        try:
            self._process = helper.start(LOADER, self._plane.name, ours, theirs)
        except (OSError, MemoryError) as error:
            self._say(f"no loader can be started: {error or 'no memory'}")
            self._rest()
            return
        given = self._names()
        if (left := given.left()) is not None:
            inheriting.take_out_reused(left)
        if not self._inherited:
            self._inherit(left)
        self._exempt = set(self._helpers())
        wanted = Wanted(
            capture, os.getpid(), BUDGET, given if FOLDER.parent.is_dir() else None, SETTLE_MS, tuple(self._exempt),
        )  # fmt: skip
        self._sock, self._started = ours, time.monotonic()
        self._timer = self._loop.call_later(ANSWER_S, self._ended, "its loader does not answer")
        with contextlib.suppress(OSError):  # it ended: `_heard` sees that
            ours.send(messages.ask(wanted))
        self._loop.add_reader(ours, self._heard)

    def _inherit(self, left: Path | None) -> None:
        """Begin with what the kernel told a daemon before us, which was killed."""
        self._inherited = True
        if left is not None and (made := inheriting.made_before(left)):
            self._begin(
                [
                    msgspec.structs.replace(event, entry=self.policy.number_for(event.cgroup, event.uid, event.name))
                    for event in made
                ]
            )  # fmt: skip

    def close(self) -> None:
        """End it: the kernel runs nothing of ours any more, and nothing of it is left."""
        if self._sock is not None:
            with contextlib.suppress(OSError):
                self._sock.send(_ENDS_WELL)
        self._wait_no_more()
        if self._sweeping is not None:
            self._sweeping.cancel()
        self._let_go()
        if self._process is not None:
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:  # it is stopped, and would leave what has names
                self._end(self._process)
                self._names().take_away()
            self._process = None

    def check(self) -> bool:
        """See whether the ring was too small since the last time, and bring what the kernel keeps for us up to date.
        Whether all that processes change themselves was told.
        """
        self.policy.look()
        self._exempt_helpers()
        if self.works and (full := self.counter(Counter.FULL)) != self._full:
            self._full = full
            self.forget()
        if self.works and (dropped := self.counter(Counter.DROPPED)) != self._dropped:
            _log.warning("the kernel told more than was taken in time; looking", dropped=dropped - self._dropped)
            self._dropped = dropped
            self._gap()
            return False
        return self.works

    def counter(self, which: Counter) -> int:
        """One of the programs' counters; 0 where they do not run."""
        if "counters" not in self.maps:
            return 0
        try:
            found = self.maps["counters"].get(_NUMBER.pack(which)) or b""
        except OSError:  # older kernels let nobody read without the right to load
            return 0
        return sum(number for (number,) in struct.iter_unpack("<Q", found))

    def has_counted(self) -> bool:
        """Whether there may be more to learn by `counted` than at the last call of this."""
        before, self._requests = self._requests, [self.counter(which) for which in _COUNTED] if self.works else []
        return self._requests != before

    def asking(self, pids: Iterable[int]) -> set[int]:
        """Those of these processes that have asked the driver for anything since the last call. What it was may be held
        back, or hidden by the memory or a second thread of a process that is written for it.
        """
        if not self.works or (seen := self.counter(Counter.SEEN)) == self._seen:
            return set()
        self._seen = seen
        before, self._asked = self._asked, {}
        with contextlib.suppress(OSError):
            for pid in pids:
                (self._asked[pid],) = _LONG.unpack(self.maps["asked"].get(_NUMBER.pack(pid)) or bytes(_LONG.size))
        return {pid for pid, number in self._asked.items() if number != before.get(pid)}

    def counted(self, name: str) -> collections.Counter[int]:
        """What a map counts of each process, by its pid: "controls" of groups and channels that it sent, "refusals" of
        requests that it may not send.
        """
        counted: collections.Counter[int] = collections.Counter()
        with contextlib.suppress(OSError):
            for key, number in self.maps[name].entries() if self.works else ():
                counted[_NUMBER.unpack_from(key)[0]] += _LONG.unpack(number)[0]
        return counted

    def made_by(self, pid: int, groups: Iterable[tuple[int, int]]) -> Made | None:
        """What the kernel saw a process make; None where it tells nothing of it."""
        return made_by(self.maps, pid, groups) if self.works else None

    def _exempt_helpers(self) -> None:
        """Keepers are started again, under other numbers."""
        wanted = set(self._helpers())
        if wanted == self._exempt or "exempt" not in self.maps:
            return
        with contextlib.suppress(OSError):
            for pid in wanted - self._exempt:
                self.maps["exempt"].put(_NUMBER.pack(pid), _NUMBER.pack(1))
            for pid in self._exempt - wanted:
                self.maps["exempt"].delete(_NUMBER.pack(pid))
            self._exempt = wanted

    def forget(self, pid: int | None = None) -> None:
        """Take out of the maps what a process had that has ended, or each that has. It happens a little later, for many
        at once and in a thread: one of them may have filled the maps.
        """
        if pid is None:
            self._ended_unseen = True
        else:
            self._ended_pids.add(pid)
        if self._sweeping is None:
            self._sweeping = self._loop.create_task(self._sweep())

    async def _sweep(self) -> None:
        try:
            while self._ended_unseen or self._ended_pids:
                await asyncio.sleep(max(SWEEP_S, SWEEP_REST * self._sweep_took_s))
                ended = None if self._ended_unseen else self._ended_pids
                self._ended_unseen, self._ended_pids = False, set()
                if self.works:
                    began = time.monotonic()
                    with contextlib.suppress(OSError):
                        await asyncio.to_thread(take_out_ended, self._copies(), ended)
                    self._sweep_took_s = time.monotonic() - began
        finally:
            self._sweeping = None

    def _copies(self) -> dict[str, Map]:
        """Maps for a thread, which closes them: ours may go with the loader meanwhile."""
        copies: dict[str, Map] = {}
        try:
            for name in NEEDED:
                copies[name] = msgspec.structs.replace(self.maps[name], fd=os.dup(self.maps[name].fd))
        except OSError:  # no descriptor is left
            for copy in copies.values():
                os.close(copy.fd)
            raise
        return copies

    # -- the loader --------------------------------------------------------------------------------

    def _heard(self) -> None:
        """It says how it went; after that, only that it has ended."""
        assert self._sock is not None
        try:
            message, fds, _, _ = socket.recv_fds(self._sock, messages.MAX_BYTES, len(messages.SHARED))
        except BlockingIOError:
            return
        except OSError:
            message, fds = b"", []
        if not message or self._ring is not None:
            self._ended()
            return
        self._wait_no_more()
        try:
            said = messages.answered(message)
            if said.unable or len(fds) != len(messages.SHARED):
                self._unable(said.unable or "its loader is of another version", fds)
                return
            self._take(fds)
        except (ValueError, OSError) as error:
            self._unable(f"its loader cannot be understood: {error}", [] if self.maps else fds)
            return
        self.state, self.lenient = said.unpinned, said.lenient
        _log.info(
            "the kernel tells of requests",
            loader=self.pid, note=said.unpinned or None, refuses=not said.lenient, why_not=said.lenient or None,
        )  # fmt: skip

    def _take(self, fds: list[int]) -> None:
        named = dict(zip(messages.SHARED, fds, strict=True))
        self._ring = Ring(named["events"], RING_BYTES)
        self.maps = {name: open_map(name, fd) for name, fd in named.items()}
        self._dropped = self._full = self._seen = 0
        self.policy.attach(self.maps["policy"], self.maps["force"])
        self._exempt_helpers()
        self._loop.add_reader(self._ring, self._read)
        self._gap()  # whatever was before

    def _unable(self, reason: str, fds: list[int]) -> None:
        """It will not be otherwise in a while: not tried again."""
        for fd in fds:
            os.close(fd)
        self._say(reason)
        self._let_go()

    def _ended(self, how: str = "its loader ended") -> None:
        worked = self.works
        self._wait_no_more()
        self._let_go()
        if self._process is not None:
            self._end(self._process)  # it may be stopped: what it holds would go on beside the next one
            self._process = None
        self._say(how)
        if worked:
            self._gap()
        self._rest_s = RETRY_S if time.monotonic() - self._started >= LONG_LIFE_S else self._rest_s
        self._rest()

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)

    def _names(self) -> Names:
        return Names(FOLDER, os.getpid(), str(daemon_socket(self._plane).absolute()))

    def _let_go(self) -> None:
        self.policy.detach()
        if self._ring is not None:
            self._loop.remove_reader(self._ring)
            self._ring.close()
            self._ring = None
        for each in self.maps.values():
            os.close(each.fd)
        self.maps = {}
        if self._sock is not None:
            self._loop.remove_reader(self._sock)
            self._sock.close()
            self._sock = None

    def _wait_no_more(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _rest(self) -> None:
        self._timer = self._loop.call_later(self._rest_s, self.start)
        self._rest_s = min(2 * self._rest_s, LONGEST_RETRY_S)

    def _say(self, reason: str) -> None:
        self.state = reason
        if self._said != reason:
            self._said = reason
            _log.warning("processes are found by looking, not by the kernel", reason=reason)

    # -- the ring ----------------------------------------------------------------------------------

    def _read(self) -> None:
        assert self._ring is not None
        taken = []
        try:
            for record in self._ring.take(MOST_AT_ONCE):
                taken += list(_understood(record))
        except BrokenRing as error:
            _log.warning(
                "the ring of the kernel's events makes no sense; its loader is started again", reason=str(error)
            )
            self._ended()
            return
        self._hear(taken)


def _understood(record: bytes) -> Iterator[Event]:
    with contextlib.suppress(ValueError):  # of another version
        yield events.read(record)
