"""The settings of `runlist set PID key=value`, of `runlist run` and `attach`, and of rules: one table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from runlist.errors import UsageError
from runlist.model import MAX_TIMESLICE_US, Cap, Deadline, Task, TaskClass, TaskKey, check_weight
from runlist.planes.interface import Context
from runlist.planes.nvidia.context import Setting
from runlist.planes.nvidia.rm.commands import Interleave
from runlist.units import parse_size

MAX_GROUP_NAME = 1024
MAX_DURATION_US = 86_400e6
"""A day: longer than any use."""


@dataclass(frozen=True)
class TaskChange:
    """A change to what the policy sees. `change` raises UsageError when it does not fit the task's other settings."""

    change: Callable[[Task], Task]


@dataclass(frozen=True)
class ContextChange:
    """A change made in the driver, to every context of a task. `value` and `default` are words of the setting.

    `privileged`: the driver asks for root or CAP_SYS_NICE, so a daemon that has it does this for root alone.
    """

    setting: Setting
    value: str
    default: str
    act: Callable[[Context, str], None]
    privileged: bool


@dataclass(frozen=True)
class MemoryChange:
    """A change to what all processes of a tree together may hold on each GPU, in bytes; None is no limit."""

    limit: int | None


Change = TaskChange | ContextChange | MemoryChange

NO_SETTINGS = Task(TaskKey(0, ""), TaskClass.NORMAL, "", 0, 0.0)
"""A task of which nothing was asked yet."""


def parse_settings(settings: Mapping[str, str], onto: Task = NO_SETTINGS) -> list[Change]:
    """Changes for a whole mapping, in the order in which they are to be applied.

    They are tried on the task `onto`, so that settings that do not go together are refused here: pass the task as it
    is when it has settings already. Raises UsageError, saying what is allowed.
    """
    for key in settings:
        _check_key(key)
    changes = [parse_setting(key, settings[key]) for key in _SETTINGS if key in settings]
    apply_changes(changes, onto)
    return changes


def parse_setting(key: str, value: str) -> Change:
    """One `key=value`. Raises UsageError, saying what is allowed."""
    _check_key(key)
    return _SETTINGS[key](value)


def apply_changes(changes: Iterable[Change], task: Task) -> Task:
    """The task as the policy is to see it. Raises UsageError where a change does not go with the others."""
    for change in changes:
        if isinstance(change, TaskChange):
            task = change.change(task)
    return task


def memory_change(changes: Iterable[Change]) -> MemoryChange | None:
    """What changes say of memory; None where they say nothing."""
    return next((change for change in changes if isinstance(change, MemoryChange)), None)


def override(settings: Mapping[str, str], stronger: Mapping[str, str]) -> dict[str, str]:
    """Settings overlaid by stronger ones, which take along what belongs to them: a new class ends a deadline, a
    deadline is a class, and a new cap has the burst that is given with it.
    """
    dropped = set()
    if stronger.get("class", TaskClass.DEADLINE).lower() != TaskClass.DEADLINE:
        dropped.add("deadline")
    if not _is_none(stronger.get("deadline", "none")):
        dropped.add("class")
    if "cap" in stronger:
        dropped.add("burst")
    return {**{key: value for key, value in settings.items() if key not in dropped}, **stronger}


def parse_class(text: str) -> TaskClass:
    """A class by name. Raises UsageError."""
    return TaskClass(_one_of("class", text, [member.value for member in TaskClass]))


_DURATION = re.compile(r"(\d{1,15}(?:\.\d{1,15})?) ?(us|µs|μs|ms|s)", re.ASCII)
_UNIT_US = {"us": 1.0, "µs": 1.0, "μs": 1.0, "ms": 1e3, "s": 1e6}


