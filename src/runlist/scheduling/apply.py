"""Getting from the shares in force to the shares that are wanted, without passing through a livelock.

Between two safe sets of shares there are unsafe ones: two enabled tasks at tiny slices. So slices first grow, then
tasks go off, then slices shrink, and only then tasks come on. A task that is off keeps the slice that it had: setting
one takes a control, and matters only when it comes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from runlist.errors import RunlistError
from runlist.model import Share, SliceLimits, Task, TaskKey

Failures = dict[TaskKey, RunlistError | OSError]


class Controlled(Protocol):
    """A task whose slice can be set and that can be suspended. Both keep `share` up to date; where they raise
    RunlistError or OSError they leave it.
    """

    @property
    def task(self) -> Task:
        """What a policy sees of it."""

    @property
    def share(self) -> Share:
        """What is in force."""

    def slice_us(self, share: Share) -> int:
        """The slice that a share means for this task, in µs."""

    def set_timeslice(self, microseconds: int | None) -> None:
        """Set the slice; None for the one that the task was found with."""

    def set_enabled(self, enabled: bool) -> None:
        """Resume or suspend."""

    def preempt(self) -> None:
        """Take it off the GPU once. A failure does no harm: a lost task shows at the next control."""


def apply_shares(tasks: Mapping[TaskKey, Controlled], wanted: Mapping[TaskKey, Share], slices: SliceLimits) -> Failures:
    """Apply what differs; returns the failures.

    A task whose control fails keeps what it has, and the others go on as far as that is safe beside it.
    """
    failures: Failures = {}

    def phase(needed: Callable[[Controlled, Share], bool], act: Callable[[Controlled, Share], None]) -> None:
        for key, share in wanted.items():
            if key not in failures and needed(tasks[key], share):
                try:
                    act(tasks[key], share)
                except (RunlistError, OSError) as error:
                    failures[key] = error

    def set_slice(task: Controlled, share: Share) -> None:
        task.set_timeslice(share.timeslice_us)

    def set_enabled(task: Controlled, share: Share) -> None:
        task.set_enabled(share.enabled)

    def differs(task: Controlled, share: Share) -> bool:
        return share.enabled and task.share.timeslice_us != share.timeslice_us

    def grows(task: Controlled, share: Share) -> bool:
        return differs(task, share) and task.slice_us(share) >= task.slice_us(task.share)

    def is_tiny(task: Controlled) -> bool:
        return task.share.enabled and slices.is_tiny(task.slice_us(task.share))

    phase(grows, set_slice)
    phase(lambda task, share: task.share.enabled and not share.enabled, set_enabled)
    if any(is_tiny(tasks[key]) for key in failures):  # stays in the way of any other tiny slice until it is released
        return failures
    phase(differs, set_slice)
    phase(lambda task, share: share.enabled and not task.share.enabled, set_enabled)
    return failures
