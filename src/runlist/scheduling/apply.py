"""Getting from the shares in force to the shares that are wanted, without passing through a livelock.

Between two safe sets of shares there are unsafe ones: two enabled tasks at tiny slices. So slices first grow, then
tasks go off, then slices shrink, and only then tasks come on. A task that is off keeps the slice that it had: setting
one takes a control, and matters only when it comes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeVar

from runlist.errors import RunlistError
from runlist.model import Share, SliceLimits, TaskKey

Failures = dict[TaskKey, RunlistError | OSError]


class Controlled(Protocol):
    """A task whose slice can be set and that can be suspended; both keep `share` up to date, or raise RunlistError or
    OSError and leave it.
    """

    @property
    def share(self) -> Share:
        """What is in force."""

    def slice_us(self, share: Share) -> int:
        """The slice that a share means for this task, in µs."""

    def set_timeslice(self, microseconds: int | None) -> None:
        """Set the slice; None for what the task was found with."""

    def set_enabled(self, enabled: bool) -> None:
        """Resume or suspend."""


_Task = TypeVar("_Task", bound=Controlled)


def apply_shares(tasks: Mapping[TaskKey, _Task], wanted: Mapping[TaskKey, Share], slices: SliceLimits) -> Failures:
    """Apply what differs; returns the failures.

    A task whose control fails keeps what it has, and the others go on as far as that is safe beside it.
    """
    failures: Failures = {}

    def phase(
        keys: Iterable[TaskKey], needed: Callable[[_Task, Share], bool], act: Callable[[_Task, Share], None]
    ) -> None:
        for key in keys:
            task, share = tasks[key], wanted[key]
            if key in failures or not needed(task, share):
                continue
            try:
                act(task, share)
            except (RunlistError, OSError) as error:
                failures[key] = error

    def set_slice(task: _Task, share: Share) -> None:
        task.set_timeslice(share.timeslice_us)

    def set_enabled(task: _Task, share: Share) -> None:
        task.set_enabled(share.enabled)

    def differs(task: _Task, share: Share) -> bool:
        return share.enabled and task.share.timeslice_us != share.timeslice_us

    def grows(task: _Task, share: Share) -> bool:
        return differs(task, share) and task.slice_us(share) >= task.slice_us(task.share)

    def is_tiny(task: _Task) -> bool:
        return task.share.enabled and slices.is_tiny(task.slice_us(task.share))

    phase(wanted, grows, set_slice)
    phase(wanted, lambda task, share: task.share.enabled and not share.enabled, set_enabled)
    if any(is_tiny(tasks[key]) for key in failures):  # stays in the way of any other tiny slice until it is released
        return failures
    phase(wanted, differs, set_slice)
    phase(wanted, lambda task, share: share.enabled and not task.share.enabled, set_enabled)
    return failures
