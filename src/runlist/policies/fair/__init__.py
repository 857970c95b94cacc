"""Weights and nothing else: every task gets its part of the GPU, whatever its class.

All tasks are enabled, at slices in proportion to their weights, corrected by feedback until the time that they really
hold the GPU is in that proportion. What one does not use goes to the others. A latency or deadline task among them
makes all slices short, so that nobody waits long.

Good for: batch jobs of several users, and any job that should get its part and no less.
Fails: to protect a latency-critical service: it waits for the slices of all others, as with the driver's own
scheduling. Ratios beyond about 100:1 come out smaller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runlist.model import Share, Task
from runlist.policies.interface import Decision, Policy
from runlist.policies.parts.slices import WeightedSlices


class Fair(Policy):
    """Shares by weight among all tasks."""

    summary = "weights only: shares in proportion, corrected by true usage, whatever the class"

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._slices = WeightedSlices()

    def decide(self, tasks: Sequence[Task], now: float) -> Decision:
        runnable = [task for task in tasks if not task.suspended]
        if not runnable:
            self._slices.pause()
            return Decision({})
        slices, again_after_s = self._slices.slices(runnable, tasks, now)
        return Decision({key: Share(us) for key, us in slices.items()}, again_after_s)


POLICY = Fair
