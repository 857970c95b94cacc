"""The columns of tables of tasks and GPUs, for `ps`, `policy show` and `top`."""

from __future__ import annotations

import math
import pwd
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import msgspec

from runlist.model import DEFAULT_WEIGHT
from runlist.planes.control import Control
from runlist.planes.registry import controls
from runlist.text import printable
from runlist.units import duration, part_of, size
from runlist.views.cutting import cut_at_word
from runlist.views.fields import Kind, fields
from runlist.views.structs import GpuView, TaskView

NOTHING = "-"
"""The text of an empty cell."""

GAP = "  "
"""The text between two columns."""

_HEIGHTS = " ▁▂▃▄▅▆▇█"
_BARS, _SECONDS_PER_BAR = 20, 3
_WHY_IN_STATE = 22  # cells
_FIRST_LABELS = ("pod", "job", "unit", "workload", "container", "namespace")


class Column(msgspec.Struct, frozen=True):
    """A column: `text` of a view, right-aligned where it is a `number`.

    A table leaves the column out where every row has the `usual` text (None: it is always shown).
    """

    title: str
    text: Callable[[Any], str]
    usual: str | None = None
    number: bool = False


def percent(share: float) -> str:
    """A part of the GPU (0 to 1)."""
    return f"{100 * share:.1f} %"


def sparkline(history: Sequence[float], bars: int, per_bar: int) -> str:
    """Shares of the GPU (0 to 1, oldest first) as `bars` bars, each the mean of `per_bar` shares, the newest last."""
    span = bars * per_bar
    padded = ([0.0] * span + list(history))[-span:]
    means = [sum(padded[start : start + per_bar]) / per_bar for start in range(0, span, per_bar)]
    top = len(_HEIGHTS) - 1
    return "".join(_HEIGHTS[min(top, max(0, math.ceil(mean * top)))] for mean in means)


def state(task: TaskView) -> str:
    """The state of a task; where it waits, with the beginning of the policy's reason."""
    if not task.reached_by:
        return "out of reach"
    if task.suspended:
        return "suspended"
    if task.enabled:
        return "enabled"
    why = cut_at_word(printable(task.why.partition(":")[0].partition(",")[0]).strip(), _WHY_IN_STATE)
    return f"waiting ({why})" if why else "waiting"


def giving_way(gpu: GpuView) -> str:
    """How the background of a GPU gives way, and what that costs; empty where nobody does."""
    if not gpu.gives_way:
        return ""
    length = "" if gpu.gives_way_slice_us is None else f" {duration(round(gpu.gives_way_slice_us, -2))}"
    cost = "" if gpu.switches_share is None else f", switches {100 * gpu.switches_share:.0f} %"
    return printable(gpu.gives_way) + length + cost


@cache
def user_name(uid: int) -> str:
    """A user's name, or its number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _budget(task: TaskView) -> str:
    if task.budget_us is None or task.period_us is None:
        return NOTHING
    return f"{duration(task.budget_us)}/{duration(task.period_us)}"


def _p99(task: TaskView) -> str:
    if task.target_p99_us is None:
        return NOTHING
    measured = NOTHING if task.p99_us is None else duration(task.p99_us)
    return f"{measured} of {duration(task.target_p99_us)}"


def _slice(task: TaskView) -> str:
    """The slice in force; one that was set by hand also while it is not, as of a task that is off."""
    asked = task.timeslice_set_us
    if asked is not None:
        if task.enabled and task.timeslice_us not in (asked, None):  # as beside another at so short a one
            return f"{duration(task.timeslice_us or 0)} ({duration(asked)} set)"
        return f"{duration(asked)} (set)"
    return "default" if task.timeslice_us is None else duration(task.timeslice_us)


def _quota(task: TaskView) -> str:
    """The memory that a process holds, of its tree's limit, and whether the library is missing in it."""
    if task.memory_limit_bytes is None:
        return NOTHING
    held = part_of(task.memory_bytes or 0, task.memory_limit_bytes)
    return held if task.enforcement.startswith("memory") else f"{held} (not loaded)"


def _sms(task: TaskView) -> str:
    """The SMs that a client of MPS may use; nothing for a task that has them all in its turn."""
    if task.shares != "SMs":
        return NOTHING
    part = "" if task.sms_percent is None else f"{task.sms_percent:g} %"
    if task.sms is None:
        return part or "all"
    return f"{task.sms} ({part})" if part else str(task.sms)


def _kernel(task: TaskView) -> str:
    """What the kernel saw its process make; nothing where it does not tell."""
    if task.kernel_groups is None:
        return NOTHING
    engines = f"{task.kernel_compute} compute, {task.kernel_copy} copy"
    return f"{task.kernel_groups} groups, {task.kernel_channels} channels: {engines}"


def _labels(labels: Mapping[str, str]) -> str:
    """The labels of a rule, those first that tell tasks apart."""
    names = [name for name in _FIRST_LABELS if name in labels]
    return " ".join(f"{name}={labels[name]}" for name in [*names, *sorted(labels.keys() - set(names))])


_BY_UNIT: dict[str, Callable[[Any], str]] = {
    "bytes": size,
    "percent": lambda number: f"{number:g} %",
    "share": percent,
    "s": lambda seconds: f"{seconds:.1f} s",
    "1/s": lambda number: f"{number:.0f}",
    "µs": duration,
}


