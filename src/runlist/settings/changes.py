"""What a setting changes: a task as the policy sees it, a control of the driver, or the memory of a whole tree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from runlist.model import Task


@dataclass(frozen=True)
class TaskChange:
    """A change to what the policy sees. `change` raises UsageError when it does not fit the task's other settings."""

    change: Callable[[Task], Task]


@dataclass(frozen=True)
class ControlChange:
    """A change made in the driver, to every context of a task, now and later. `word` is None for the driver's own."""

    control: str
    word: str | None


@dataclass(frozen=True)
class MemoryChange:
    """A change to what all processes of a tree together may hold on each GPU, in bytes; None is no limit."""

    limit: int | None


Change = TaskChange | ControlChange | MemoryChange
