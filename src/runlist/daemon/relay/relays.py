"""The daemon's side of its relays: which there are, what they are given, and when one is killed."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import time
from collections import Counter, deque
from collections.abc import Callable

import msgspec
import structlog

from runlist.daemon.relay.channel import Datagram, Packet, Say
from runlist.daemon.relay.nursery import Nursery
from runlist.daemon.relay.relay import CONNECTIONS_A_SECOND, Relay
from runlist.errors import ExitCode
from runlist.proc.owners import Owner
from runlist.version import __version__
from runlist.wire import Failure, encode

MAX_CONNECTIONS = 256
"""How many connections a stranger may have; an eighth of the daemon's descriptors, where that is less."""

MAX_RELAYS = 64
"""How many users have a relay at once."""

MAX_HELD = 64
"""How many connections may wait for somebody to close them; then none is accepted."""

NO_ROOM = "the daemon has no room for another connection: try again in a while"

IDLE_S = 30.0
"""A relay without a connection ends after this."""

TAKE_S, DROP_S = 0.25, 0.05
"""How long taking a datagram may last: for a user's relay, whose connections are at stake, and where nothing is."""

_LOOK_S = 1.0
_RETRY_S = 0.05
_FIRST_PENALTY_S, _MAX_PENALTY_S, _FORGIVEN_S = 0.5, 60.0, 120.0

_log = structlog.get_logger()


class _Record(msgspec.Struct):
    """How often a user's relay had to be killed, and until when there is none."""

    kills: int = 0
    last: float = float("-inf")
    until: float = float("-inf")


