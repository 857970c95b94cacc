"""Shares by weight among enabled tasks: long slices in proportion, corrected by the time that each really held."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from runlist.model import LATENCY_CRITICAL, Task, TaskKey, Usage
from runlist.policies.parts.pace import reached
from runlist.policies.parts.rations import rations
from runlist.policies.parts.remembered import MOST, remembered
from runlist.policies.parts.together import as_one

BASE_US = 16_000
"""Mean slice. Each switch loses about 280 µs of work (restored state, cold caches), which is 2 % of this. At
12 ms, as long as the jobs' bursts, shares were off by up to 8.3 points in a window.
"""
SHORT_BASE_US = 2_000
"""Mean slice when a task that minds waiting is among them: the driver's default, 14 % of which a switch loses."""
MIN_US, MAX_US = 700, 200_000
"""With 1.5 ms as the least, weights 10:1 were off by 4.2 points; at 700 µs a switch loses 40 %. Above the second the
others wait too long.
"""

WINDOW_S, WINDOW_ROUNDS = 0.25, 3
"""Shares are compared with their targets over this time at least, and over this many rounds of all slices."""
MOST_PATIENT = 4
"""While shares are on target, or nobody competes, looks come more and more seldom, down to one in so many windows."""
LONGEST_WINDOW_S = 2.0
"""A difference of less than a turn may be chance: the window grows up to here before it is corrected."""
GAIN, RETURN = 0.7, 0.15
MAX_STEP = 4.0
MAX_FACTOR = 8.0
BACKLOGGED_TURNS = 0.7
FILLS = 0.8
"""A task whose mean turn is below this part of its slice gives slices away, so a longer slice changes nothing."""
NOTICEABLE = 0.05
"""A slice that differs by less is not set anew: each control takes about 0.35 ms."""

REMEMBERED_S = 30.0
MAX_WINDOWS = 16


_Competing = frozenset[tuple[TaskKey, str, int]]
"""Competing tasks, each with the name that it shares as and its weight."""


class _Window(msgspec.Struct):
    """Seconds held and switches in, by task, while the same tasks competed."""

    last: float
    elapsed: float = 0.0
    looked: float = 0.0  # when `elapsed` was this it was too early to tell
    held: dict[TaskKey, float] = {}
    turns: dict[TaskKey, int] = {}
    calm: int = 0  # looks since the shares were last off

    def restart(self) -> None:
        self.elapsed = self.looked = 0.0
        self.held.clear()
        self.turns.clear()

    def add(self, key: TaskKey, before: Usage, after: Usage) -> None:
        self.held[key] = self.held.get(key, 0.0) + max(0.0, after.held_s - before.held_s)
        self.turns[key] = self.turns.get(key, 0) + max(0, after.turns - before.turns)


class _Group(msgspec.Struct):
    """What competes as one: the factor that its slices are corrected by, and when it last did."""

    last: float
    factor: float = 1.0


