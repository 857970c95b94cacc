"""How layers make tasks wait: the policy below sees them suspended, and their shares say until when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from runlist.model import Share, Task, TaskKey
from runlist.policies.interface import Decision, Policy
from runlist.policies.parts.pace import NEVER

LONGEST_WAIT_S = 9.5
"""The longest wait at a time, safely below the guard's; then the layer decides anew."""


class Waiting:
    """Takes tasks out of the contest in the policy below.

    Their slices stay: setting one costs a control, and a slice does not matter while a task is off.
    """

    def __init__(self, below: Policy) -> None:
        self._below = below
        self._slices: dict[TaskKey, int | None] = {}

    def decide(self, tasks: Sequence[Task], off: Mapping[TaskKey, float], now: float) -> Decision:
        """The decision of the policy below without the tasks that are `off`, each until some time."""
        if off:
            tasks = [replace(task, suspended=True) if task.key in off else task for task in tasks]
        decision = self._below.decide(tasks, now)
        shares = dict(decision.shares)
        self._slices = {task.key: self._slices.get(task.key) for task in tasks if task.key not in shares} | {
            key: share.timeslice_us for key, share in shares.items()
        }
        for key, until in off.items():
            shares[key] = Share(self._slices.get(key), enabled=False, until=min(until, now + LONGEST_WAIT_S))
        return replace(decision, shares=shares)


def earliest(now: float, decision: Decision, look: float) -> Decision:
    """The decision, asked again at `look` (a time; infinity: no need) or when it says itself."""
    if look == NEVER:
        return decision
    after = min(max(0.0, look - now), LONGEST_WAIT_S)
    if decision.again_after_s is not None:
        after = min(after, decision.again_after_s)
    return replace(decision, again_after_s=after)
