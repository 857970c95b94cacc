"""What can be shown of a task: one table of columns, from which `ps`, `policy show` and `top` take theirs."""

from __future__ import annotations

import math
import pwd
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from runlist.model import DEFAULT_WEIGHT
from runlist.planes.interface import Control
from runlist.planes.registry import controls
from runlist.units import duration, part_of, size
from runlist.wire import TaskView

NOTHING = "-"
"""What stands where there is nothing to say."""

GAP = "  "
"""What stands between two columns."""

_BARS = " ▁▂▃▄▅▆▇█"
_WHY_IN_STATE = 20  # characters


@dataclass(frozen=True)
class Column:
    """A column: `text` of a task, right-aligned where it is a `number`.

    A table leaves the column out where every task has what is `usual` (None: it is always shown).
    """

    title: str
    text: Callable[[TaskView], str]
    usual: str | None = None
    number: bool = False


def percent(share: float) -> str:
    """A part of the GPU (0 to 1)."""
    return f"{100 * share:.1f} %"


def printable(text: str) -> str:
    """Text without what could move a terminal's cursor: processes choose their own command lines."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def sparkline(history: Sequence[float], bars: int, per_bar: int) -> str:
    """Shares of the GPU (0 to 1, oldest first) as so many bars, each the mean of so many shares, the newest last."""
    span = bars * per_bar
    padded = ([0.0] * span + list(history))[-span:]
    means = [sum(padded[start : start + per_bar]) / per_bar for start in range(0, span, per_bar)]
    top = len(_BARS) - 1
    return "".join(_BARS[min(top, max(0, math.ceil(mean * top)))] for mean in means)


def state(task: TaskView) -> str:
    """What a task does now: where it waits and the policy says why, with the heading of that."""
    if not task.reached_by:
        return "out of reach"
    if task.suspended:
        return "suspended"
    if task.enabled:
        return "enabled"
    why = printable(task.why.partition(":")[0].partition(",")[0])[:_WHY_IN_STATE].strip()
    return f"waiting ({why})" if why else "waiting"


@cache
def user_name(uid: int) -> str:
    """A user's name, or its number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _deadline(task: TaskView) -> str:
    if task.budget_us is None or task.period_us is None:
        return NOTHING
    return f"{duration(task.budget_us)}/{duration(task.period_us)}"


def _p99(task: TaskView) -> str:
    if task.target_p99_us is None:
        return NOTHING
    measured = NOTHING if task.p99_us is None else duration(task.p99_us)
    return f"{measured} of {duration(task.target_p99_us)}"


def _quota(task: TaskView) -> str:
    """What a process holds of what its tree may hold, and whether nothing in it sees to that."""
    if task.memory_limit_bytes is None:
        return NOTHING
    held = part_of(task.memory_bytes or 0, task.memory_limit_bytes)
    return held if task.enforcement.startswith("memory") else f"{held} (not loaded)"


def _overhead(task: TaskView) -> str:
    return NOTHING if task.memory_overhead_bytes is None else size(task.memory_overhead_bytes)


def _measured(task: TaskView, text: str) -> str:
    """A figure of usage, where there is a source of usage."""
    return text if task.usage_source else NOTHING


_ALL = (
    Column("PID", lambda task: str(task.pid)),
    Column("USER", lambda task: user_name(task.user)),
    Column("GPU", lambda task: task.gpu.removeprefix("GPU-")[:8]),
    Column("CLASS", lambda task: task.task_class),
    Column("WEIGHT", lambda task: str(task.weight), usual=str(DEFAULT_WEIGHT), number=True),
    Column("CAP", lambda task: "max" if task.cap_percent is None else f"{task.cap_percent:g} %", "max", number=True),
    Column("DEADLINE", _deadline, usual=NOTHING),
    Column("P99", _p99, usual=NOTHING),
    Column("SEGMENT", lambda task: NOTHING if task.segment is None else str(task.segment), usual=NOTHING),
    Column("SLICE", lambda task: "default" if task.timeslice_us is None else duration(task.timeslice_us), number=True),
    Column("SHARE", lambda task: _measured(task, percent(task.share_1s)), number=True),
    Column("MINUTE", lambda task: _measured(task, percent(task.share_60s)), number=True),
    Column("MEMORY", lambda task: NOTHING if task.memory_bytes is None else size(task.memory_bytes), number=True),
    Column("QUOTA", _quota, usual=NOTHING, number=True),
    Column("OVERHEAD", _overhead, usual=NOTHING, number=True),
    Column("ENFORCED", lambda task: printable(task.enforcement) or NOTHING, usual=NOTHING),
    Column("CAP BY", lambda task: task.cap_by or NOTHING, usual=NOTHING),
    Column("REACHED BY", lambda task: task.reached_by or NOTHING, usual="own right"),
    Column("TURNS/S", lambda task: _measured(task, f"{task.turns_per_s:.0f}"), number=True),
    Column("STATE", state),
    Column("SOURCE", lambda task: task.usage_source or NOTHING),
    Column("GROUPS", lambda task: str(task.groups), number=True),
    Column("FIXED", lambda task: str(task.corrections), usual="0", number=True),
    Column("GROUP", lambda task: printable(task.group) or NOTHING, usual=NOTHING),
    Column("POLICY", lambda task: task.policy),
    Column("RULE", lambda task: printable(task.rule) or NOTHING, usual=NOTHING),
    Column("WHY", lambda task: printable(task.why) or NOTHING, usual=NOTHING),
    Column("COMMAND", lambda task: printable(task.command)),
)


def _of_control(row: Control) -> Column:
    return Column(row.name.upper(), lambda task: task.controls.get(row.name, row.default), usual=row.default)


_CONTROLS = [_of_control(row) for row in controls()]
CONTROL_TITLES = tuple(column.title for column in _CONTROLS)
"""What can be shown of the driver's own controls."""

COLUMNS = {column.title: column for column in (*_ALL, *_CONTROLS)}


def chosen(titles: Iterable[str], tasks: Sequence[TaskView]) -> list[Column]:
    """The columns of these titles, without those in which there is nothing but the usual."""
    columns = [COLUMNS[title] for title in titles]
    return [
        column for column in columns if column.usual is None or any(column.text(task) != column.usual for task in tasks)
    ]


def aligned(columns: Sequence[Column], tasks: Sequence[TaskView]) -> list[str]:
    """Lines of a table: the titles, then the tasks in the order given."""
    rows = [[column.title for column in columns], *([column.text(task) for column in columns] for task in tasks)]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return [
        GAP.join(
            text.rjust(size) if column.number else text.ljust(size)
            for column, text, size in zip(columns, row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]