class WeightedSlices:
    """Slices in proportion to weights, and a feedback loop that makes shares of them.

    Slices alone are no shares: a job that pauses gives the rest of its slice away. So every window the share of each
    group that wants more than it gets (is backlogged) is compared with its target, and its slices are corrected by a
    factor (an integral controller in the logarithm). Where a longer slice would change nothing, because the job does
    not fill the one it has, only those of the others get shorter. An idle task costs the others nothing: the GPU skips
    it, and its factor drifts back to 1 for when it returns.

    Each set of competing tasks and weights has a window of its own. So tasks that come and go in a rhythm, as capped
    ones do, are compared only while they compete, and shares that were right under earlier weights are not made up for.
    Tasks that run together compete as one.
    """

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        self._windows: dict[_Competing, _Window] = {}
        self._given: dict[TaskKey, int] = {}
        self._usage: dict[TaskKey, Usage] = {}  # of the tasks that compete since the last call
        self._found: Mapping[TaskKey, TaskKey] = {}  # as which task each of them competes
        self._window: _Window | None = None  # of theirs
        self._last = self._cleaned = 0.0

    def pause(self) -> None:
        """The tasks stop competing until the next call of `slices`."""
        self._window = None

    def slices(
        self, members: Sequence[Task], tasks: Iterable[Task], now: float
    ) -> tuple[dict[TaskKey, int], float | None]:
        """Slices, in µs, for `members`, of which there is at least one, and in how many seconds to ask again.

        `tasks` are all tasks of the GPU: they tell the usage of those that competed until now.
        """
        self._account(tasks, now)
        self._usage = {task.key: task.usage for task in members}
        members, self._found = as_one(members)
        groups: dict[str, list[Task]] = {}
        for task in members:
            groups.setdefault(task.shares_as, []).append(task)
        for name in groups:
            self._groups.setdefault(name, _Group(now)).last = now
        self._last = now
        if now - self._cleaned > REMEMBERED_S or len(self._groups) > MOST + len(groups):
            self._forget(now)
        if len(groups) == 1:
            self._window = None
            return self._settled(self._wanted(groups)), None
        length = self._window_length(members)
        competing = frozenset((task.key, task.shares_as, task.weight) for task in members)
        self._window = self._window_of(competing, now, 20 * length)
        length *= min(MOST_PATIENT, 1 + self._window.calm)
        if reached(self._window.looked + length, self._window.elapsed):
            if self._correct(groups, self._window):
                self._window.restart()
            else:
                self._window.looked = self._window.elapsed
        return self._settled(self._wanted(groups)), self._window.looked + length - self._window.elapsed

    def _account(self, tasks: Iterable[Task], now: float) -> None:
        """Add the usage since the last call to the window of those that competed."""
        elapsed, window = now - self._last, self._window
        if window is None or elapsed <= 0:
            return
        window.elapsed += elapsed
        window.last = now
        for task in tasks:
            before = self._usage.get(task.key)
            if before is not None:
                window.add(self._found[task.key], before, task.usage)

    def _window_of(self, competing: _Competing, now: float, valid_s: float) -> _Window:
        """The window of this set; a new one when there is none, or it is from long ago."""
        window = self._windows.get(competing)
        if window is None:
            if len(self._windows) >= MAX_WINDOWS:
                del self._windows[min(self._windows, key=lambda each: self._windows[each].last)]
            window = self._windows[competing] = _Window(now)
        elif now - window.last > valid_s:
            window.restart()
        window.last = now
        return window

    def _window_length(self, members: Sequence[Task]) -> float:
        round_us = sum(self._given.get(task.key, BASE_US) for task in members)
        return max(WINDOW_S, WINDOW_ROUNDS * round_us / 1e6)

    def _correct(self, groups: dict[str, list[Task]], window: _Window) -> bool:
        """Move the factors of the backlogged groups towards their targets, and those of the others towards 1.

        False when the shares differ by less than a turn: such a window is too short to tell.
        """
        held = {name: sum(window.held.get(task.key, 0.0) for task in group) for name, group in groups.items()}
        turns = {name: max(window.turns.get(task.key, 0) for task in group) for name, group in groups.items()}
        most = max(turns.values())
        backlogged = [name for name in groups if held[name] > 0 and turns[name] >= BACKLOGGED_TURNS * most]
        for name in groups:
            if name not in backlogged or len(backlogged) == 1:
                self._groups[name].factor **= 0.5
        if len(backlogged) < 2:
            window.calm += 1
            return True
        total, weights = sum(held[name] for name in backlogged), _weights({name: groups[name] for name in backlogged})
        all_weights = sum(weights.values())
        targets = {name: total * weight / all_weights for name, weight in weights.items()}
        off = [name for name in backlogged if abs(held[name] - targets[name]) > self._resolution(groups[name], window)]
        window.calm = 0 if off else window.calm + 1
        if not off and window.elapsed < LONGEST_WINDOW_S:
            return False
        steps = {name: _step(targets[name] / held[name]) if name in off or not off else 1.0 for name in backlogged}
        giving = [name for name in backlogged if not self._fills(groups[name], window)]
        if 0 < len(giving) < len(backlogged):
            # A longer slice changes nothing for them: relative to theirs, those of the others change.
            lead = max(steps[name] for name in giving)
        else:  # the mean slice slowly returns to its base
            lead = sum(weights[name] * self._groups[name].factor * steps[name] for name in backlogged) / all_weights
            lead **= RETURN
        for name in backlogged:
            group = self._groups[name]
            group.factor = min(MAX_FACTOR, max(1 / MAX_FACTOR, group.factor * steps[name] / lead))
        return True

    def _resolution(self, group: Sequence[Task], window: _Window) -> float:
        """Seconds by which the time that a group held may differ by chance: a turn more or less."""
        turns, held = (sum(each.get(task.key, 0) for task in group) for each in (window.turns, window.held))
        slice_s = max(self._given.get(task.key, BASE_US) for task in group) / 1e6
        return min(slice_s, 2 * held / turns) if turns else slice_s

    def _fills(self, group: Sequence[Task], window: _Window) -> bool:
        """Whether any task of a group uses its slices up, as far as can be told."""
        return any(
            held * 1e6 >= FILLS * self._given.get(task.key, 0) * window.turns[task.key]
            for task in group
            if (held := window.held.get(task.key))
        )

    def _wanted(self, groups: dict[str, list[Task]]) -> dict[TaskKey, float]:
        """Slices by weight and factor, within bounds."""
        members = [task for group in groups.values() for task in group]
        round_us = _base_us(members) * len(members)
        weights = _weights(groups)
        all_weights = sum(weights.values())
        wanted: dict[TaskKey, float] = {}
        for name, group in groups.items():
            factor = self._groups[name].factor if len(groups) > 1 else 1.0
            group_us = round_us * weights[name] / all_weights * factor
            inner = sum(task.weight for task in group)
            for task in group:
                wanted[task.key] = group_us * task.weight / inner
        scale = max(min(1.0, MAX_US / max(wanted.values())), MIN_US / min(wanted.values()))
        return {key: min(MAX_US, scale * us) for key, us in wanted.items()}

    def _settled(self, wanted: dict[TaskKey, float]) -> dict[TaskKey, int]:
        """The slices to give: those given before, where they are near enough."""
        for key, us in wanted.items():
            given = self._given.get(key)
            if given is None or abs(us - given) > NOTICEABLE * given:
                self._given[key] = round(us)
        return {key: self._given[one] for key, one in self._found.items()}

    def _forget(self, now: float) -> None:
        """Drop the records of tasks that are long gone."""
        self._cleaned = now
        self._groups = remembered(self._groups, lambda group: group.last, now, REMEMBERED_S)
        self._windows = {each: window for each, window in self._windows.items() if now - window.last < REMEMBERED_S}
        known = set(self._found.values()) | {key for competing in self._windows for key, _, _ in competing}
        self._given = {key: us for key, us in self._given.items() if key in known}


def _step(ratio: float) -> float:
    return float(min(MAX_STEP, max(1 / MAX_STEP, ratio)) ** GAIN)


def _base_us(members: Sequence[Task]) -> int:
    return SHORT_BASE_US if any(task.task_class in LATENCY_CRITICAL for task in members) else BASE_US


def _weights(groups: Mapping[str, Sequence[Task]]) -> dict[str, float]:
    left = rations(groups, groups)
    return {name: max(task.weight for task in group) * left.get(name, 1.0) for name, group in groups.items()}
