"""One relay, as the daemon sees it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable

from runlist.daemon.relay import channel
from runlist.daemon.relay.channel import Packet, Say
from runlist.daemon.relay.nursery import Birth
from runlist.proc import process
from runlist.proc.owners import Owner
from runlist.rate import Rate

START_S = 10.0
"""How long a relay may take to start."""

CONNECTIONS_AT_ONCE, CONNECTIONS_A_SECOND = 1024, 1000
"""How many connections a user may make, however short they are."""

STARVED_S = 1.0
"""How long one that only waits for a processor may be late with a datagram, while those of others wait."""

MOST_HEARD = 64
"""So many things that it said are taken in one go."""

_SIGN_S = 0.9
_STARVED_SIGN_S = 10.0
_GRACE_S = 1.0


class Relay:
    """A relay of `owner` (None: the undertaker).

    `on_packet` gets what it says, `on_end` that it was given up, and whether that is because it hung.
    """

    def __init__(
        self,
        birth: Birth,
        owner: Owner | None,
        on_packet: Callable[[Relay, Packet], None],
        on_end: Callable[[Relay, bool], None],
    ) -> None:
        self.owner = owner
        self.connections = 0
        self.idle_since = self._started = time.monotonic()
        self._connects = Rate(CONNECTIONS_A_SECOND, CONNECTIONS_AT_ONCE)
        self.is_gone = False
        self.on_gone: Callable[[], None] = lambda: None
        self._sock = birth.sock
        self._on_packet = on_packet
        self._on_end = on_end
        self._pidfd: int | None = None
        self._given_up = self._going = False
        self._last = self._given = 0  # numbers of the last packet, and of the last that handed something over
        self._unanswered_since: float | None = None
        self._taking: tuple[int, float, Callable[[], None]] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._sock, self._heard)
        birth.on_born = self._born

    @property
    def is_running(self) -> bool:
        """Whether its process has begun."""
        return self._pidfd is not None

    @property
    def busy(self) -> bool:
        """Whether it owes an answer."""
        return self._taking is not None or self._unanswered_since is not None

    def hand_over(self, say: Say, sock: socket.socket, served: socket.socket | None = None, body: bytes = b"") -> bool:
        """Hand over a connection, and the socket that serves it, or what to say last; then call `go`. Where it returns
        False nothing has happened.
        """
        fds = [sock.fileno(), *([] if served is None else [served.fileno()])]
        number = self._last + 1
        try:
            channel.send(self._sock, say, number, body, fds)
        except OSError:
            return False
        self._last = self._given = number
        sock.close()  # the relay's copy is still there
        return True

    def go(self) -> None:
        """Let it touch what it was given, once for all of this round, and give a sign of life. Where there is no room,
        the next call does.
        """
        if not self._going:
            self._going = True
            self._loop.call_soon(self._go)

    def _go(self) -> None:
        self._going = False
        if self._given_up:
            return
        with contextlib.suppress(OSError):  # if it ended, `_heard` sees to it
            channel.send(self._sock, Say.GO, self._last)
        if self._unanswered_since is None and self.is_running:
            self._unanswered_since = time.monotonic()

    def may_connect(self) -> bool:
        """Whether its user may have one more connection so soon after the last ones."""
        return self._connects.take()

    def hung_up(self) -> None:
        """One of its connections has ended."""
        self.connections -= 1
        self.idle_since = time.monotonic()

    def take(self, say: Say, patience_s: float, done: Callable[[], None], apart: socket.socket | None = None) -> bool:
        """Have it take or drop a datagram, of `apart` if that is given. `done` is called when it has, or when its
        process has ended.
        """
        number = self._last + 1
        if self._taking is not None:
            return False
        try:
            channel.send(self._sock, say, number, fds=[] if apart is None else [apart.fileno()])
        except OSError:
            return False
        self._last = number
        self.idle_since = time.monotonic()  # it looks at what it has taken once the socket can be read again
        self._taking = (number, patience_s, done)
        if self.is_running:
            self._time_it(patience_s)
        return True

    def _time_it(self, patience_s: float) -> None:
        """Give it so long for the datagram."""
        end = time.monotonic() + max(patience_s, STARVED_S)
        self._timer = self._loop.call_later(patience_s, self._late, patience_s, end)

    def _late(self, patience_s: float, end: float) -> None:
        taking = self._taking
        self._heard()  # we may be late ourselves
        if self._taking is not taking:
            return
        if self._is_starved and time.monotonic() < end:
            self._timer = self._loop.call_later(patience_s, self._late, patience_s, end)
        else:
            self.hang()

    @property
    def _is_starved(self) -> bool:
        """Whether it is late for want of a processor, and waits for no stranger: nobody is to blame."""
        with contextlib.suppress(OSError):  # there is no descriptor to ask with
            return self._pidfd is not None and process.wants_processor(process.behind(self._pidfd))
        return False

    def look(self, now: float) -> None:
        """Every second: ask for a sign of life, or give up a relay that gave none."""
        self._heard()
        waits_since = self._started if not self.is_running else self._unanswered_since
        patience = START_S if not self.is_running else _SIGN_S
        late_s = 0.0 if waits_since is None else now - waits_since
        if late_s > patience:
            if not self._is_starved or late_s > _STARVED_SIGN_S:
                self.hang()
        elif self.is_running:
            self.go()

    def hang(self) -> None:
        """It hangs: kill it."""
        self._end(hung=True)

    def kill(self) -> None:
        """End it: nobody needs it."""
        self._end(hung=False)

    def _born(self, pidfd: int | None) -> None:
        if pidfd is None:
            self.is_gone = True
            self._end(hung=False)
            self._release()
            return
        self._pidfd = pidfd
        self._loop.add_reader(pidfd, self._died)
        if self._given_up:
            self._kill()
        elif self._taking is not None:
            self._time_it(self._taking[1])

    def _heard(self) -> None:
        for _ in range(MOST_HEARD):
            if self._given_up or not self._hear():
                return

    def _hear(self) -> bool:
        """Take the next thing that it said; False where there is none now."""
        try:
            packet = channel.receive(self._sock)
        except BlockingIOError:
            return False
        if packet is None:
            self._end(hung=True)  # it never ends by itself
        elif packet.say is Say.GO:
            if packet.number >= self._given:  # what it was asked since then has times of its own
                self._unanswered_since = None
            elif self._unanswered_since is not None:
                self._unanswered_since = time.monotonic()
        elif packet.say is Say.TAKEN:
            if self._taking is not None and packet.number == self._taking[0]:
                self._release()
        else:
            self._on_packet(self, packet)
        return True

    def _end(self, *, hung: bool) -> None:
        if self._given_up:
            return
        self._given_up = True
        self._loop.remove_reader(self._sock)
        self._sock.close()
        self._kill()
        self._loop.call_later(_GRACE_S, self._release)  # whatever keeps it, it has no datagram of others
        self._on_end(self, hung)

    def _kill(self) -> None:
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _died(self) -> None:
        assert self._pidfd is not None
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = None
        self.is_gone = True
        self._end(hung=True)
        self._release()
        self.on_gone()

    def _release(self) -> None:
        """The datagram socket may be read again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._taking is not None:
            _, _, done = self._taking
            self._taking = None
            done()
