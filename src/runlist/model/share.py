"""Shares: what a policy decides for a task."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Share:
    """How a task may use its GPU.

    `timeslice_us` is set on all of its channel groups; None leaves each group the slice that it had when it was found.
    A task that is not `enabled` is suspended: its channels are disabled and what runs is preempted.
    `until`, of a task that is not enabled, says when it will be at the latest (monotonic clock, seconds): only with
    that may a policy enable nothing at all.
    """

    timeslice_us: int | None = None
    enabled: bool = True
    until: float | None = None


DEFAULT_SHARE = Share()
"""The driver's own scheduling."""
