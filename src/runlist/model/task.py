"""Tasks: one process' work on one GPU."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Engine(StrEnum):
    """What a channel group runs on. A group with any compute channel counts as compute."""

    COMPUTE = "compute"
    COPY = "copy"
    OTHER = "other"


class TaskClass(StrEnum):
    """Scheduling classes, the most important first."""

    LATENCY = "latency"
    NORMAL = "normal"
    BATCH = "batch"


class TaskKey(NamedTuple):
    """Identity of a task: process id and GPU UUID."""

    pid: int
    gpu: str


@dataclass(frozen=True, slots=True)
class Task:
    """One process' work on one GPU, as a policy sees it.

    `timeslice_us` is a slice fixed by the user (None: the policy decides); `suspended` says that the user suspended the
    task, so that it will not run whatever the policy decides; `since` is when it was first seen, in seconds of a
    monotonic clock.
    `compute_groups` is how many of its channel groups compete for the GPU: one per context.
    """

    key: TaskKey
    task_class: TaskClass
    command: str
    uid: int
    since: float
    suspended: bool = False
    timeslice_us: int | None = None
    compute_groups: int = 1
