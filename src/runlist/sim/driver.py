"""The policy `none`: the driver's own scheduling without Runlist, to compare every other policy with."""

from __future__ import annotations

from collections.abc import Sequence

from runlist.errors import UsageError
from runlist.model import Task
from runlist.policies import Decision, Policy, PolicySpec, load_policy

NAME = "none"


class DriverOnly(Policy):
    """Everybody has the driver's default slice, or the one that the trace fixes."""

    summary = "the driver's own time slicing"

    def decide(self, tasks: Sequence[Task], now: float) -> Decision:
        del tasks, now
        return Decision({})


def make_policy(spec: PolicySpec) -> Policy:
    """A policy by name or path, as the daemon would load it, or `none`. Raises UsageError."""
    if spec.name != NAME:
        return load_policy(spec)
    try:
        return DriverOnly(spec.options)
    except ValueError as error:
        raise UsageError(f"policy {NAME}: {error}") from None
