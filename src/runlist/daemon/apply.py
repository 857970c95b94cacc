"""Getting from the shares in force to the shares that are wanted, without passing through a livelock.

Between two safe sets of shares there are unsafe ones: two enabled tasks at tiny slices. So slices first grow, then
tasks go off, then slices shrink, and only then tasks come on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from runlist.daemon.guard import TINY_US
from runlist.daemon.managed import ManagedTask
from runlist.errors import RunlistError
from runlist.model import Share, TaskKey

Failures = dict[TaskKey, RunlistError | OSError]


def apply_shares(tasks: Mapping[TaskKey, ManagedTask], wanted: Mapping[TaskKey, Share]) -> Failures:
    """Apply what differs; returns the failures.

    A task whose control fails keeps what it has, and the others go on as far as that is safe beside it.
    """
    failures: Failures = {}

    def phase(
        keys: Iterable[TaskKey], needed: Callable[[ManagedTask, Share], bool], act: Callable[[ManagedTask, Share], None]
    ) -> None:
        for key in keys:
            task, share = tasks[key], wanted[key]
            if key in failures or not needed(task, share):
                continue
            try:
                act(task, share)
            except (RunlistError, OSError) as error:
                failures[key] = error

    def set_slice(task: ManagedTask, share: Share) -> None:
        task.set_timeslice(share.timeslice_us)

    def set_enabled(task: ManagedTask, share: Share) -> None:
        task.set_enabled(share.enabled)

    def grows(task: ManagedTask, share: Share) -> bool:
        return task.share.timeslice_us != share.timeslice_us and task.slice_us(share) >= task.slice_us(task.share)

    def is_tiny(task: ManagedTask) -> bool:
        return task.share.enabled and task.slice_us(task.share) < TINY_US

    phase(wanted, grows, set_slice)
    phase(wanted, lambda task, share: task.share.enabled and not share.enabled, set_enabled)
    if any(is_tiny(tasks[key]) for key in failures):  # stays in the way of any other tiny slice until it is released
        return failures
    phase(wanted, lambda task, share: task.share.timeslice_us != share.timeslice_us, set_slice)
    phase(wanted, lambda task, share: share.enabled and not task.share.enabled, set_enabled)
    return failures
