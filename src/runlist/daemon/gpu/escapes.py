"""Tasks that work while they are suspended: whoever has the file of a process can enable its channels, that is, the
process itself, which the driver asks for no right.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

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
MOST_AT_ONCE = 10
"""Tasks at a reading, in turn: a control takes 0.3 to 1 ms, for which others wait."""
_SAY_EVERY_S = 60.0


class _Off(msgspec.Struct):
    """A task that is off, and what happens after `until` happens while it is off."""

    suspensions: int
    until: float
    rest_s: float = 1.0
    said_at: float = -_SAY_EVERY_S


class Escapes:
    """Those of one GPU, by a source of usage that sees turns. Times are of the monotonic clock."""

    def __init__(self, tasks: Mapping[TaskKey, ManagedTask]) -> None:
        self._tasks = tasks
        self._off: dict[TaskKey, _Off] = {}

    def note(self, now: float) -> None:
        """Tasks may have come on, or gone off."""
        for key, managed in self._tasks.items():
            if managed.share.enabled or managed.is_shared:
                self._off.pop(key, None)
            elif (off := self._off.get(key)) is None or off.suspensions != managed.counts[Count.SUSPENSIONS]:
                self._off[key] = _Off(managed.counts[Count.SUSPENSIONS], now + SETTLE_S)
        for key in self._off.keys() - self._tasks.keys():
            del self._off[key]

    def look(self, reading: Reading, since: float, now: float) -> None:
        """Suspend those once more that were switched in while they were off, by the reading of the time since then."""
        self.note(now)
        left = MOST_AT_ONCE
        for key, off in list(self._off.items()):
            if key.pid not in reading.usage or not left:
                continue
            began = reading.began.get(key.pid)
            if began is not None:
                if now - (reading.until - began) < off.until:
                    continue
                self._suspend(key, off, now)
                self._count(self._tasks[key], off, now)
                left -= 1
            elif since >= off.until and reading.residencies and reading.usage[key.pid].held_s >= LEAST_S:
                # It came before it went off, and nobody came after it: the log may not have been told of its end.
                self._suspend(key, off, now)
                off.until, off.rest_s = now + off.rest_s, min(2 * off.rest_s, LONGEST_REST_S)
                left -= 1

    def _suspend(self, key: TaskKey, off: _Off, now: float) -> None:
        managed = self._tasks[key]
        self._off[key] = self._off.pop(key)  # behind those that have not had their turn
        off.until = now + SETTLE_S
        with contextlib.suppress(RunlistError, OSError):  # it is lost where it is controlled next
            managed.suspend_again()

    def _count(self, managed: ManagedTask, off: _Off, now: float) -> None:
        managed.counts[Count.SUSPENDED_AGAIN] += 1
        if now - off.said_at >= _SAY_EVERY_S:
            off.said_at = now
            pid, gpu = managed.task.key.pid, managed.task.key.gpu
            _log.warning("a suspended task worked, as one that enabled itself; suspended again", pid=pid, gpu=gpu)
