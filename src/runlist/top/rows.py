"""The rows of the screen: the columns that have room, the order of the tasks, and the line above them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from runlist.model import TaskClass
from runlist.top.feed import Snapshot
from runlist.views.columns import columns_of
from runlist.views.layout import Layout, fit
from runlist.views.structs import TaskView

_SHOWN = columns_of(
    "PID", "USER", "GPU", "CLASS", "WEIGHT", "CAP", "SLICE", "SHARE", "LAST MINUTE", "MEMORY", "TURNS/S", "STATE",
    "SOURCE", "COMMAND",
)  # fmt: skip

_MARGINS = 2  # of a cell

_CLASSES = [str(one) for one in TaskClass]

ORDERS: dict[str, Callable[[TaskView], Any]] = {
    "share": lambda task: -task.share_1s,
    "pid": lambda task: task.pid,
    "class": lambda task: _CLASSES.index(task.task_class) if task.task_class in _CLASSES else len(_CLASSES),
    "weight": lambda task: -task.weight,
    "memory": lambda task: -(task.memory_bytes or 0),
    "turns": lambda task: -task.turns_per_s,
    "command": lambda task: task.command,
}
"""Sort keys by name; among equals process id and GPU decide."""


def next_order(name: str) -> str:
    """The order after this one."""
    names = list(ORDERS)
    return names[(names.index(name) + 1) % len(names)]


def in_order(tasks: Sequence[TaskView], name: str) -> list[TaskView]:
    """The tasks, sorted."""
    return sorted(tasks, key=lambda task: (ORDERS[name](task), task.pid, task.gpu))


def fitting(tasks: Sequence[TaskView], width: int) -> Layout:
    """The columns that a screen of `width` has room for."""
    columns = [column for column in _SHOWN if column.title != "GPU" or len({task.gpu for task in tasks}) > 1]
    return fit(columns, tasks, width - _MARGINS)


def headline(snapshot: Snapshot, order: str) -> str:
    """One line on the whole."""
    status = snapshot.status
    if status is None:
        return "no daemon"
    gpus = len({task.gpu for task in snapshot.tasks})
    options = "".join(f" {name}={value}" for name, value in sorted(status.policy_options.items()))
    parts = [
        f"{_count(len(snapshot.tasks), 'task')} on {_count(gpus, 'GPU')}" if gpus else "no tasks",
        f"policy {status.policy}{options}",
        f"sorted by {order}",
        f"daemon {status.pid} ({status.driver}, {status.version})",
    ]
    if waiting := len(status.waiting) + status.others_waiting:
        parts.insert(1, f"{waiting} waiting for room")
    return " · ".join(parts)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
