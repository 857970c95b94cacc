"""Reading the values of settings: a function for each, which raises ValueError with what is allowed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from runlist.model import MAX_TIMESLICE_US, Cap, Deadline, Task, TaskClass, check_weight
from runlist.settings.changes import MemoryChange, TaskChange
from runlist.units import duration, parse_duration_us, parse_size, size

MAX_GROUP_NAME = 1024
LEAST_MEMORY = 2 << 20
"""Bytes: the driver gives memory in pieces of this size."""
MAX_DURATION_US = 86_400e6
"""A day: longer than any use."""

_WHOLE = re.compile(r"[+-]?\d{1,3}(?:_?\d{1,3}){0,4}", re.ASCII)
_PERCENT = re.compile(r"(\d{1,9}(?:\.\d{1,20})?) ?%?", re.ASCII)
_BANDWIDTH = re.compile(r"(\d{1,15}) +(\d{1,15})", re.ASCII)
_UNCAPPED = re.compile(r"max(?: +\d+)?", re.ASCII | re.IGNORECASE)


def is_none(value: str) -> bool:
    """Whether a value is the word `none`."""
    return value.strip().lower() == "none"


def one_of(value: str, allowed: Sequence[str]) -> str:
    """The value, in small letters."""
    if value.lower() not in allowed:
        raise ValueError(f"take {', '.join(allowed)}")
    return value.lower()


def _duration_us(text: str) -> float:
    microseconds = parse_duration_us(text)
    if microseconds is None:
        raise ValueError("take a number and a unit: 500us, 5ms or 2s")
    if microseconds > MAX_DURATION_US:
        raise ValueError("take a day at most")
    return microseconds


def _part_us(text: str) -> tuple[int, int]:
    """`5ms/20ms`: a part and its whole, in whole µs."""
    part, _, whole = text.partition("/")
    return round(_duration_us(part)), round(_duration_us(whole))


def task_class(value: str) -> TaskChange:
    """A class by name. Any other than the deadline class ends a deadline."""
    found = TaskClass(one_of(value, list(TaskClass)))

    def change(task: Task) -> Task:
        return replace(task, task_class=found, deadline=task.deadline if found is TaskClass.DEADLINE else None)

    return TaskChange(change)


def weight(value: str) -> TaskChange:
    """A whole number."""
    if _WHOLE.fullmatch(value.strip()) is None:
        raise ValueError("take a whole number, 1 to 10000 (100 is what everybody has)")
    number = check_weight(int(value.strip()))
    return TaskChange(lambda task: replace(task, weight=number))


def cap(value: str) -> TaskChange:
    """Percent, quota and period, or none. A burst that the task has stays, as in cpu.max.burst."""
    new = _cap(value.strip())

    def change(task: Task) -> Task:
        try:
            return replace(task, cap=new and replace(new, burst_us=task.cap.burst_us if task.cap else 0))
        except ValueError as error:
            raise ValueError(f"{error}: give a smaller burst with it") from None

    return TaskChange(change)


def _cap(text: str) -> Cap | None:
    if (percent := _PERCENT.fullmatch(text)) is not None:
        return Cap.of_percent(float(percent[1]))
    if (bandwidth := _BANDWIDTH.fullmatch(text)) is not None:
        return Cap(int(bandwidth[1]), int(bandwidth[2]))
    if "/" in text:
        return Cap(*_part_us(text))
    if _UNCAPPED.fullmatch(text) is None:
        raise ValueError('take a percentage (30 or 30%), 30ms/100ms, "30000 100000" in µs, or max for no cap')
    return None


def burst(value: str) -> TaskChange:
    """A duration, or none. It goes with a cap."""
    burst_us = 0 if is_none(value) or value.strip() == "0" else round(_duration_us(value))

    def change(task: Task) -> Task:
        if task.cap is None:
            if burst_us == 0:
                return task
            raise ValueError("a burst goes with a cap: give cap, too")
        return replace(task, cap=replace(task.cap, burst_us=burst_us))

    return TaskChange(change)


def deadline(value: str) -> TaskChange:
    """A deadline, which also sets the class of that name; without one the task becomes a normal one."""
    if is_none(value):
        return TaskChange(_without_deadline)
    if "/" not in value:
        raise ValueError("take BUDGET/PERIOD, such as 5ms/20ms, or none")
    new = Deadline(*_part_us(value))
    return TaskChange(lambda task: replace(task, task_class=TaskClass.DEADLINE, deadline=new))


def _without_deadline(task: Task) -> Task:
    was = task.task_class
    return replace(task, task_class=TaskClass.NORMAL if was is TaskClass.DEADLINE else was, deadline=None)


def p99(value: str) -> TaskChange:
    """A duration, or none."""
    target_us = None if is_none(value) else _duration_us(value)
    if target_us == 0:
        raise ValueError("take more than 0, or none")
    return TaskChange(lambda task: replace(task, target_p99_us=target_us))


def group(value: str) -> TaskChange:
    """A group of the task's user. White space is for our own names ("pid 5"), so that nobody can take one."""
    if not value or len(value) > MAX_GROUP_NAME or not value.isprintable() or " " in value:
        raise ValueError(f"take a name of 1 to {MAX_GROUP_NAME} characters, no spaces, or none")
    name = "" if is_none(value) else value
    return TaskChange(lambda task: replace(task, group=name, group_of=task.uid))


def memory(value: str) -> MemoryChange:
    """A size, or none."""
    if value.strip().lower() in ("max", "none"):
        return MemoryChange(None)
    limit = parse_size(value)
    if limit is None:
        raise ValueError("take a size, such as 8G, 512M, 1.5GiB or bytes, or max for no limit")
    if limit < LEAST_MEMORY:
        raise ValueError(f"{size(limit)} let no program use a GPU: give the unit, as in 8G, or max for no limit")
    return MemoryChange(limit)


def timeslice(value: str) -> TaskChange:
    """A duration or a number of µs, or `auto` for the policy's."""
    microseconds: int | None = None
    if value.strip().lower() != "auto":
        read = parse_duration_us(value, bare="us")
        if read is None or not read.is_integer():
            raise ValueError(
                "take whole microseconds (2000), a duration (500us, 2ms), or auto for what the policy says"
            )
        if not 1 <= read <= MAX_TIMESLICE_US:
            raise ValueError(f"take 1 µs to {duration(MAX_TIMESLICE_US)}")
        microseconds = int(read)
    return TaskChange(lambda task: replace(task, timeslice_us=microseconds))