def parse_duration_us(key: str, text: str) -> float:
    """Microseconds of a number with a unit; `key` is what the error line calls it. Raises UsageError."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{key}={_shown(text)}: take a number and a unit: 500us, 5ms or 2s")
    microseconds = float(match[1]) * _UNIT_US[match[2]]
    if microseconds > MAX_DURATION_US:
        raise UsageError(f"{key}={_shown(text)}: take a day at most")
    return microseconds


def _check_key(key: str) -> None:
    if key not in _SETTINGS:
        raise UsageError(f"no setting {_shown(key)!r}: take {', '.join(_SETTINGS)}")


def _shown(text: str) -> str:
    """A bad value as an error line can show it: short, and on one line."""
    shown = "".join(character if character.isprintable() else "?" for character in text)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def _one_of(key: str, value: str, allowed: list[str]) -> str:
    if value.lower() not in allowed:
        raise UsageError(f"{key}={_shown(value)}: take {', '.join(allowed)}")
    return value.lower()


def _whole(key: str, value: str, wanted: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise UsageError(f"{key}={_shown(value)}: take {wanted}") from None


def _is_none(value: str) -> bool:
    return value.strip().lower() == "none"


# -- one function per setting ----------------------------------------------------------------------


def _class(value: str) -> TaskChange:
    task_class = parse_class(value)

    def change(task: Task) -> Task:
        deadline = task.deadline if task_class is TaskClass.DEADLINE else None
        return replace(task, task_class=task_class, deadline=deadline)

    return TaskChange(change)


def _weight(value: str) -> TaskChange:
    weight = _whole("weight", value, "a whole number, 1 to 10000 (100 is what everybody has)")
    try:
        check_weight(weight)
    except ValueError as error:
        raise UsageError(f"weight={_shown(value)}: {error}") from None
    return TaskChange(lambda task: replace(task, weight=weight))


_PERCENT = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?%?", re.ASCII)
_BANDWIDTH = re.compile(r"(\d{1,15}) +(\d{1,15})", re.ASCII)
_UNCAPPED = re.compile(r"max(?: +\d+)?", re.ASCII | re.IGNORECASE)


def _cap(value: str) -> TaskChange:
    """Percent, or quota and period in µs as in cpu.max. A burst that the task has stays, as in cpu.max.burst."""
    text = value.strip()
    new: Cap | None = None
    try:
        if (percent := _PERCENT.fullmatch(text)) is not None:
            new = Cap.of_percent(float(percent[1]))
        elif (bandwidth := _BANDWIDTH.fullmatch(text)) is not None:
            new = Cap(int(bandwidth[1]), int(bandwidth[2]))
        elif _UNCAPPED.fullmatch(text) is None:
            raise ValueError('take a percentage (30 or 30%), "QUOTA PERIOD" in µs ("30000 100000"), or max for no cap')
    except ValueError as error:
        raise UsageError(f"cap={_shown(value)}: {error}") from None

    def change(task: Task) -> Task:
        if new is None or task.cap is None or task.cap.burst_us == 0:
            return replace(task, cap=new)
        try:
            return replace(task, cap=replace(new, burst_us=task.cap.burst_us))
        except ValueError as error:
            raise UsageError(f"cap={_shown(value)}: {error}: give a smaller burst with it") from None

    return TaskChange(change)


def _burst(value: str) -> TaskChange:
    burst_us = 0 if _is_none(value) or value.strip() == "0" else round(parse_duration_us("burst", value))

    def change(task: Task) -> Task:
        if task.cap is None:
            if burst_us == 0:
                return task
            raise UsageError(f"burst={_shown(value)}: a burst goes with a cap: give cap, too")
        try:
            return replace(task, cap=replace(task.cap, burst_us=burst_us))
        except ValueError as error:
            raise UsageError(f"burst={_shown(value)}: {error}") from None

    return TaskChange(change)


def _deadline(value: str) -> TaskChange:
    """A deadline is also a class: with one comes the class of that name, without one the task is a normal one."""
    if _is_none(value):
        return TaskChange(_without_deadline)
    budget, slash, period = value.partition("/")
    if not slash:
        raise UsageError(f"deadline={_shown(value)}: take BUDGET/PERIOD, such as 5ms/20ms, or none")
    budget_us, period_us = parse_duration_us("deadline", budget), parse_duration_us("deadline", period)
    try:
        deadline = Deadline(round(budget_us), round(period_us))
    except ValueError as error:
        raise UsageError(f"deadline={_shown(value)}: {error}") from None
    return TaskChange(lambda task: replace(task, task_class=TaskClass.DEADLINE, deadline=deadline))


def _without_deadline(task: Task) -> Task:
    task_class = TaskClass.NORMAL if task.task_class is TaskClass.DEADLINE else task.task_class
    return replace(task, task_class=task_class, deadline=None)


def _p99(value: str) -> TaskChange:
    target_us = None if _is_none(value) else parse_duration_us("p99", value)
    if target_us == 0:
        raise UsageError(f"p99={_shown(value)}: take more than 0, or none")
    return TaskChange(lambda task: replace(task, target_p99_us=target_us))


def _group(value: str) -> TaskChange:
    """A group of the task's user. No white space: names of ours ("pid 5") have it, so that nobody can take one."""
    if not value or len(value) > MAX_GROUP_NAME or not value.isprintable() or " " in value:
        raise UsageError(f"group={_shown(value)}: take a name of 1 to {MAX_GROUP_NAME} characters, no spaces, or none")
    name = "" if _is_none(value) else value
    return TaskChange(lambda task: replace(task, group=name, group_of=task.uid))


def _timeslice(value: str) -> TaskChange:
    microseconds: int | None = None
    if value.lower() != "auto":
        microseconds = _whole("timeslice", value, "whole microseconds, or auto for what the policy says")
        if not 1 <= microseconds <= MAX_TIMESLICE_US:
            raise UsageError(f"timeslice={_shown(value)}: take 1 to {MAX_TIMESLICE_US} (µs)")
    return TaskChange(lambda task: replace(task, timeslice_us=microseconds))


def _memory(value: str) -> MemoryChange:
    if value.strip().lower() in ("max", "none"):
        return MemoryChange(None)
    size = parse_size(value)
    if size is None:
        raise UsageError(f"memory={_shown(value)}: take a size, such as 8G, 512M, 1.5GiB or bytes, or max for no limit")
    return MemoryChange(size or None)


def _words(
    setting: Setting,
    words: Mapping[str, int],
    default: str,
    *,
    privileged: bool = False,
) -> Callable[[str], ContextChange]:
    def parse(value: str) -> ContextChange:
        word = _one_of(setting.value, value, list(words))
        return ContextChange(
            setting, word, default, lambda context, which: context.set_control(setting, which), privileged
        )

    return parse


# In the order in which they are applied: a burst needs its cap, and a deadline says more than a class.
_SETTINGS: dict[str, Callable[[str], Change]] = {
    "class": _class,
    "weight": _weight,
    "cap": _cap,
    "burst": _burst,
    "deadline": _deadline,
    "p99": _p99,
    "group": _group,
    "memory": _memory,
    "timeslice": _timeslice,
    Setting.INTERLEAVE.value: _words(
        Setting.INTERLEAVE,
        {level.name.lower(): level for level in Interleave},
        "low",
        privileged=True,
    ),
}
