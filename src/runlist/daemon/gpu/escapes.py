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
from runlist.model import TaskKey, Usage

_log = structlog.get_logger()

SETTLE_S = 0.1
"""For so long after a suspension its task may still have work in the log: what ran then, told late."""
LEAST_S = 0.001
"""Less work than this is none."""
LONGEST_REST_S = 64.0
"""Whoever stays in the log without a switch is suspended again ever more rarely, up to this."""
_SAY_EVERY_S = 60.0


class _Off(msgspec.Struct):
    """A task that is off. `until` is from when on what the log has of it was done while it was off."""

    suspensions: int
    until: float
    rest_s: float = 1.0
    said_at: float = -_SAY_EVERY_S


class Escapes:
    """Those of one GPU. Times are of the monotonic clock."""

    def __init__(self, tasks: Mapping[TaskKey, ManagedTask]) -> None:
        self._tasks = tasks
        self._off: dict[TaskKey, _Off] = {}

    def look(self, used: Mapping[int, Usage], since: float, now: float) -> None:
        """Suspend those once more that used the GPU while they were off. `used` is what processes had since then."""
        for key, managed in self._tasks.items():
            if managed.share.enabled or managed.is_shared:
                self._off.pop(key, None)
                continue
            off = self._off.get(key)
            if off is None or off.suspensions != managed.counts[Count.SUSPENSIONS]:
                self._off[key] = _Off(managed.counts[Count.SUSPENSIONS], now + SETTLE_S)
            elif since >= off.until and key.pid in used and used[key.pid].held_s >= LEAST_S:
                self._suspend(managed, off, used[key.pid], now)
        for key in self._off.keys() - self._tasks.keys():
            del self._off[key]

    def _suspend(self, managed: ManagedTask, off: _Off, usage: Usage, now: float) -> None:
        with contextlib.suppress(RunlistError, OSError):  # it is lost where it is controlled next
            managed.suspend_again()
        off.until = now + SETTLE_S
        if not usage.turns:  # it was switched in before: the log may not have been told that it went off
            off.until, off.rest_s = now + off.rest_s, min(2 * off.rest_s, LONGEST_REST_S)
            return
        managed.counts[Count.SUSPENDED_AGAIN] += 1
        if now - off.said_at >= _SAY_EVERY_S:
            off.said_at = now
            pid, gpu = managed.task.key.pid, managed.task.key.gpu
            _log.warning("a suspended task worked, as one that enabled itself; suspended again", pid=pid, gpu=gpu)
