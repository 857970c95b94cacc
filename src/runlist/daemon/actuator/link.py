"""The daemon's side of the actuator: starting it, arming it, and putting right what it may have left when it ends.

The actuator suspends what an arm names as soon as one of the arm's words is 0, and says so. It is a process of its own:
it waits for words in files that tenants can cut short, and nothing that the daemon does holds it up.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import subprocess
import time
from collections.abc import Sequence
from typing import Protocol

import structlog

from runlist.daemon import helper
from runlist.daemon.actuator import messages
from runlist.daemon.actuator.messages import Result
from runlist.errors import RunlistError
from runlist.planes.interface import Prepared
from runlist.planes.process.library import program
from runlist.protocol.actuator_autogen import MAX_BYTES, MAX_TARGETS, MAX_WORDS, Kind

_log = structlog.get_logger()

_PROGRAM = "runlist-actuator"
PATIENCE_S = 0.1
"""How long an answer may take. A control takes up to 2 ms, and an arm has few."""
MOST_WORDS = MAX_WORDS
"""Words of an arm."""
RETRY_S, LONGEST_RETRY_S = 0.1, 60.0
"""How long there is none after one ended: twice as long each time that it ended within LONG_LIFE_S."""
LONG_LIFE_S = 10.0


class Owner(Protocol):
    """Whose arm it is. Nothing here may arm or disarm."""

    def fired(self, word: int, results: Sequence[Result]) -> None:
        """A word was 0, and the targets are suspended, or not. The arm is no more."""

    def dropped(self, word: int) -> None:
        """A word is not watched any more."""

    def lost(self) -> None:
        """The arm is no more, and nobody knows what it did: the targets may be suspended, or not."""

    def may_arm(self) -> None:
        """Arms are taken again."""


class ActuatorLink:
    """The running actuator, started with the first arm. Call it in the event loop's thread."""

    def __init__(self, plane: str) -> None:
        self._plane = plane
        self._able = True
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None
        self._arms: dict[int, Owner] = {}
        self._refused: set[Owner] = set()
        self._next = 1
        self._started = 0.0
        self._rest_s = RETRY_S
        self._retry: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def pid(self) -> int:
        """Its process id, 0 where none runs."""
        return 0 if self._process is None else self._process.pid

    def arm(self, words: Sequence[tuple[int, int]], targets: Sequence[tuple[int, Prepared]], owner: Owner) -> int:
        """Watch words, each a descriptor and a place in its file, and suspend the targets, on their descriptors, when
        one is 0. Returns a number for `disarm`; 0 where that is not possible now.
        """
        if not self._able or len(words) > MOST_WORDS or len(targets) > MAX_TARGETS:
            return 0
        message = messages.arm(self._next, [at for _, at in words], [prepared for _, prepared in targets])
        if len(message) > MAX_BYTES:
            return 0
        if not self._is_there():
            self._refused.add(owner)
            return 0
        if not self._send(message, [fd for fd, _ in (*words, *targets)]):
            return 0
        number, self._next = self._next, self._next + 1
        self._arms[number] = owner
        return number

    def disarm(self, number: int) -> None:
        """Let go of an arm. When this returns, it does nothing more, and its owner knows what it did."""
        if number not in self._arms:
            return
        until = time.monotonic() + PATIENCE_S
        self._send(messages.disarm(number), [])
        while number in self._arms and self._sock is not None:
            poll = select.poll()
            poll.register(self._sock, select.POLLIN)
            if not poll.poll(max(0.0, until - time.monotonic()) * 1e3):
                _log.warning("the actuator does not answer; killed", pid=self.pid)
                self._lost(kill=True)
                return
            self._hear()

    def close(self) -> None:
        """End it; it resumes whatever it suspended and nobody disarmed."""
        self._able = False
        if self._retry is not None:
            self._retry.cancel()
        if self._sock is None or self._process is None:
            return
        self._drop_socket()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            _log.error("the actuator did not end", pid=self._process.pid)
        self._process = None

    # -- the process -------------------------------------------------------------------------------

    def _is_there(self) -> bool:
        """Start it where none runs, unless one has just ended."""
        if self._sock is None and self._retry is None:
            self._start()
        return self._sock is not None

    def _start(self) -> None:
        try:
            path = program(_PROGRAM)
        except (FileNotFoundError, RunlistError) as error:
            self._give_up(str(error))
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        try:
            self._process = helper.start_program([str(path)], self._plane, ours, theirs)
        except (OSError, MemoryError) as error:
            _log.warning("no actuator can be started; trying again", reason=str(error) or "no memory")
            self._rest()
            return
        self._sock, self._started = ours, time.monotonic()
        self._loop.add_reader(ours, self._hear)

    def _give_up(self, reason: str) -> None:
        self._able = False
        _log.warning("the background gives way by the daemon's own loop, a little later", reason=reason)

    def _send(self, message: bytes, fds: list[int]) -> bool:
        if self._sock is None:
            return False
        try:
            socket.send_fds(self._sock, [message], fds, socket.MSG_NOSIGNAL)
        except OSError:  # it ended, which `_hear` sees; or it hears nothing, which `disarm` sees
            return False
        return True

    def _hear(self) -> None:
        """Take all that it said."""
        while self._sock is not None:
            try:
                message = self._sock.recv(MAX_BYTES)
            except BlockingIOError:
                return
            except ConnectionResetError:  # it ended without reading all of ours; what it said before comes next
                continue
            except OSError:
                message = b""
            if not message:
                self._lost()
                return
            try:
                self._take(messages.said(message))
            except ValueError as error:
                _log.warning("the actuator says what makes no sense; killed", pid=self.pid, reason=str(error))
                self._lost(kill=True)

    def _take(self, said: messages.Said) -> None:
        if said.kind is Kind.UNABLE:
            self._give_up(f"this kernel cannot wait for several words ({os.strerror(said.error)}): use Linux 5.16")
            return
        owner = self._arms.get(said.arm)
        if owner is None:
            return
        if said.kind is Kind.FIRED:
            owner.fired(said.word, said.results)
            self._send(messages.disarm(said.arm), [])  # from now on it is ours
        elif said.kind is Kind.DROPPED:
            owner.dropped(said.word)
        elif said.kind is Kind.DISARMED:
            del self._arms[said.arm]

    def _lost(self, *, kill: bool = False) -> None:
        """It ended, or has to. What it says no more is unknown."""
        if self._process is None:
            return
        self._drop_socket()
        if kill:
            self._process.kill()
        code: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):  # in a control that does not end: it sends no other
            code = self._process.wait(PATIENCE_S)
        if self._able:
            _log.warning("the actuator ended", pid=self.pid, code=code)
        self._process = None
        owners, self._arms = list(self._arms.values()), {}
        for owner in owners:
            owner.lost()
        if self._able:
            self._refused.update(owners)
            self._rest_s = RETRY_S if time.monotonic() - self._started >= LONG_LIFE_S else self._rest_s
            self._rest()

    def _drop_socket(self) -> None:
        assert self._sock is not None
        self._loop.remove_reader(self._sock)
        self._sock.close()
        self._sock = None

    def _rest(self) -> None:
        self._retry = self._loop.call_later(self._rest_s, self._go_on)
        self._rest_s = min(2 * self._rest_s, LONGEST_RETRY_S)

    def _go_on(self) -> None:
        self._retry = None
        refused, self._refused = self._refused, set()
        for owner in refused:
            owner.may_arm()
