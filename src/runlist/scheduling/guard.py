"""The last word on a policy's decision: the user's own settings win, and some task can always progress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from runlist.model import DEFAULT_SHARE, MAX_TIMESLICE_US, Share, SliceLimits, Task, TaskKey

LONGEST_WAIT_S = 10.0
"""For how long a policy may enable nothing at all."""


def safe_shares(
    tasks: Sequence[Task],
    decided: Mapping[TaskKey, Share],
    in_force: Mapping[TaskKey, Share],
    now: float,
    slices: SliceLimits,
) -> tuple[dict[TaskKey, Share], list[str]]:
    """Shares that are safe to apply, and what was wrong with the policy's.

    A task that the user suspended stays off, and a slice that the user fixed stays. Every slice is one that can be set.
    Only one enabled task may have a tiny slice, and only if it has one context: two would stop each other for good. If
    tasks could run, one is enabled, or each has an `until`. An `until` in the past, or more than LONGEST_WAIT_S after
    `now`, is dropped.
    """
    shares: dict[TaskKey, Share] = {}
    notes: list[str] = []
    for task in tasks:
        share = decided.get(task.key, DEFAULT_SHARE)
        us = share.timeslice_us
        if not (us is None or (type(us) is int and 1 <= us <= MAX_TIMESLICE_US)):
            notes.append(f"the policy gave process {task.key.pid} a slice of {us!r}: it gets {slices.safe_us} µs")
            share = replace(share, timeslice_us=slices.safe_us)
        if share.until is not None and not _within_reach(share.until, now):
            share = replace(share, until=None)
        if task.timeslice_us is not None:
            share = replace(share, timeslice_us=task.timeslice_us)
        if task.contexts > 1 and slices.is_tiny(share.timeslice_us):  # they would stop each other
            share = replace(share, timeslice_us=slices.tiny_us)
        if task.suspended:  # its slice does not matter now: leave it, so that suspending is quick
            share = replace(in_force.get(task.key, DEFAULT_SHARE), enabled=False, until=None)
        shares[task.key] = share

    runnable = [task for task in tasks if not task.suspended]
    nothing_enabled = runnable and not any(shares[task.key].enabled for task in runnable)
    if nothing_enabled and any(shares[task.key].until is None for task in runnable):
        first = runnable[0].key
        shares[first] = replace(shares[first], enabled=True)
        notes.append(f"the policy enabled nothing and did not say until when: process {first.pid} runs all the same")

    tiny = [key for key, share in shares.items() if share.enabled and slices.is_tiny(share.timeslice_us)]
    for key in tiny[1:]:
        shares[key] = replace(shares[key], timeslice_us=slices.safe_us)
        notes.append(
            f"processes {tiny[0].pid} and {key.pid} would stop each other at slices under {slices.tiny_us} µs: "
            f"{key.pid} gets {slices.safe_us} µs"
        )
    return shares, notes


def _within_reach(until: object, now: float) -> bool:
    return isinstance(until, int | float) and now <= until <= now + LONGEST_WAIT_S
