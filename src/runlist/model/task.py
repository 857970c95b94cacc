"""Tasks: one process' work on one GPU."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from runlist.model.activity import Activity
from runlist.model.limits import DEFAULT_WEIGHT, Cap, Deadline
from runlist.model.usage import NO_USAGE, Usage

Owner = tuple[int, str]
"""Who answers for what tasks say: a user, and a container or nothing."""


class Engine(StrEnum):
    """What a channel group runs on. A group with any compute channel counts as compute."""

    COMPUTE = "compute"
    COPY = "copy"
    OTHER = "other"


class TaskClass(StrEnum):
    """Scheduling classes, the most important first."""

    DEADLINE = "deadline"
    LATENCY = "latency"
    NORMAL = "normal"
    BATCH = "batch"


LATENCY_CRITICAL = frozenset({TaskClass.DEADLINE, TaskClass.LATENCY})
"""For tasks of these classes others give way."""


class TaskKey(NamedTuple):
    """Identity of a task: process id and GPU UUID."""

    pid: int
    gpu: str


@dataclass(frozen=True, slots=True)
class Task:
    """One process' work on one GPU, as a policy sees it.

    `timeslice_us` is a slice fixed by the user (None: the policy decides). A `suspended` task does not run, whatever
    the policy decides: its user, a limit of the rules or its memory limit suspended it. `since` is when it was first
    seen, in seconds of a monotonic clock. `contexts` is how many of its contexts compete for the GPU: one or more.
    Tasks of the same `group` share as one: they have one weight (the largest of theirs) and one cap between them. The
    group is user `group_of`'s own, or one for all users where that is None. `deadline` goes with the class of that
    name. Tasks of the same `together` are one to the GPU (the clients of one MPS server): they run, stop and have a
    slice together, and share as one. `target_p99_us` is the target for the latencies that the task reports. `segment`
    is the priority of the segment that it is in, None outside. `activity` is what it tells of its work, None where it
    tells nothing: then it cannot be watched, either. `owned_by` is the user who has its number, and the container that
    root made for it: who runs there as a user is a stranger to those in others, since images of many have the same one.
    `given_weight` is what rules give it of its weight; beyond that all that its owner's tasks of its class share as may
    weigh `most_weight` together (None: any).
    """

    key: TaskKey
    task_class: TaskClass
    command: str
    uid: int
    since: float
    suspended: bool = False
    timeslice_us: int | None = None
    contexts: int = 1
    weight: int = DEFAULT_WEIGHT
    cap: Cap | None = None
    deadline: Deadline | None = None
    target_p99_us: float | None = None
    segment: int | None = None
    group: str = ""
    group_of: int | None = None
    together: int | None = None
    usage: Usage = NO_USAGE
    activity: Activity | None = None
    owned_by: Owner | None = None
    given_weight: int = 0
    most_weight: int | None = None

    @property
    def owner(self) -> Owner:
        return self.owned_by or (self.uid, "")

    def is_one_with(self, other: Task) -> bool:
        """Whether the GPU takes them for one: it is the same task, or they run together."""
        return self.key == other.key or (self.together is not None and self.together == other.together)

    @property
    def shares_as(self) -> str:
        """The name under which it competes for a share: its MPS server's, its group's, or its own."""
        if self.together is not None:
            return f"MPS group {self.together}"
        if not self.group:
            return f"pid {self.key.pid}"
        return self.group if self.group_of is None else f"{self.group} of user {self.group_of}"
