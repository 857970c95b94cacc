"""Settings that somebody asks for at once and that cannot be meant together, or that have no effect on a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from runlist.errors import UsageError
from runlist.model import Task, TaskClass
from runlist.units import percent


class Conflict(msgspec.Struct, frozen=True):
    """Settings that do not go together: on a task for which `applies` is true after them, where any of the `keys` was
    asked for. It is refused where all of them were, unless it is never `refused`; else it is said.
    """

    keys: tuple[str, ...]
    applies: Callable[[Task], bool]
    says: Callable[[Task], str]
    refused: bool = True


_CONFLICTS = (
    Conflict(
        ("class", "p99"),
        lambda task: task.target_p99_us is not None and task.task_class is TaskClass.BATCH,
        lambda task: f"a target has no effect for class {task.task_class}: no class is below it, from which to take",
    ),
    Conflict(
        ("cap", "deadline"),
        lambda task: bool(task.cap and task.deadline and task.cap.fraction < task.deadline.fraction),
        lambda task: (
            f"the deadline asks for {percent(task.deadline.fraction if task.deadline else 0)} of the GPU, and the cap "
            f"allows {percent(task.cap.fraction if task.cap else 0)}: raise the cap, or lower the budget"
        ),
    ),
    Conflict(
        ("weight",),
        lambda task: task.task_class is TaskClass.DEADLINE,
        lambda task: (
            f"a weight has no effect for class {task.task_class}, but under policies that know no classes, such as fair"
        ),
        refused=False,
    ),
)


def conflicts(settings: Mapping[str, str], task: Task) -> list[str]:
    """What is to be said of settings, in good words, on a task that has them already. Raises UsageError for those that
    cannot be meant together.
    """
    named = settings.get("class", "").lower()
    if named == TaskClass.DEADLINE and task.deadline is None:
        raise UsageError("class=deadline takes a budget and a period: say deadline=BUDGET/PERIOD, as 5ms/20ms")
    if named not in ("", TaskClass.DEADLINE) and "deadline" in settings and task.deadline is not None:
        raise UsageError(f"class={named} and deadline={settings['deadline']} exclude each other: leave one out")
    notes = []
    for row in _CONFLICTS:
        asked = [key for key in row.keys if key in settings]
        if asked and row.applies(task):
            if row.refused and len(asked) == len(row.keys):
                raise UsageError(f"{', '.join(f'{key}={settings[key]}' for key in asked)}: {row.says(task)}")
            notes.append(row.says(task))
    return notes
