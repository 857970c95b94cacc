"""Tasks that work while they are suspended: whoever has the file of a process can enable its channels, that is, the
process itself, which the driver asks for no right.

They are suspended a moment after they were seen: what is decided for a request that waits goes first.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec
import structlog

from runlist.daemon.tasks.managed import Count, ManagedTask
from runlist.errors import RunlistError
from runlist.model import TaskKey
from runlist.planes.usage import Reading

_log = structlog.get_logger()

SETTLE_S = 0.01
"""For so long after a suspension its task may still be switched in: the clocks of GPU and machine disagree a little."""
LEAST_S = 0.001
"""Less than this is no work of one that stays on the GPU."""
LONGEST_REST_S = 64.0
"""Who stays in the log without a switch is suspended again ever more rarely, up to this."""
MOST_S = 0.005
"""No control begins later in a row: others wait meanwhile."""
REST = 20
"""Then none for so many times as long as they took."""
NEW_S, NEW_EVERY_S = 10.0, 60.0
"""A context beside the first is one that nobody has found yet, until its task has another number of them. But no more
than so many of so many seconds: else one that comes after the other would be let be.
"""
MOST_CONTEXTS = 256
"""Of a task are remembered."""
_SAY_EVERY_S = 60.0


class _Off(msgspec.Struct):
    """A task that is off. What happens after `settled` happens while it is off. `seen`: it is to be suspended again,
    and counts so, or not. `again`: it was, and `back`: it was switched in all the same, soon after that.
    """

    suspensions: int
    settled: float
    seen: bool = False
    counts: bool = False
    again: bool = False
    back: bool = False
    rest_s: float = 1.0
    rest_until: float = float("-inf")


class _Contexts(msgspec.Struct):
    """Of a task: how many were found when each came, by their numbers in the log; None for the first. For how long some
    of them were new lately, as of the time `at`. Which was switched in last, and when.
    """

    known: dict[int, int | None] = {}
    new_s: float = 0.0
    at: float = float("-inf")
    last: int = 0
    last_at: float = float("-inf")

    def is_new(self, context: int, found: int, now: float) -> bool:
        """Whether nobody has found it yet."""
        if context not in self.known:
            if len(self.known) >= MOST_CONTEXTS:
                del self.known[next(iter(self.known))]
            self.known[context] = found if self.known else None
        if self.known[context] != found:
            return False
        passed, self.at = max(0.0, now - self.at), max(now, self.at)
        self.new_s = max(0.0, self.new_s - passed * NEW_S / NEW_EVERY_S)
        if self.new_s >= NEW_S:
            return False
        self.new_s += min(passed, 1.0)
        return True


class Timer(Protocol):
    """What is to be called later."""

    def cancel(self) -> None:
        """Call it no more."""


class Escapes:
    """Those of one GPU, by a source of usage that sees turns. Times are of the monotonic clock. `later` calls something
    after so many seconds.
    """

    def __init__(
        self, tasks: Mapping[TaskKey, ManagedTask], later: Callable[[float, Callable[[], None]], Timer]
    ) -> None:
        self._tasks = tasks
        self._later = later
        self._off: dict[TaskKey, _Off] = {}
        self._contexts: dict[TaskKey, _Contexts] = {}
        self._said: dict[TaskKey, float] = {}
        self._timer: Timer | None = None
        self._rests_until = float("-inf")

    def note(self, now: float) -> None:
        """Tasks may have come on, or gone off."""
        for key, managed in self._tasks.items():
            if managed.share.enabled or managed.is_shared:
                self._off.pop(key, None)
            elif (off := self._off.get(key)) is None or off.suspensions != managed.counts[Count.SUSPENSIONS]:
                self._off[key] = _Off(managed.counts[Count.SUSPENSIONS], now + SETTLE_S)

    def forget(self, key: TaskKey) -> None:
        """The task is gone."""
        self._off.pop(key, None)
        self._contexts.pop(key, None)
        self._said.pop(key, None)

    def look(self, reading: Reading, since: float, now: float) -> None:
        """Have those suspended once more that were on the GPU while they were off, by the reading of the time since
        then.
        """
        self.note(now)
        keys = {key.pid: key for key in self._tasks}
        switched = set()
        for (pid, context), began in reading.began.items():
            if (key := keys.get(pid)) is not None:
                switched.add(key)
                self._switched_in(key, context, now - (reading.until - began))
        for key, off in self._off.items():
            if key in switched or key.pid not in reading.usage or since < off.settled:
                continue
            if reading.residencies and reading.usage[key.pid].held_s >= LEAST_S:
                managed, contexts = self._tasks[key], self._contexts.get(key)
                if contexts is not None and contexts.is_new(contexts.last, managed.task.contexts, now):
                    continue  # it stays on until it is found
                # It came before it went off, and nobody came after it: the log may not have been told of its end.
                off.seen |= off.back or now >= off.rest_until
                off.counts |= off.back and now >= managed.settles_at
        self._plan(now)

    def close(self) -> None:
        """Suspend nobody any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _switched_in(self, key: TaskKey, context: int, at: float) -> None:
        managed, off = self._tasks[key], self._off.get(key)
        contexts = self._contexts.setdefault(key, _Contexts())
        is_new = contexts.is_new(context, managed.task.contexts, at)
        if at >= contexts.last_at:
            contexts.last, contexts.last_at = context, at
        if off is None:
            return
        if at < off.settled:
            off.back |= off.again and not is_new
        elif not is_new:
            off.seen = True
            off.counts |= at >= managed.settles_at  # else it may be in the making

    def _plan(self, now: float) -> None:
        if self._timer is None and any(off.seen for off in self._off.values()):
            self._timer = self._later(max(0.0, self._rests_until - now), self._suspend_seen)

    def _suspend_seen(self) -> None:
        self._timer = None
        began = now = time.monotonic()
        self.note(now)
        for key, off in [(key, off) for key, off in self._off.items() if off.seen]:
            self._suspend(key, off)
            if (now := time.monotonic()) - began >= MOST_S:
                break
        self._rests_until = now + REST * (now - began)
        self._plan(now)

    def _suspend(self, key: TaskKey, off: _Off) -> None:
        managed = self._tasks[key]
        self._off[key] = self._off.pop(key)  # behind those that have not had their turn
        with contextlib.suppress(RunlistError, OSError):  # it is lost where it is controlled next
            managed.suspend_again()
        now = time.monotonic()
        off.settled = now + SETTLE_S
        if off.counts:
            self._count(managed, now)
        else:
            off.rest_until, off.rest_s = now + off.rest_s, min(2 * off.rest_s, LONGEST_REST_S)
        off.again, off.seen, off.counts, off.back = True, False, False, False

    def _count(self, managed: ManagedTask, now: float) -> None:
        managed.counts[Count.SUSPENDED_AGAIN] += 1
        key = managed.task.key
        if now - self._said.get(key, -_SAY_EVERY_S) >= _SAY_EVERY_S:
            self._said[key] = now
            _log.warning(
                "a suspended task worked, as one that enabled itself; suspended again", pid=key.pid, gpu=key.gpu
            )
