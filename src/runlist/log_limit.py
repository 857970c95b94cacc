"""Lines of the log, limited by user: whoever can cause lines could fill a disk."""

from __future__ import annotations

import time
from collections.abc import MutableMapping
from typing import Any

import msgspec
import structlog

from runlist.proc.owners import user_behind
from runlist.proc.process import owner_of
from runlist.rate import Rate

BURST = 100
"""So many lines of one user come at once; those of no user are counted by what they are `about`, or by their text."""

LINES_A_SECOND = 2.0
SAY_EVERY_S = 10.0

_log = structlog.get_logger()


class _Lines(msgspec.Struct):
    rate: Rate = msgspec.field(default_factory=lambda: Rate(LINES_A_SECOND, BURST))
    left_out: int = 0
    said_at: float = 0.0


class LogLimit:
    """A processor of structlog that drops lines. Whose one is, is told by `user`, else by `pid`; else `about`, or its
    text, says with which others it counts. `say_left_out` says in one line how many were dropped.
    """

    def __init__(self) -> None:
        self._lines: dict[str | int, _Lines] = {}

    def __call__(self, logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Pass a line on. Raises structlog.DropEvent."""
        del logger, method
        if not event.pop("limit", True):
            return event
        about = event.pop("about", event["event"])
        whose = event.get("user")
        if whose is None and isinstance(pid := event.get("pid"), int):
            whose = owner_of(pid)
        whose = None if whose is None else user_behind(whose)
        lines = self._lines.setdefault(str(about) if whose is None else whose, _Lines())
        if not lines.rate.take():
            lines.left_out += 1
            raise structlog.DropEvent
        return event

    def say_left_out(self) -> None:
        """Call it now and then."""
        now = time.monotonic()
        for whose, lines in list(self._lines.items()):
            if lines.left_out and now - lines.said_at > SAY_EVERY_S:
                about = {"user": whose} if isinstance(whose, int) else {"line": whose}
                _log.warning("lines were left out here", count=lines.left_out, limit=False, **about)
                lines.left_out, lines.said_at = 0, now
            elif not lines.left_out and lines.rate.is_full:
                del self._lines[whose]
