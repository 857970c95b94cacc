"""The changes of settings: to a task as the policy sees it, to a control of the driver, or to a tree's memory limit."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from runlist.model import Task


class TaskChange(msgspec.Struct, frozen=True):
    """A change to what the policy sees. `change` raises UsageError when it does not fit the task's other settings."""

    change: Callable[[Task], Task]


class ControlChange(msgspec.Struct, frozen=True):
    """A change to a control of the driver, for every context of a task. `word` is None for the driver's own."""

    control: str
    word: str | None


class MemoryChange(msgspec.Struct, frozen=True):
    """A change to the memory limit of all processes of a tree together on each GPU, in bytes; None is no limit."""

    limit: int | None


Change = TaskChange | ControlChange | MemoryChange
