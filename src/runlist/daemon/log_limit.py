"""Lines of the log, limited by user: whoever can cause lines could fill a disk."""

from __future__ import annotations

import time
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

import structlog

from runlist.proc.process import owner_of

BURST = 100
"""So many lines of one user come at once; the daemon's own are counted by their text."""

LINES_A_SECOND = 2.0
SAY_EVERY_S = 10.0

_log = structlog.get_logger()


@dataclass
class _Bucket:
    level: float
    filled_at: float
    left_out: int = 0
    said_at: float = 0.0


class LogLimit:
    """A processor of structlog that drops lines. Whose one is, is told by `user`, else by `pid`. `say_left_out` says in
    one line how many were dropped.
    """

    def __init__(self) -> None:
        self._buckets: dict[str | int, _Bucket] = {}

    def __call__(self, logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Pass a line on. Raises structlog.DropEvent."""
        del logger, method
        if not event.pop("limit", True):
            return event
        now = time.monotonic()
        whose = event.get("user")
        if whose is None and isinstance(pid := event.get("pid"), int):
            whose = owner_of(pid)
        bucket = self._buckets.setdefault(str(event["event"]) if whose is None else whose, _Bucket(BURST, now))
        bucket.level = min(BURST, bucket.level + (now - bucket.filled_at) * LINES_A_SECOND)
        bucket.filled_at = now
        if bucket.level < 1:
            bucket.left_out += 1
            raise structlog.DropEvent
        bucket.level -= 1
        return event

    def say_left_out(self) -> None:
        """Call it now and then."""
        now = time.monotonic()
        for whose, bucket in list(self._buckets.items()):
            if bucket.left_out and now - bucket.said_at > SAY_EVERY_S:
                about = {"user": whose} if isinstance(whose, int) else {"line": whose}
                _log.warning("lines were left out here", count=bucket.left_out, limit=False, **about)
                bucket.left_out, bucket.said_at = 0, now
            elif not bucket.left_out and now - bucket.filled_at > BURST / LINES_A_SECOND:
                del self._buckets[whose]
