"""What a policy is.

The daemon, or the simulator, keeps one instance per GPU. It tells the policy what happens (`on_event`), and whenever
something changed or the policy's own timer ran out it asks `decide` for the shares of all tasks on that GPU, and
applies the changes. A policy only names the shares: the scheduling loop gets there safely.

A policy can ask for all that the driver can do to an unknowing process: set its slices, suspend and resume it (both by
`Share`), and take it off the GPU once (`Decision.preempt`).

A `Layer` is a policy over another one: it changes what that one sees and what it decides. Caps, deadlines and service
targets are layers, so that they work over any policy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from runlist.model import Event, GivingWay, Share, Task, TaskKey


@dataclass(frozen=True, slots=True)
class Decision:
    """Shares by task (a task without one gets the driver's default), in how many seconds to ask again (None: on
    change), tasks to take off the GPU once, after which they compete again, and the tasks whose `segments` are in
    force.

    `watch` names tasks that tell of their activity, each with a time in seconds: `on_event` gets Busy when such a task
    begins to work, and Idle when it has done nothing for so long. One that is watched from now on counts as idle. Of
    those in `unhurried` Busy may come late by half of that time. Of those in `announcing`, watched or not, `on_event`
    gets Announce when they are about to work; of those that are watched in a hurry while they are idle.

    `off_on_work` names enabled tasks that are to go off as soon as a watched one that is idle, and not unhurried,
    begins to work, or one announces that it is about to. Where that is possible they are off before the policy hears of
    it, and stay so until it decides.

    `off_on_arrival` names enabled tasks that are to go off as soon as a process makes its first channel group of which
    the task will be latency-critical, where the kernel tells of that. They stay off until that task is there and the
    policy decides with it, or for a tenth of a second.
    """

    shares: Mapping[TaskKey, Share]
    again_after_s: float | None = None
    preempt: frozenset[TaskKey] = frozenset()
    segments: frozenset[TaskKey] = frozenset()
    watch: Mapping[TaskKey, float] = field(default_factory=dict)
    announcing: frozenset[TaskKey] = frozenset()
    off_on_work: frozenset[TaskKey] = frozenset()
    off_on_arrival: frozenset[TaskKey] = frozenset()
    unhurried: frozenset[TaskKey] = frozenset()


class Policy(ABC):
    """Base of every policy. `options` are `name=value` strings of the user; raise ValueError with one clear line for
    a bad one.

    All methods run in the daemon's one thread and must not block: a policy that raises, or takes longer than
    STALL_S, is dropped for the default one.
    """

    summary: ClassVar[str]
    """One line for `runlist policy list`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        if options:
            raise ValueError(f"this policy takes no options, got {', '.join(sorted(options))}")

    def admit(self, task: Task, tasks: Sequence[Task]) -> str | None:
        """Why `task` must not join `tasks` on this GPU, or None when it may. Also asked when a task's class or limits
        are to change.
        """
        del task, tasks
        return None

    def on_event(self, event: Event, now: float) -> bool | None:
        """Something happened at `now` (seconds of the clock of `Task.since`). `decide` is asked afterwards: at once
        when True is returned, else when something changed or a timer runs out.
        """
        del event, now
        return None

    @abstractmethod
    def decide(self, tasks: Sequence[Task], now: float) -> Decision:
        """Shares for all tasks on this GPU."""

    def why(self, key: TaskKey) -> str:
        """In a few words, why a task got its present share; empty when there is nothing to say."""
        del key
        return ""

    def giving_way(self) -> GivingWay | None:
        """How the background gives way to the foreground at present; None where there are no such two."""
        return None


STALL_S = 0.25
"""How long one call of a policy may take."""


class Layer(Policy):
    """A policy over another one, `below`, which answers whatever the layer leaves unchanged."""

    def __init__(self, options: Mapping[str, str], below: Policy) -> None:
        super().__init__(options)
        self.below = below

    def admit(self, task: Task, tasks: Sequence[Task]) -> str | None:
        return self.below.admit(task, tasks)

    def on_event(self, event: Event, now: float) -> bool | None:
        return self.below.on_event(event, now)

    def why(self, key: TaskKey) -> str:
        return self.below.why(key)

    def giving_way(self) -> GivingWay | None:
        return self.below.giving_way()