class Relays:
    """A relay for each stranger who is there, and one more, the undertaker, that closes what nobody wants.

    A stranger is a user that is neither root nor the daemon's own, and for datagrams also whoever is in a container.
    Nothing that a stranger sent is touched here: a connection goes to the relay, and the daemon closes its copy, which
    is not the last, before it lets the relay go.
    """

    def __init__(self, plane: str) -> None:
        self._on_datagram: Callable[[Datagram], None] = lambda _: None
        self._nursery = Nursery(plane)
        self._messages: socket.socket | None = None
        self._relays: dict[Owner, Relay] = {}
        self._undertaker: Relay | None = None
        self._dying: Counter[Owner] = Counter()
        self._records: dict[Owner, _Record] = {}
        self._held: deque[tuple[int, bytes]] = deque()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def share(self, messages: socket.socket, on_datagram: Callable[[Datagram], None]) -> None:
        """Have datagrams of a socket taken. `on_datagram` gets those that were wanted, with descriptors that passed."""
        self._messages = messages
        self._on_datagram = on_datagram

    @staticmethod
    def is_stranger(uid: int) -> bool:
        """Whether a user's descriptors are not for the daemon."""
        return uid not in (0, os.geteuid())

    @property
    def full(self) -> bool:
        """Whether too much waits to be closed."""
        return len(self._held) >= MAX_HELD

    def connect(self, owner: Owner, sock: socket.socket) -> tuple[socket.socket, Callable[[], None]] | None:
        """Hand a stranger's connection over; returns the socket on which to serve it, and what to call when it has
        ended. None where it is refused.
        """
        relay = self._of(owner)
        if relay is None and len(self._relays) >= MAX_RELAYS and owner not in self._records:
            self.refuse(owner, sock, f"{MAX_RELAYS} other users have connections to the daemon: try again later")
        elif relay is None:
            self.refuse(owner, sock, "the daemon serves you again in a while: a connection of yours kept it waiting")
        elif relay.connections >= _most_connections():
            self.refuse(owner, sock, f"you have {relay.connections} connections to the daemon: end some")
        elif not relay.may_connect():
            self.refuse(owner, sock, f"more than {CONNECTIONS_A_SECOND} connections a second: make fewer")
        else:
            return self._connect(owner, sock, relay)
        return None

    def _connect(
        self, owner: Owner, sock: socket.socket, relay: Relay
    ) -> tuple[socket.socket, Callable[[], None]] | None:
        try:
            ours, theirs = socket.socketpair()
        except OSError:
            self.refuse(owner, sock, NO_ROOM)
            return None
        with theirs:
            if relay.hand_over(Say.CONNECT, sock, theirs):
                relay.go()
                relay.connections += 1
                return ours, relay.hung_up
        ours.close()
        self.refuse(owner, sock, NO_ROOM)
        return None

    def refuse(self, owner: Owner, sock: socket.socket, reason: str) -> None:
        """Close a stranger's connection with a line that says why, not here."""
        _log.warning("a connection is refused", user=owner.uid, reason=reason)
        self._held.append((sock.detach(), encode(Failure(reason, ExitCode.FAILED, __version__))))
        if len(self._held) == 1:
            self._loop.call_soon(self._bury)

    def take(self, owner: Owner, wanted: bool, done: Callable[[], None], apart: socket.socket | None = None) -> None:
        """Have the datagram of a user that waits at the head of the socket, or of `apart`, received, or dropped where
        it is not `wanted`. `done` is called when the socket can be read again.
        """
        relay = self._of(owner) if wanted else None
        say, patience = (Say.TAKE, TAKE_S) if relay is not None else (Say.DROP, DROP_S)
        relay = relay or self._the_undertaker()
        if relay is None or not relay.take(say, patience, done, apart):
            self._loop.call_later(_RETRY_S, done)

    def close(self) -> None:
        """End all relays. What they hold is closed with them."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for relay in [*self._relays.values(), *([self._undertaker] if self._undertaker else [])]:
            relay.kill()
        self._nursery.close()

    # -- relays ------------------------------------------------------------------------------------

    def _of(self, owner: Owner) -> Relay | None:
        """The relay of a user; None where it may have none now."""
        relay = self._relays.get(owner)
        if relay is not None:
            return relay
        record = self._records.get(owner)
        if self._dying[owner] or (record is not None and time.monotonic() < record.until):
            return None
        if len(self._relays) >= MAX_RELAYS and not self._end_an_idle_one():
            return None
        relay = self._start(owner)
        if relay is not None:
            self._relays[owner] = relay
        return relay

    def _the_undertaker(self) -> Relay | None:
        if self._undertaker is None:
            self._undertaker = self._start(None)
        return self._undertaker

    def _start(self, owner: Owner | None) -> Relay | None:
        if self._closed or self._messages is None:
            return None
        try:
            relay = Relay(self._nursery.start(self._messages), owner, self._heard, self._ended)
        except OSError as error:
            _log.warning("a relay cannot be started", reason=error.strerror)
            return None
        if self._timer is None:
            self._timer = self._loop.call_later(_LOOK_S, self._look)
        return relay

    def _heard(self, relay: Relay, packet: Packet) -> None:
        if packet.say is Say.DATAGRAM:
            self._on_datagram(Datagram.decode(packet))
        elif packet.say is Say.BROKEN:
            reason = packet.body.decode(errors="replace")
            _log.warning("a client broke the protocol", **_named(relay.owner), reason=reason)

    def _ended(self, relay: Relay, hung: bool) -> None:
        """A relay was given up; `relay.gone` is called once its process has ended, too."""
        if relay.owner is None:
            if self._undertaker is relay:
                self._undertaker = None
            if self._held:
                self._loop.call_later(_RETRY_S, self._bury)
            return
        owner = relay.owner
        if self._relays.get(owner) is relay:
            del self._relays[owner]
        if hung and not relay.is_gone:
            self._dying[owner] += 1
            relay.on_gone = lambda: self._reaped(owner)
        if hung:
            self._blame(owner)

    def _reaped(self, owner: Owner) -> None:
        self._dying[owner] -= 1
        if not self._dying[owner]:
            del self._dying[owner]

    def _blame(self, owner: Owner) -> None:
        now = time.monotonic()
        record = self._records.setdefault(owner, _Record())
        record.kills = 1 if now - record.last > _FORGIVEN_S else record.kills + 1
        record.last = now
        penalty = min(_MAX_PENALTY_S, _FIRST_PENALTY_S * 2.0 ** min(record.kills - 1, 10))
        record.until = now + penalty
        _log.warning("a relay hung and was ended, with its user's connections", **_named(owner), refused_s=penalty)

    def _end_an_idle_one(self) -> bool:
        idle = {owner: relay for owner, relay in self._relays.items() if not relay.connections}
        if not idle:
            return False
        longest = min(idle, key=lambda owner: idle[owner].idle_since)
        del self._relays[longest]
        idle[longest].kill()
        return True

    def _look(self) -> None:
        """Every second: end those that hang, or that nobody needs."""
        self._timer = None
        now = time.monotonic()
        self._nursery.look(now)
        for owner, relay in [*self._relays.items(), *([(None, self._undertaker)] if self._undertaker else [])]:
            idle = not relay.connections and now - relay.idle_since > IDLE_S
            if idle and not relay.busy:
                if owner is not None:
                    del self._relays[owner]
                else:
                    self._undertaker = None
                relay.kill()
            else:
                relay.look(now)
        for owner in [owner for owner, record in self._records.items() if now - record.last > _FORGIVEN_S]:
            del self._records[owner]
        if self._relays or self._undertaker or self._held:
            self._timer = self._loop.call_later(_LOOK_S, self._look)
        else:
            self._nursery.close()
        self._bury()

    # -- what nobody wants -------------------------------------------------------------------------

    def _bury(self) -> None:
        if not self._held or self._closed:
            return
        undertaker = self._the_undertaker()
        while self._held and undertaker is not None:
            fd, last_words = self._held.popleft()
            sock = socket.socket(fileno=fd)
            if not undertaker.hand_over(Say.CLOSE, sock, body=last_words):
                self._held.appendleft((sock.detach(), last_words))
                if undertaker.is_running:  # it is stuck
                    undertaker.hang()
                break
        else:
            if undertaker is not None:
                undertaker.go()
                return
        self._loop.call_later(_RETRY_S, self._bury)


def _named(owner: Owner | None) -> dict[str, object]:
    """Whose a relay is, for the log."""
    named = {} if owner is None else {"user": owner.uid, "container": owner.container[:12]}
    return {key: value for key, value in named.items() if value != ""}


def _most_connections() -> int:
    return min(MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8)
