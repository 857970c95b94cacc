"""What happened on a GPU in a window of time, and what that tells of the foreground: whether it waits for the GPU, and
which slices of the background it would not notice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from runlist.model import Task, TaskClass, TaskKey
from runlist.policies.parts.pace import NEVER

SWITCH_S = 0.28e-3
"""What switching out and in again costs, in seconds of work: state is saved and restored, and caches are cold."""
WINDOW_S = 0.25
"""Over how long turns are counted. Nothing is decided more often than that."""
FULL_UP = 0.8
"""A program that waits for the GPU and has more than this part of it, together with its switches, falls behind, and the
background has next to nothing.
"""
BEHIND = 0.85
"""A program that also waits or launches for more than this part of the time is late by ever more."""
HARDLY = 0.2
"""A program that waits for the GPU for less than this part of the time is not worth all of it."""
SLOWED = 0.5
"""A program's waits may take longer beside slices by this part of the time in which it launches. Else it falls behind:
a thousand requests a second of 0.3 ms, each waited for, never end beside slices of 2 ms.
"""
WAITS_ABOVE, WAITS_BELOW = 0.5, 0.3
"""A program that waits for the GPU for more than the first part of its time is bound by it; for less than the second,
it is not any more."""
NOTICED = 0.2
"""Slices below this part of what a program waits for do not matter to it: each of its waits is longer by one."""
ENOUGH, FEWER, MORE = 20, 0.8, 1.2
"""So many pauses tell something. With fewer than this part of them, who launches ahead does more at a time by this."""
HELD_UP = 0.75
"""A program that waits for its host has less to do than this part of a slice, when it gets the GPU after that."""


class Window(msgspec.Struct, frozen=True):
    """What happened in a window of `length_s`. Per second: how often the foreground paused and the background was
    switched in, for how long the foreground had the GPU, and, 0 where it does not tell, for how long it waited for the
    GPU; of those that had some of the GPU also for how long they waited (`own_waited`) and launched, how often they
    waited for what they had launched, and how much that was. `told` is the part of the foreground's turns that those
    had who can be watched, `pressed` whether some of it has a latency to keep, `restless` who has no pauses, or hardly
    waits for the GPU.
    """

    length_s: float = WINDOW_S
    gaps: float = 0.0
    held: float = 0.0
    waited: float = 0.0
    own_waited: float = 0.0
    launching: float = 0.0
    waiting: float = 0.0
    work: float = 0.0
    told: float = 1.0
    pressed: bool = False
    restless: frozenset[TaskKey] = frozenset()

    @property
    def held_s(self) -> float:
        """For how long the foreground had the GPU between two pauses."""
        return self.held / self.gaps if self.gaps > 0 else 0.0

    @property
    def waited_s(self) -> float:
        """For how long the foreground waited for the GPU, all together."""
        return self.waited * self.length_s

    @property
    def busy(self) -> float:
        """Which part of the time the foreground waits for the GPU or launches: more than 1 where several do."""
        return self.own_waited + self.launching

    @property
    def waits(self) -> float | None:
        """Which part of its own time the foreground waits for the GPU; None where it does not tell."""
        return self.own_waited / self.busy if self.busy > 0 else None

    @property
    def longest_s(self) -> float:
        """The longest slice that does not slow the foreground too much."""
        # Several that launch all the time have no more of it for their waits than one.
        return SLOWED * min(1.0, self.launching) / self.waiting - SWITCH_S if self.waiting > 0 else NEVER

    @property
    def cost(self) -> float:
        """The part of the GPU that goes into switches."""
        return self.gaps * SWITCH_S

    @property
    def told_cost(self) -> float:
        """The part that goes into those of programs whose requests can be seen."""
        return self.told * self.cost

    @property
    def full_up(self) -> bool:
        """Whether the foreground waits for the GPU, and leaves next to nothing of it."""
        return self.is_gpu_bound(0.0) and self.taken(0.0) >= FULL_UP

    @property
    def falls_behind(self) -> bool:
        """Whether it has next to no time to spare, either."""
        return self.full_up and self.busy >= BEHIND

    @property
    def spared(self) -> float:
        """The part of that which slices can spare: each wait takes a switch beside any."""
        return max(0.0, self.gaps - self.waiting) * SWITCH_S

    def taken(self, slice_s: float) -> float:
        """The part of the time that the foreground has, or waits for beside slices of the background where it always
        wants the GPU.
        """
        return self.gaps * (self.held_s + SWITCH_S + slice_s)

    def by_slices(self, slice_s: float) -> float:
        """The part that these slices cost. The background is switched in after each of them while the foreground
        launches; what is more is its own pauses, which no slice changes.
        """
        most = self.launching / (slice_s + SWITCH_S) * SWITCH_S if self.launching > 0 else NEVER
        return min(self.spared, most)

    def is_gpu_bound(self, slice_s: float) -> bool:
        """Whether the foreground mostly waits for the GPU: as it says itself; where that tells nothing, whether it does
        more between two pauses than the switch to it costs, and more than a slice of the background can have held up.
        """
        if self.waits is not None:
            return self.waits >= WAITS_ABOVE
        return self.held_s >= max(SWITCH_S, HELD_UP * slice_s)

    def is_piecewise(self, before: Window) -> bool:
        """Whether the foreground has the GPU less often than `before`, beside shorter slices, and does no more at a
        time: so it waits for each piece, and falls behind. Only where it is not told how often it waits.
        """
        return self._untold and self.gaps < FEWER * before.gaps and self.held_s < MORE * before.held_s

    def is_held_back(self, slice_s: float, at_first: Window) -> bool:
        """Whether that is so beside these slices and those `at_first`, and it always wants the GPU: its load may have
        changed since.
        """
        return self.taken(slice_s) >= FULL_UP and self.is_piecewise(at_first)

    def is_as(self, at_tiny: Window) -> bool:
        """Whether the foreground has the GPU as often beside slices as `at_tiny` ones, and does as much at a time. Then
        they spare nothing, unless it wanted all of the GPU before. Only where it is not told how often it waits.
        """
        often = FEWER * at_tiny.gaps <= self.gaps <= at_tiny.gaps / FEWER
        as_much = at_tiny.held_s / MORE < self.held_s < MORE * at_tiny.held_s
        return self._untold and often and as_much and at_tiny.taken(0.0) < FULL_UP

    @property
    def _untold(self) -> bool:
        return self.waiting == 0 and self.gaps * self.length_s >= ENOUGH

    def is_held_up(self, slice_s: float) -> bool:
        """Whether slices are a noticeable part of what the foreground waits for, as far as is known."""
        return self.waiting == 0 or self.waiting * slice_s >= NOTICED * self.own_waited


NOTHING = Window()


def window_of(
    foreground: Sequence[Task], background: Sequence[Task], before: Mapping[TaskKey, Task], length_s: float
) -> Window:
    """What the tasks did since they were as they are in `before`, `length_s` ago."""
    # Several tasks on one side are switched among each other, too: that is no pause of the foreground.
    gaps = min(
        sum(task.usage.turns - before.get(task.key, task).usage.turns for task in side)
        for side in (foreground, background)
    )
    held_s = waited_s = own_waited_s = launching_s = 0.0
    turns = told_turns = waits = work = 0
    restless: set[TaskKey] = set()
    for task in foreground:
        then = before.get(task.key, task)
        held = task.usage.held_s - then.usage.held_s
        held_s += held
        turns += task.usage.turns - then.usage.turns
        told_turns += task.usage.turns - then.usage.turns if can_be_watched(task) else 0
        if task.activity is not None and then.activity is not None:
            # Anybody can write anything there: nobody counts for more than one that did nothing else.
            waited = min(length_s, max(0.0, task.activity.waited_s - then.activity.waited_s))
            waited_s += waited
            if held > 0:
                own_waited_s += waited
                launching = min(length_s, max(0.0, task.activity.launching_s - then.activity.launching_s))
                launching_s += launching
                if not HARDLY * length_s <= waited < BEHIND * length_s - launching:
                    restless.add(task.key)
                work += task.activity.work - then.activity.work
                waits += max(0, task.activity.waits - then.activity.waits)
    return Window(
        length_s,
        gaps / length_s,
        held_s / length_s,
        waited_s / length_s,
        own_waited_s / length_s,
        launching_s / length_s,
        waits / length_s,
        work / length_s,
        told_turns / turns if turns > 0 else 1.0,
        pressed=any(task.target_p99_us is not None for task in foreground),
        restless=frozenset(restless),
    )


def can_be_watched(task: Task) -> bool:
    """Whether a task tells of its activity, and has a class that is listened to."""
    return task.task_class == TaskClass.LATENCY and task.activity is not None
