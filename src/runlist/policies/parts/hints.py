"""Hints: keeping the GPU free for a task that said when it will want it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runlist.model import Hint, Task, TaskKey

AHEAD_S = 2.5e-3
"""The others go off this long before the announced time: the way there and suspending one take 1.6 to 2.4 ms. At 1.5 ms
that came to an end in the middle of the work (p50 1.36 × alone, H200).
"""
WAIT_S = 5e-3
"""They come back this long after it at the latest."""
GRACE_S = 1e-3
"""They come back this long after the task was switched in."""
LONGEST_S = AHEAD_S + WAIT_S
LOOK_S = 2e-3
FARTHEST_S = 10.0


@dataclass(slots=True)
class _Announced:
    at: float
    turns: int = -1  # how often it had been switched in when the others went off; -1: they have not
    done: float = 0.0  # when the others come back; 0: not switched in yet


class Hints:
    """When the background has to be off for tasks that announced themselves. The last hint of a task counts.

    After each time off the background runs for as long, whatever tasks announce: hints must not stop it for good.
    """

    def __init__(self) -> None:
        self._announced: dict[TaskKey, _Announced] = {}
        self._off_from: float | None = None
        self._free_until = float("-inf")

    def note(self, hint: Hint, now: float) -> None:
        """A task announced itself. Times that make no sense are ignored."""
        if 0 <= hint.in_s <= FARTHEST_S:
            self._announced[hint.key] = _Announced(now + hint.in_s)

    def drop(self, key: TaskKey) -> None:
        """The task is gone."""
        self._announced.pop(key, None)

    def wanting(self) -> list[TaskKey]:
        """For whom the others went off."""
        return [key for key, announced in self._announced.items() if announced.turns >= 0]

    def off_until(self, entitled: Mapping[TaskKey, Task], now: float) -> tuple[float | None, float | None]:
        """Until when the background is off (None: it is not), and in how many seconds to ask again (None: no need).

        A hint of a task that is not `entitled` waits until it lapses.
        """
        until, look = float("-inf"), float("inf")
        latest = (now if self._off_from is None else self._off_from) + LONGEST_S
        for key, announced in list(self._announced.items()):
            ends = announced.done or announced.at + WAIT_S
            task = entitled.get(key)
            if now >= ends:
                del self._announced[key]
                continue
            starts = max(announced.at - AHEAD_S, self._free_until)
            if task is None or starts >= ends:
                continue
            if now < starts:
                look = min(look, starts - now)
                continue
            if announced.turns < 0:
                announced.turns = task.usage.turns
            elif not announced.done and task.usage.turns > announced.turns:
                announced.done = ends = min(ends, now + GRACE_S)
            until = max(until, min(ends, latest))
            look = min(look, max(0.0, until - now), LOOK_S)
        off = until > now
        if off and self._off_from is None:
            self._off_from = now
        elif not off and self._off_from is not None:
            self._free_until = now + (now - self._off_from)
            self._off_from = None
        return until if off else None, look if look < float("inf") else None
