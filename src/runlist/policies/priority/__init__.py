"""The default policy: classes latency, normal and batch, any number of tasks in each, and no livelock.

The foreground of a GPU is its latency tasks or, when there are none, its normal tasks. All other tasks are its
background; batch tasks always are, so that they stay out of the way of processes that Runlist does not manage, too.

- A foreground task that is alone gets a long slice: it has nobody to share with. Several keep the driver's slices among
themselves.
- Of the background, one task at a time is enabled, at a slice of 1 µs: the foreground takes the GPU from it within one
context switch, and it gets whatever the foreground leaves. The enabled one rotates every quantum; normal tasks stay
enabled four times as long as batch tasks.

Good for: protecting latency-critical services from any number of batch jobs.
Fails: when the foreground never pauses, the background starves; background jobs that pause a lot leave their quantum
unused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runlist.model import Share, Task, TaskClass, TaskKey
from runlist.policies.interface import Decision, Policy

FOREGROUND_SLICE_US = {TaskClass.LATENCY: 1_000_000, TaskClass.NORMAL: 20_000}
BACKGROUND_SLICE_US = 1
TURN_WEIGHTS = {TaskClass.NORMAL: 4, TaskClass.BATCH: 1}
DEFAULT_QUANTUM_MS = 50.0
MIN_QUANTUM_MS, MAX_QUANTUM_MS = 5.0, 10_000.0


class Priority(Policy):
    """Classes by slices, the background rotated. Option: `quantum_ms`, how long a batch task's turn is (default 50)."""

    summary = "classes latency / normal / batch; background tasks take turns (option quantum_ms, default 50)"

    def __init__(self, options: Mapping[str, str]) -> None:
        unknown = options.keys() - {"quantum_ms"}
        if unknown:
            raise ValueError(f"no option {', '.join(sorted(unknown))}: take quantum_ms")
        text = options.get("quantum_ms", str(DEFAULT_QUANTUM_MS))
        try:
            quantum_ms = float(text)
        except ValueError:
            raise ValueError(f"quantum_ms={text} is not a number") from None
        if not MIN_QUANTUM_MS <= quantum_ms <= MAX_QUANTUM_MS:
            raise ValueError(f"quantum_ms={text} is not within {MIN_QUANTUM_MS:g} to {MAX_QUANTUM_MS:g}")
        self._quantum_s = quantum_ms / 1e3
        self._turn: TaskKey | None = None
        self._turn_ends = 0.0

    def decide(self, tasks: Sequence[Task], now: float) -> Decision:
        runnable = [task for task in tasks if not task.suspended]
        if not runnable:
            return Decision({})
        foreground_class = TaskClass.NORMAL
        if any(task.task_class == TaskClass.LATENCY for task in runnable):
            foreground_class = TaskClass.LATENCY
        foreground = [task for task in runnable if task.task_class == foreground_class]
        background = [task for task in runnable if task.task_class != foreground_class]
        slice_us = FOREGROUND_SLICE_US[foreground_class] if len(foreground) == 1 else None
        shares = {task.key: Share(slice_us) for task in foreground}
        self._rotate(background, now)
        for task in background:
            shares[task.key] = Share(BACKGROUND_SLICE_US, enabled=task.key == self._turn)
        return Decision(shares, self._turn_ends - now if len(background) > 1 else None)

    def _rotate(self, background: Sequence[Task], now: float) -> None:
        """Give the turn to the next background task when the current one's is over, or it is gone."""
        keys = [task.key for task in background]
        if not keys:
            self._turn = None
            return
        if self._turn in keys and now < self._turn_ends:
            return
        following = (keys.index(self._turn) + 1) % len(keys) if self._turn in keys else 0
        self._turn = keys[following]
        self._turn_ends = now + self._quantum_s * TURN_WEIGHTS[background[following].task_class]


POLICY = Priority
