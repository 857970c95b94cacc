"""What happens to the tasks of a GPU, as a policy is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runlist.model.task import Task, TaskKey


@dataclass(frozen=True, slots=True)
class Appear:
    """A task is managed from now on, or has changed its class or limits."""

    task: Task


@dataclass(frozen=True, slots=True)
class Vanish:
    """A task is no longer managed."""

    key: TaskKey


@dataclass(frozen=True, slots=True)
class Tick:
    """The policy's own timer ran out."""


@dataclass(frozen=True, slots=True)
class Used:
    """Seconds that each task held the GPU since the last such event; tasks that did not are missing."""

    held_s: Mapping[TaskKey, float]


@dataclass(frozen=True, slots=True)
class Segment:
    """A task began a segment of this priority (higher is more urgent), or ended its own (None)."""

    key: TaskKey
    priority: int | None


@dataclass(frozen=True, slots=True)
class Hint:
    """A task says that it will want the GPU in so many seconds."""

    key: TaskKey
    in_s: float


@dataclass(frozen=True, slots=True)
class Announce:
    """Something came in at a task that led to work before, or it says that a request begins: it will submit work in so
    many seconds.
    """

    key: TaskKey
    in_s: float


@dataclass(frozen=True, slots=True)
class Report:
    """A task says how long one of its requests took, in seconds."""

    key: TaskKey
    latency_s: float


@dataclass(frozen=True, slots=True)
class Busy:
    """A task that a policy watches submitted work, for the first time since it was idle."""

    key: TaskKey


@dataclass(frozen=True, slots=True)
class Idle:
    """A busy task that a policy watches submitted nothing, and waited for nothing, for as long as the policy asked."""

    key: TaskKey


Event = Appear | Vanish | Tick | Used | Segment | Hint | Announce | Report | Busy | Idle