def _of(
    view: type[msgspec.Struct],
    title: str,
    name: str,
    usual: str | None = None,
    nothing: str = NOTHING,
    written: Callable[[Any], str] | None = None,
) -> Column:
    """The column of a field, in its unit; `nothing` for a missing value. Usage is missing without a source."""
    field = fields(view)[name]
    write = written or _BY_UNIT.get(field.unit, str)
    measured = field.unit in ("share", "s", "1/s")

    def text(row: Any) -> str:
        value = getattr(row, name)
        there = value is not None and (row.usage_source or not measured)
        return (printable(write(value)) if there else "") or nothing

    return Column(title, text, usual, number=field.kind is not Kind.LABEL)


_task = partial(_of, TaskView)
_gpu = partial(_of, GpuView)

_TASK = (
    _task("PID", "pid"), _task("USER", "user", written=user_name), _task("CLASS", "task_class"),
    _task("GPU", "gpu", written=lambda uuid: uuid.removeprefix("GPU-")[:8]),
    _task("WEIGHT", "weight", usual=str(DEFAULT_WEIGHT)), _task("CAP", "cap_percent", usual="max", nothing="max"),
    Column("DEADLINE", _budget, usual=NOTHING), Column("P99", _p99, usual=NOTHING),
    _task("SEGMENT", "segment", usual=NOTHING), Column("SLICE", _slice, number=True),
    _task("SHARE", "share_1s"),
    Column("LAST MINUTE", lambda task: sparkline(task.history, _BARS, _SECONDS_PER_BAR)),
    _task("MINUTE", "share_60s"), _task("MEMORY", "memory_bytes"), Column("QUOTA", _quota, usual=NOTHING, number=True),
    _task("OVERHEAD", "memory_overhead_bytes", usual=NOTHING), _task("REFUSED", "memory_refusals", usual="0"),
    _task("ENFORCED", "enforcement", usual=NOTHING), _task("CAP BY", "cap_by", usual=NOTHING),
    _task("REACHED BY", "reached_by", usual="own right"), _task("TURNS/S", "turns_per_s"), Column("STATE", state),
    _task("SOURCE", "usage_source"), _task("GROUPS", "groups"), _task("FIXED", "slices_put_back", usual="0"),
    Column("KERNEL SAW", _kernel, usual=NOTHING), _task("GROUP", "group", usual=NOTHING),
    Column("SMS", _sms, usual=NOTHING),
    _task("TOGETHER WITH", "together", usual=NOTHING, written=lambda pids: " ".join(map(str, pids))),
    _task("POLICY", "policy"), _task("RULE", "rule", usual=NOTHING),
    _task("WHY", "why", usual=NOTHING), _task("COMMAND", "command"),
    _task("LABELS", "labels", usual=NOTHING, written=_labels),
    _task("CONTAINER", "container", usual=NOTHING, written=lambda container: container[:12]),
)  # fmt: skip


def _control(row: Control) -> Column:
    return Column(row.name.upper(), lambda task: task.controls.get(row.name, row.default), usual=row.default)


_CONTROLS = tuple(map(_control, controls()))
CONTROL_TITLES = tuple(column.title for column in _CONTROLS)
"""Titles of the columns of the driver's controls."""

COLUMNS = {column.title: column for column in (*_TASK, *_CONTROLS)}
"""Of a task, by title."""

GPU_COLUMNS = (
    _gpu("GPU", "gpu"), _gpu("POLICY", "policy"), _gpu("TASKS", "tasks"), _gpu("SHARE", "share_1s"),
    _gpu("MINUTE", "share_60s"), _gpu("MEMORY", "memory_used_bytes"),
    _gpu("UNOWNED", "memory_unowned_bytes", usual=size(0), nothing=size(0)), _gpu("SIZE", "memory_size_bytes"),
    _gpu("HELD", "gpu_seconds_held"), _gpu("WORKED", "gpu_seconds_worked"), _gpu("SWITCHES", "switches"),
    _gpu("SUSPENDED", "suspensions"), _gpu("FIXED", "slices_put_back", usual="0"),
    _gpu("REFUSED", "memory_refusals", usual="0"), _gpu("LOST", "records_lost", usual="0"),
    Column("GIVES WAY", lambda gpu: giving_way(gpu) or NOTHING, usual=NOTHING), _gpu("SOURCE", "usage_source"),
)  # fmt: skip


def _words(title: str, name: str) -> Column:
    return Column(
        title,
        lambda rule: " ".join(f"{key}={printable(text)}" for key, text in getattr(rule, name).items()) or NOTHING,
        usual=NOTHING,
    )


RULE_COLUMNS = (
    Column("LINE", lambda rule: printable(rule.rule)),
    Column("PROCESSES", lambda rule: str(rule.processes), number=True),
    _words("ASKS", "asks"), _words("SETS", "sets"), _words("REFUSES", "refuses"), _words("LABELS", "labels"),
)  # fmt: skip


POLICY_MAP_COLUMNS = (
    Column("LINE", lambda entry: printable(entry.rule)),
    Column("CGROUP", lambda entry: printable(entry.cgroup) or NOTHING, usual=NOTHING),
    Column("USER", lambda entry: NOTHING if entry.user is None else str(entry.user), usual=NOTHING),
    Column("COMM", lambda entry: printable(entry.comm) or NOTHING, usual=NOTHING),
    _words("SETS", "sets"), _words("REFUSES", "refuses"),
    Column("STATE", lambda entry: printable(entry.state)),
)  # fmt: skip


def columns_of(*titles: str) -> list[Column]:
    """The columns of a task with these titles."""
    return [COLUMNS[title] for title in titles]


def chosen(columns: Iterable[Column], views: Sequence[msgspec.Struct]) -> list[Column]:
    """These columns, without those that have only the usual text."""
    return [
        column for column in columns if column.usual is None or any(column.text(view) != column.usual for view in views)
    ]
