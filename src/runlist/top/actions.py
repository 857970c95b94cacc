"""The keys' actions on a task: each makes one request from the task's view."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from runlist.client import Client
from runlist.model import TaskClass
from runlist.model.limits import MAX_WEIGHT, MIN_WEIGHT
from runlist.views.structs import TaskView

WEIGHT_STEP = 1.25


@dataclass(frozen=True)
class Request:
    """A request to the daemon, and what it is about in a few words."""

    words: str
    send: Callable[[Client], list[TaskView]]


Action = Callable[[TaskView], Request]


def next_class(task: TaskView) -> Request:
    """Move a task to the next class, in their order; to `deadline` only if it has a deadline."""
    order = [one for one in TaskClass if one != TaskClass.DEADLINE or task.budget_us is not None]
    place = order.index(TaskClass(task.task_class)) if task.task_class in order else -1
    return _set(task, "class", order[(place + 1) % len(order)])


def heavier(task: TaskView) -> Request:
    """Raise a task's weight by a quarter, and by at least 1."""
    return _set(task, "weight", str(min(MAX_WEIGHT, max(task.weight + 1, round(task.weight * WEIGHT_STEP)))))


def lighter(task: TaskView) -> Request:
    """The reverse of `heavier`."""
    return _set(task, "weight", str(max(MIN_WEIGHT, min(task.weight - 1, round(task.weight / WEIGHT_STEP)))))


def suspend_or_resume(task: TaskView) -> Request:
    """Suspend a task; resume it where it is suspended."""
    if task.suspended:
        return Request("resumed", lambda client: client.resume(task.pid))
    return Request("suspended", lambda client: client.suspend(task.pid))


def _set(task: TaskView, key: str, value: str) -> Request:
    return Request(f"{key}={value}", lambda client: client.set(task.pid, {key: value}))
