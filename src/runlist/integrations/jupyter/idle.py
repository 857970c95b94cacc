"""Telling the daemon whether this process is at work, from a thread of its own: nobody waits for the daemon."""

from __future__ import annotations

import threading
import time

from runlist.client import Client
from runlist.errors import NoTargetError, RunlistError
from runlist.settings.table import parse_request

ACTIVE, IDLE = "normal", "batch"
AFTER_S = 60.0
PATIENCE_S = 5.0
AGAIN_S = 10.0
"""How long the daemon may take to answer, and when it is asked again after it could not be reached."""

LOOK_S = 30.0
"""How often a daemon that was told is looked for: one that was started again knows nothing of it."""


class IdleClass:
    """The class of a process: `active` between `begin` and `end`, `idle` once `after_s` seconds went by since the last
    `end`.
    """

    def __init__(self, pid: int, active: str = ACTIVE, idle: str = IDLE, after_s: float = AFTER_S) -> None:
        """Raises UsageError for classes that do not exist."""
        for name in (active, idle):
            parse_request({"class": name})
        self.trouble = ""
        """Why the daemon could not be told, last."""
        self._pid = pid
        self._active, self._idle, self._after_s = active, idle, max(0.0, after_s)
        self._running = 0
        self._ended_at = time.monotonic()
        self._closed = False
        self._told = (0, 0.0)
        self._changed = threading.Condition()
        threading.Thread(target=self._follow, name="runlist-idle", daemon=True).start()

    def begin(self, *_: object) -> None:
        """A cell begins. Takes microseconds."""
        with self._changed:
            self._running = 1  # one that was interrupted may have had no end
            self._changed.notify()

    def end(self, *_: object) -> None:
        """A cell has ended."""
        with self._changed:
            self._running = 0
            self._ended_at = time.monotonic()
            self._changed.notify()

    def close(self) -> None:
        """Say nothing any more."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _follow(self) -> None:
        said, ask_at = "", 0.0
        while True:
            with self._changed:
                while True:
                    if self._closed:
                        return
                    now = time.monotonic()
                    left = self._ended_at + self._after_s - now
                    wanted = self._active if self._running else self._idle if left <= 0 else said or self._active
                    changed = wanted != said
                    if now >= ask_at or (changed and said):
                        break
                    waits = [ask_at - now] + ([] if self._running or left <= 0 else [left])
                    self._changed.wait(min(waits))
            self.trouble = self._tell(wanted, again=not changed)
            said = wanted if not (self.trouble and changed) else ""
            ask_at = time.monotonic() + (AGAIN_S if self.trouble else LOOK_S)

    def _tell(self, task_class: str, *, again: bool) -> str:
        """What went wrong, if anything did. What was said before is said `again` to another daemon alone: with this one
        somebody else may have said something since.
        """
        try:
            with Client.open(patience_s=PATIENCE_S) as client:
                status = client.status()
                daemon = status.pid, status.started_s
                if again and daemon == self._told:
                    return ""
                try:
                    client.set(self._pid, {"class": task_class})
                except NoTargetError:  # nobody manages it yet, or it has not used a GPU yet
                    client.attach(self._pid, task_class, wait=True)
                self._told = daemon
        except (RunlistError, OSError) as error:
            return str(error)
        return ""
