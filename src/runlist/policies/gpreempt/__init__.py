"""The static rule of GPreempt (USENIX ATC'25): latency (and deadline) tasks get a slice of 1 s, everything
else 1 µs.

Good for: exactly one background task beside latency-critical ones; nothing has to be done while they run.
Fails: with two background tasks. Each slice is then shorter than a context switch, neither progresses, and it does not
recover by itself. So a second one is refused; use the policy `priority`, which rotates them.
"""

from __future__ import annotations

from collections.abc import Sequence

from runlist.model import LATENCY_CRITICAL, Share, Task
from runlist.policies.interface import Decision, Policy

LATENCY_SLICE_US = 1_000_000
BACKGROUND_SLICE_US = 1


class GPreempt(Policy):
    """Slices set once per task: 1 s for latency, 1 µs for one other."""

    summary = "GPreempt's static rule: slices of 1 s for latency, 1 µs for one background task"

    def admit(self, task: Task, tasks: Sequence[Task]) -> str | None:
        if task.task_class in LATENCY_CRITICAL:
            return None
        others = [other for other in tasks if not task.is_one_with(other) and other.task_class not in LATENCY_CRITICAL]
        if not others:
            return None
        return (
            f"policy gpreempt takes one background task per GPU, and {others[0].key.pid} ({others[0].command}) is one: "
            "two at slices of 1 µs would stop each other; use `runlist policy use priority`"
        )

    def decide(self, tasks: Sequence[Task], now: float) -> Decision:
        del now
        return Decision(
            {
                task.key: Share(LATENCY_SLICE_US if task.task_class in LATENCY_CRITICAL else BACKGROUND_SLICE_US)
                for task in tasks
            }
        )


POLICY = GPreempt
