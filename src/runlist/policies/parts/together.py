"""Tasks that run together, such as the clients of an MPS server, as the one that they are to the GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from runlist.model import Task, TaskClass, TaskKey

_IMPORTANCE = {task_class: rank for rank, task_class in enumerate(TaskClass)}


def as_one(tasks: Sequence[Task]) -> tuple[list[Task], Mapping[TaskKey, TaskKey]]:
    """The tasks, of which those that run together are one, and under which key each is found there.

    That one is the one with the least key, with the most important class and the largest weight of theirs; its usage
    is its own.
    """
    units: dict[int | TaskKey, list[Task]] = {}
    for task in tasks:
        units.setdefault(task.key if task.together is None else task.together, []).append(task)
    ones = [unit[0] if len(unit) == 1 else _one(unit) for unit in units.values()]
    return ones, {task.key: one.key for one, unit in zip(ones, units.values(), strict=True) for task in unit}


def _one(unit: Sequence[Task]) -> Task:
    return replace(
        min(unit, key=lambda task: task.key),
        task_class=min((task.task_class for task in unit), key=_IMPORTANCE.__getitem__),
        weight=max(task.weight for task in unit),
    )
