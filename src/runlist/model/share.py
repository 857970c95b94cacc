"""Shares: the decision of a policy for a task."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Share:
    """How a task may use its GPU.

    `timeslice_us` is set on all of its channel groups; None leaves each group the slice that it had when it was found.
    A task that is not `enabled` is suspended: its channels are disabled and what runs is preempted.
    `until` says when a suspended task will be enabled at the latest (monotonic clock, seconds). A policy may enable
    nothing at all only where every task has one.
    """

    timeslice_us: int | None = None
    enabled: bool = True
    until: float | None = None


DEFAULT_SHARE = Share()
"""The driver's own scheduling."""
