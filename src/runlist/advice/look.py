"""Two looks at the tasks of a process, a moment apart."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from runlist.advice.observation import Observation, observe
from runlist.client import Client
from runlist.errors import NoPermissionError, NoTargetError
from runlist.proc.process import descendants, owner_of
from runlist.views.structs import TaskView

LOOK_S = 2.0
"""How long a process is looked at: idle time is known late, and requests may be rare."""
_FIRST = ("deadline", "latency")


def look(client: Client, pid: int, seconds: float = LOOK_S) -> list[Observation]:
    """What the tasks of a process and of all below it do. Raises NoTargetError where none is managed, NoPermissionError
    for a process of another user.
    """
    began = time.monotonic()
    before = {(task.pid, task.gpu): task for task in _named(client.ps(), pid)}
    if not before:
        raise _unmanaged(pid)
    time.sleep(max(0.0, began + seconds - time.monotonic()))
    gpus = {gpu.gpu: gpu for gpu in client.status().gpus}
    tasks, lasted = client.ps(), time.monotonic() - began
    both = [(before[task.pid, task.gpu], task) for task in tasks if (task.pid, task.gpu) in before]
    if not both:
        raise NoTargetError(f"process {pid} ended while it was looked at")
    return [
        observe(
            first,
            then,
            gpus.get(then.gpu),
            lasted,
            foreground=_is_foreground(then, tasks),
            turns_with=_turns_with(then, tasks),
        )
        for first, then in both
    ]


def _named(tasks: Sequence[TaskView], pid: int) -> list[TaskView]:
    below = {pid, *descendants([pid])[pid]}
    return [task for task in tasks if task.pid in below]


def _is_foreground(task: TaskView, tasks: Sequence[TaskView]) -> bool:
    """Whether others are to give way to it, as far as its user sees them."""
    if task.task_class in _FIRST:
        return True
    others = [other for other in tasks if other.gpu == task.gpu and not other.suspended]
    return task.task_class == "normal" and not any(other.task_class in _FIRST for other in others)


def _turns_with(task: TaskView, tasks: Sequence[TaskView]) -> int:
    """With how many others of the background it takes turns, as far as its user sees them."""
    if _is_foreground(task, tasks):
        return 0
    others = [other for other in tasks if other.gpu == task.gpu and not other.suspended and other.pid != task.pid]
    return sum(not _is_foreground(other, tasks) and other.pid not in task.together for other in others)


def _unmanaged(pid: int) -> NoTargetError | NoPermissionError:
    """The daemon's own words for it."""
    owner = owner_of(pid)
    if owner is None:
        return NoTargetError(f"process {pid} does not exist")
    if os.geteuid() not in (0, owner):
        return NoPermissionError(f"process {pid} belongs to user {owner}: only that user and root may look at it")
    return NoTargetError(f"process {pid} is not managed: attach it first (`runlist ps` lists those that are)")
