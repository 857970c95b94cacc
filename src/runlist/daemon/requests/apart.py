"""A socket for the messages of each user, beside the one for all: a queue has room for ten where nobody set more, and
who fills one keeps out nobody else.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable
from pathlib import Path

import structlog

from runlist.daemon.requests.messages import Messages, remove_stale
from runlist.errors import RunlistError
from runlist.proc.exhaustion import passes

MOST = 1024
"""How many users are heard apart; an eighth of the daemon's descriptors, where that is less. The others share one."""

_log = structlog.get_logger()


class Apart:
    """The sockets beside that of `path`, each made when its user is first there. `make` makes that of a user. Sockets
    that a daemon left which was killed are removed.
    """

    def __init__(self, path: Path, make: Callable[[int], Messages]) -> None:
        self._make = make
        self._heard: dict[int, Messages | None] = {}
        for left in path.parent.glob(f"{path.stem}-*{path.suffix}"):
            with contextlib.suppress(OSError, RunlistError):  # a new one is made all the same, or none
                remove_stale(left)

    def hear(self, uid: int) -> None:
        """Have a socket of that user. Where there can be none its tenants share that of all."""
        if uid in self._heard or len(self._heard) >= min(MOST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8):
            return
        try:
            self._heard[uid] = self._make(uid)
        except (OSError, RunlistError) as error:
            if passes(error):  # the next time that one comes
                return
            self._heard[uid] = None
            _log.warning("a user has no socket for messages alone", user=uid, reason=str(error))

    def close(self) -> None:
        """Hear nobody any more, and remove the sockets."""
        for messages in self._heard.values():
            if messages is not None:
                messages.close()
