"""The daemon's socket: who may connect, requests in, answers out."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import time
from collections.abc import Callable
from weakref import WeakValueDictionary

import structlog

from runlist import wire
from runlist.daemon.relay.channel import Peer, peer_of
from runlist.daemon.relay.relays import NO_ROOM, Relays
from runlist.daemon.requests.connection import Connection
from runlist.daemon.requests.manager import Manager
from runlist.daemon.requests.turns import Turns
from runlist.daemon.requests.view import gpu_views
from runlist.proc.exhaustion import passes
from runlist.proc.owners import Owner, user_behind
from runlist.version import __version__

_log = structlog.get_logger()
_ACCEPTED_AT_ONCE = 16
_FLOOD_PAUSE_S = 0.002  # after so many: a flood gets a bounded part of the daemon's time
_REST_S = 0.1  # without descriptors or memory
_RESERVE = 64  # descriptors that connections may not take: tenants, the keeper and relays need some


class Server:
    """Accepts connections on a listening socket and serves them, those of strangers by way of `relays`. A client that
    asks the daemon to end sets `stop`. `on_user` is called with the user of each, before it is served.
    """

    def __init__(
        self,
        listener: socket.socket,
        manager: Manager,
        relays: Relays,
        device: str,
        private: bool,
        stop: asyncio.Event,
        *,
        shared: bool = False,
        on_user: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._device = device
        self._on_user = on_user
        self._listener = listener
        self._shared = shared  # with a service manager: who connects after us waits for the next daemon
        self._manager = manager
        self._relays = relays
        self._private = private
        self._connections: set[Connection] = set()
        self._turns: WeakValueDictionary[int, Turns] = WeakValueDictionary()  # of strangers
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._closed = False
        self._started_s = round(time.time(), 3)
        self.stop = stop
        listener.setblocking(False)
        self._loop.add_reader(listener, self._accept)

    @property
    def busy(self) -> bool:
        """Whether anybody is connected or anything is managed."""
        return bool(self._connections or self._manager.processes.roots)

    def close(self) -> None:
        """Stop accepting, and hang up. May be called again."""
        if not self._closed:
            self._closed = True
            if self._pause is not None:
                self._pause.cancel()
            self._loop.remove_reader(self._listener)
            if not self._shared:
                with contextlib.suppress(OSError):
                    self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.detach()  # its queue is closed by the end of this process, which lingers for nothing
        for connection in list(self._connections):
            connection.close()

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
        peer = peer_of(sock)
        uid = user_behind(peer.uid)  # who may have thousands of numbers
        scarce = sock.fileno() >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _RESERVE
        if scarce:
            self._rest(_REST_S, "only the reserve is left")
        else:
            self._on_user(uid)
        if not self._relays.is_stranger(peer.uid):
            if scarce:
                sock.close()
            else:
                self._connect(sock, peer)
        elif scarce:
            self._relays.refuse(Owner(uid), sock, NO_ROOM)
        elif (served := self._relays.connect(Owner(uid), sock)) is not None:
            ours, on_end = served
            self._connect(ours, peer, self._turns.setdefault(uid, Turns()), on_end)

    def _connect(
        self,
        sock: socket.socket,
        peer: Peer,
        turns: Turns | None = None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        def ended(connection: Connection) -> None:
            self._connections.discard(connection)
            on_end()

        self._connections.add(Connection(sock, peer, self._manager, self.status, self.stop, turns or Turns(), ended))

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

    def status(self, uid: int) -> wire.DaemonStatus:
        """This daemon's status, for a user."""
        manager = self._manager
        waiting, others = manager.launches.waiting(uid)
        return wire.DaemonStatus(
            pid=os.getpid(),
            version=__version__,
            started_s=self._started_s,
            driver=self._device,
            policy=manager.gpus.spec.name,
            policy_options=dict(manager.gpus.spec.options),
            private=self._private,
            keeper_pid=manager.keeper.pid,
            tasks=len(manager.tasks(0)),
            rules=str(manager.placement.path or ""),
            kernel_plane=manager.kernel.told,
            waiting=waiting,
            others_waiting=others,
            troubles=[
                *(trouble for scheduler in manager.gpus.all() for trouble in scheduler.troubles()),
                *(manager.rule_troubles() if uid in (0, os.geteuid()) else ()),
            ],
            gpus=gpu_views(manager.gpus, manager.census, manager.processes.roots.values(), self._device),
        )
