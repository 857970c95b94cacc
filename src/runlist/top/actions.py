"""The keys' actions on a task: each makes one request from the task's view, and the request that takes it back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from runlist.client import Client
from runlist.model import TaskClass
from runlist.model.limits import MAX_WEIGHT, MIN_WEIGHT
from runlist.views.structs import TaskView

WEIGHT_STEP = 1.25
NONE = "max"
"""The word for no cap and for no memory limit."""


@dataclass(frozen=True)
class Request:
    """A request to the daemon, what it is about in a few words, and what takes it back: None for no change at all."""

    words: str
    send: Callable[[Client], list[TaskView]]
    back: Request | None = None


Action = Callable[[TaskView], Request]


def next_class(task: TaskView) -> Request:
    """Move a task to the next class, in their order; to `deadline` only if it has a deadline, which ends with that
    class: what takes it back gives both.
    """
    order = [one for one in TaskClass if one != TaskClass.DEADLINE or task.budget_us is not None]
    place = order.index(TaskClass(task.task_class)) if task.task_class in order else -1
    to = order[(place + 1) % len(order)]
    if task.task_class == TaskClass.DEADLINE and task.budget_us is not None:
        return _set(task, "class", to, f"{task.budget_us}us/{task.period_us}us", "deadline")
    return _set(task, "class", to, task.task_class)


def heavier(task: TaskView) -> Request:
    """Raise a task's weight by a quarter, and by at least 1."""
    new = min(MAX_WEIGHT, max(task.weight + 1, round(task.weight * WEIGHT_STEP)))
    return _set(task, "weight", str(new), str(task.weight))


def lighter(task: TaskView) -> Request:
    """The reverse of `heavier`."""
    new = max(MIN_WEIGHT, min(task.weight - 1, round(task.weight / WEIGHT_STEP)))
    return _set(task, "weight", str(new), str(task.weight))


def suspend_or_resume(task: TaskView) -> Request:
    """Suspend a task; resume it where it is suspended."""
    resume = Request("resumed", lambda client: client.resume(task.pid))
    suspend = Request("suspended", lambda client: client.suspend(task.pid))
    first, second = (resume, suspend) if task.suspended else (suspend, resume)
    return Request(first.words, first.send, second)


def cap(task: TaskView) -> str:
    """A task's cap, as one may give it again. (A period of its own is not part of the view.)"""
    return NONE if task.cap_percent is None else f"{task.cap_percent:g}%"


def memory(task: TaskView) -> str:
    """The memory limit of a task's tree, likewise."""
    return NONE if task.memory_limit_bytes is None else str(task.memory_limit_bytes)


def set_cap(value: str, task: TaskView) -> Request:
    """Cap a task at what somebody typed."""
    return _set(task, "cap", value, cap(task))


def set_memory(value: str, task: TaskView) -> Request:
    """Limit the memory of a task's tree, likewise."""
    return _set(task, "memory", value, memory(task))


def _set(task: TaskView, key: str, value: str, old: str, old_key: str = "") -> Request:
    pid = task.pid
    back = old_key or key

    def send(name: str, to: str, client: Client) -> list[TaskView]:
        return client.set(pid, {name: to})

    undo = Request(f"{back}={old} again", partial(send, back, old))
    return Request(f"{key}={value}", partial(send, key, value), undo)
