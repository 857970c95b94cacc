"""The last word on a policy's decision: the user's own settings win, and some task can always progress."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence
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
    may_have_tiny: Callable[[bool], bool] = lambda _: True,
) -> tuple[dict[TaskKey, Share], list[str]]:
    """Shares that are safe to apply, and what was wrong with the policy's. `may_have_tiny` is told whether a task is to
    have a tiny slice, and says whether one may.

    A task that the user suspended stays off, and a slice that the user fixed stays. Tasks that run together get one
    share: all are off where one is suspended; else all run where one is to, with the longest slice. Every slice is one
    that can be set. Only one enabled task may have a tiny slice, and only if it has one context: two would stop each
    other for good. If tasks could run, one is enabled, or each has an `until`. An `until` in the past, or more than
    LONGEST_WAIT_S after `now`, is dropped.
    """
    fellows = _fellows(tasks)
    off = {key for key, those in fellows.items() if any(task.suspended for task in those)}
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
        if task.key in off:  # its slice does not matter now: leave it, so that suspending is quick
            share = replace(in_force.get(task.key, DEFAULT_SHARE), enabled=False, until=None)
        shares[task.key] = share

    runnable = [task for task in tasks if task.key not in off]
    nothing_enabled = runnable and not any(shares[task.key].enabled for task in runnable)
    if nothing_enabled and any(shares[task.key].until is None for task in runnable):
        first = runnable[0].key
        shares[first] = replace(shares[first], enabled=True)
        notes.append(f"the policy enabled nothing and did not say until when: process {first.pid} runs all the same")

    for key, those in fellows.items():
        if key not in off and len(those) > 1:
            shares[key] = _one_share(those, shares)

    tiny = [key for key, share in shares.items() if share.enabled and slices.is_tiny(share.timeslice_us)]
    if not may_have_tiny(bool(tiny)):
        notes.append(
            f"another daemon has tasks on this GPU: two at slices under {slices.tiny_us} µs would stop each other, so "
            f"that ours get {slices.safe_us} µs"
        )
        return shares | {key: replace(shares[key], timeslice_us=slices.safe_us) for key in tiny}, notes
    first_tiny = fellows[tiny[0]] if tiny else []
    for key in [key for key in tiny if all(task.key != key for task in first_tiny)]:
        shares[key] = replace(shares[key], timeslice_us=slices.safe_us)
        notes.append(
            f"processes {tiny[0].pid} and {key.pid} would stop each other at slices under {slices.tiny_us} µs: "
            f"{key.pid} gets {slices.safe_us} µs"
        )
    return shares, notes


def safe_off_at_once(
    tasks: Sequence[Task], decided: Collection[TaskKey], shares: Mapping[TaskKey, Share], watch: Container[TaskKey] = ()
) -> frozenset[TaskKey]:
    """Of the tasks that are to go off when another one comes or begins to work, those that may: enabled ones, but none
    that is watched itself, and of tasks that run together all or none.
    """
    decided = frozenset(decided)
    if not decided:
        return decided
    fellows = _fellows(tasks)
    return frozenset(
        key
        for key in decided & fellows.keys()
        if all(one.key in decided and one.key not in watch and shares[one.key].enabled for one in fellows[key])
    )


def _fellows(tasks: Sequence[Task]) -> dict[TaskKey, list[Task]]:
    """The tasks with which each runs together, itself among them."""
    served: dict[int, list[Task]] = {}
    for task in tasks:
        if task.together is not None:
            served.setdefault(task.together, []).append(task)
    return {task.key: [task] if task.together is None else served[task.together] for task in tasks}


def _one_share(fellows: Sequence[Task], shares: Mapping[TaskKey, Share]) -> Share:
    """The share of tasks that run together."""
    theirs = [shares[task.key] for task in fellows]
    fixed = [task.timeslice_us for task in fellows if task.timeslice_us is not None]
    decided = [share.timeslice_us for share in theirs if share.timeslice_us is not None]
    enabled = any(share.enabled for share in theirs)
    waits = [share.until for share in theirs]
    until = None if enabled or None in waits else min(wait for wait in waits if wait is not None)
    return Share(max(fixed or decided, default=None), enabled, until)


def _within_reach(until: object, now: float) -> bool:
    return isinstance(until, int | float) and now <= until <= now + LONGEST_WAIT_S
