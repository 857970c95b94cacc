"""What a policy is.

The daemon keeps one instance per GPU. Whenever something changes (a task appears or vanishes, its class is set, the
policy's own timer runs out) it asks `decide` for the shares of all tasks on that GPU, and applies what differs from
what is in force. A policy says what should be; how to get there safely is the daemon's business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from runlist.model import Share, Task, TaskKey


@dataclass(frozen=True, slots=True)
class Decision:
    """Shares by task (a task without one gets the driver's default), and in how many seconds to ask again (None: on
    change).
    """

    shares: Mapping[TaskKey, Share]
    again_after_s: float | None = None


class Policy(ABC):
    """Base of every policy. `options` are `name=value` strings of the user; raise ValueError with one clear line for
    a bad one.
    """

    summary: ClassVar[str]
    """One line for `runlist policy list`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        if options:
            raise ValueError(f"this policy takes no options, got {', '.join(sorted(options))}")

    def admit(self, task: Task, tasks: Sequence[Task]) -> str | None:
        """Why `task` must not join `tasks` on this GPU, or None when it may. Also asked when a task's class is to
        change.
        """
        del task, tasks
        return None

    @abstractmethod
    def decide(self, tasks: Sequence[Task], now: float) -> Decision:
        """Shares for all tasks on this GPU. `now` is in seconds of the clock of `Task.since`. Must not block."""
