"""Snapshots of what the daemon knows; the daemon may go away and come back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from runlist.client import Client, DaemonGone
from runlist.errors import RunlistError
from runlist.top.actions import Action, Request
from runlist.views.structs import DaemonView, TaskView


class Key(NamedTuple):
    """Which task: process id and GPU."""

    pid: int
    gpu: str

    @classmethod
    def of(cls, task: TaskView) -> Key:
        """The key of a task."""
        return cls(task.pid, task.gpu)


@dataclass(frozen=True)
class Snapshot:
    """The daemon's knowledge at one moment. Without a daemon there is no `status`, and no task.

    `message` is the latest news, `trouble` whether it is bad.
    """

    tasks: tuple[TaskView, ...] = ()
    status: DaemonView | None = None
    message: str = ""
    trouble: bool = False


Step = Callable[[], Snapshot]
"""One use of the feed."""

_CHANGES_KEPT = 100  # that can be taken back


class Feed:
    """A connection to the daemon that is made anew when it breaks. For one thread at a time.

    Methods block for as long as the clients that `open_client` makes have patience, return what is known then, and
    raise nothing of the daemon's.
    """

    def __init__(self, open_client: Callable[[], Client]) -> None:
        self._open_client = open_client
        self._client: Client | None = None
        self._last = Snapshot()
        self._undo: list[tuple[Key, Request]] = []

    def look(self) -> Snapshot:
        """Ask for everything."""
        try:
            client = self._connected()
            status, tasks = client.status(), client.ps()
        except (RunlistError, OSError) as error:
            return self._lost(error)
        self._last = replace(self._last, tasks=tuple(tasks), status=status)
        return self._last

    def act(self, key: Key, action: Action) -> Snapshot:
        """Do something to a task as it was last seen."""
        task = next((task for task in self._last.tasks if Key.of(task) == key), None)
        if task is None:
            return self._say(f"process {key.pid} is not managed any more", trouble=True)
        request = action(task)
        done = self._send(key, request, " (u takes it back)")
        if not done.trouble and request.back is not None:
            self._undo = [*self._undo[1 - _CHANGES_KEPT :], (key, request.back)]
        return done

    def undo(self) -> Snapshot:
        """Take the last change back, and the one before it the next time."""
        if not self._undo:
            return self._say("there is nothing to take back")
        key, request = self._undo.pop()
        if not any(Key.of(task) == key for task in self._last.tasks):
            return self._say(f"process {key.pid} is not managed any more: nothing to take back there", trouble=True)
        return self._send(key, request)

    def _send(self, key: Key, request: Request, remark: str = "") -> Snapshot:
        try:
            changed = request.send(self._connected())
        except DaemonGone as error:
            return self._lost(error)
        except (RunlistError, OSError) as error:
            return self._say(str(error), trouble=True)
        news = {Key.of(task): task for task in changed}
        tasks = tuple(news.get(Key.of(task), task) for task in self._last.tasks)
        self._last = replace(self._last, tasks=tasks)
        return self._say(f"process {key.pid}: {request.words}{remark}")

    def close(self) -> None:
        """Hang up."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connected(self) -> Client:
        if self._client is None:
            self._client = self._open_client()
            if self._last.trouble:
                self._say("connected to a daemon again")
        return self._client

    def _lost(self, error: Exception) -> Snapshot:
        self.close()
        self._last = Snapshot(message=f"{error}; looking again", trouble=True)
        return self._last

    def _say(self, message: str, *, trouble: bool = False) -> Snapshot:
        self._last = replace(self._last, message=message, trouble=trouble)
        return self._last
