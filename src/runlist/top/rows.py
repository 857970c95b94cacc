"""The rows of the screen: the columns that have room, the order of the tasks, and the line above them."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from runlist.model import TaskClass
from runlist.top.feed import Snapshot
from runlist.units import part_of
from runlist.views.columns import columns_of, giving_way, percent
from runlist.views.cutting import cut
from runlist.views.layout import Layout, fit
from runlist.views.structs import TaskView

_SHOWN = columns_of(
    "PID", "USER", "GPU", "CLASS", "WEIGHT", "CAP", "SLICE", "SMS", "SHARE", "LAST MINUTE", "MEMORY", "TURNS/S",
    "STATE", "SOURCE", "COMMAND",
)  # fmt: skip

(_WHY,) = columns_of("WHY")
_SEARCHED = columns_of("PID", "USER", "GPU", "CLASS", "STATE", "GROUP", "LABELS", "COMMAND")
_BAR, _SHORTEST_BAR, _BESIDE_BARS = 24, 4, 37  # cells
_REASON_LINES = 2
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
    idle = {"GPU"} if len({task.gpu for task in tasks}) <= 1 else set()  # where they tell nothing
    idle |= set() if any(task.shares == "SMs" for task in tasks) else {"SMS"}
    columns = [column for column in _SHOWN if column.title not in idle]
    return fit(columns, tasks, width - _MARGINS)


def matching(tasks: Sequence[TaskView], text: str) -> list[TaskView]:
    """The tasks that have a text in what is shown of them, or in their labels, in either case."""
    wanted = text.casefold()
    return [task for task in tasks if any(wanted in column.text(task).casefold() for column in _SEARCHED) or not wanted]


def gpu_bars(snapshot: Snapshot, width: int, height: int) -> list[str]:
    """A line for each GPU with its time and its memory in use, and how the background gives way on it; in a quarter of
    a screen at most. Where there is no room, bars go first.
    """
    gpus = snapshot.status.gpus if snapshot.status is not None else []
    ways = [giving_way(gpu) for gpu in gpus]
    length = min(_BAR, (width - _BESIDE_BARS - max((len(way) + 2 for way in ways if way), default=0)) // 2)
    length = length if length >= _SHORTEST_BAR else 0
    rows = []
    for gpu, way in zip(gpus, ways, strict=True):
        line = f"{gpu.gpu.removeprefix('GPU-')[:8]:<8}  {_bar(gpu.share_1s, length)} {percent(gpu.share_1s):>7}"
        if gpu.memory_size_bytes:
            used = gpu.memory_used_bytes or 0
            line += f"  {_bar(used / gpu.memory_size_bytes, length)} {part_of(used, gpu.memory_size_bytes)}"
        if way:
            line += f"  {way}"
        rows.append(cut(line, max(0, width - 2)))
    room = height // 4 - 1
    return rows if len(rows) <= room else [*rows[: max(0, room - 1)], f"and {len(rows) - room + 1} GPUs more"][:room]


def reason(task: TaskView, width: int) -> str:
    """Why a task has its share, in a line or two."""
    if not task.why:
        return ""
    text = f"process {task.pid}: {_WHY.text(task)}"
    return "\n".join(textwrap.wrap(text, max(8, width - 2), max_lines=_REASON_LINES, placeholder=" …"))


def _bar(part: float, length: int) -> str:
    full = max(0, min(length, round(part * length)))
    return "█" * full + "░" * (length - full)


def headline(snapshot: Snapshot, order: str, text: str = "") -> str:
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
        *([f"only {text!r}"] if text else []),
        f"daemon {status.pid} ({status.driver}, {status.version})",
    ]
    if waiting := len(status.waiting) + status.others_waiting:
        parts.insert(1, f"{waiting} waiting for room")
    return " · ".join(parts)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
