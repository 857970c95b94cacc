"""What happens to the tasks of a GPU, as a policy is told."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from runlist.model.task import Task, TaskKey
from runlist.model.usage import NO_USAGE, Usage


class Appear(msgspec.Struct, frozen=True):
    """A task is managed from now on, or has changed its class or limits."""

    task: Task


class Vanish(msgspec.Struct, frozen=True):
    """A task is no longer managed. `usage` is all that it used since it was."""

    key: TaskKey
    usage: Usage = NO_USAGE


class Tick(msgspec.Struct, frozen=True):
    """The policy's own timer ran out."""


class Used(msgspec.Struct, frozen=True):
    """Seconds that each task held the GPU since the last such event; tasks that did not are missing."""

    held_s: Mapping[TaskKey, float]


class Segment(msgspec.Struct, frozen=True):
    """A task began a segment of this priority (higher is more urgent), or ended its own (None)."""

    key: TaskKey
    priority: int | None


class Hint(msgspec.Struct, frozen=True):
    """A task says that it will want the GPU in so many seconds."""

    key: TaskKey
    in_s: float


class Announce(msgspec.Struct, frozen=True):
    """Something came in at a task that led to work before, or it says that a request begins: it will submit work in so
    many seconds.
    """

    key: TaskKey
    in_s: float


class Report(msgspec.Struct, frozen=True):
    """A task says how long one of its requests took, in seconds."""

    key: TaskKey
    latency_s: float


class Busy(msgspec.Struct, frozen=True):
    """A task that a policy watches submitted work, for the first time since it was idle."""

    key: TaskKey


class Idle(msgspec.Struct, frozen=True):
    """A busy task that a policy watches submitted nothing, and waited for nothing, for as long as the policy asked."""

    key: TaskKey


Event = Appear | Vanish | Tick | Used | Segment | Hint | Announce | Report | Busy | Idle
