"""Hints: keeping the GPU free for a task that said when it will want it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from runlist.model import Hint, Task, TaskKey
from runlist.policies.parts.savings import Savings

AHEAD_S = 2.5e-3
"""The others go off this long before the announced time: the way there and suspending one take 1.6 to 2.4 ms. At 1.5 ms
that came to an end in the middle of the work (p50 1.36 × alone, H200).
"""
WAIT_S = 5e-3
"""They come back this long after it at the latest."""
GRACE_S = 1e-3
"""They come back this long after the task began."""
LONGEST_S = AHEAD_S + WAIT_S
BURST_S = 0.05
"""So much time hints may take at once, and half of it in the long run. While each had to wait for as long as the last
one took, one in ten came too late for requests at random times, 80 a second (p99 1.34 × alone, H200).
"""
LOOK_S = 2e-3
FARTHEST_S = 10.0


class _Announced(msgspec.Struct):
    at: float
    begun: int = -1  # how often it had begun when the others went off; -1: they have not
    done: float = 0.0  # when the others come back; 0: not switched in yet


class Hints:
    """When the background has to be off for tasks that announced themselves. The last hint of a task counts.

    Hints must not stop the background for good: what they take is saved before, while it runs. The owners who hint have
    equal parts of that, however many tasks.
    """

    def __init__(self) -> None:
        self._announced: dict[TaskKey, _Announced] = {}
        self._savings = Savings(BURST_S, LONGEST_S, LONGEST_S, rate=1.0)

    def note(self, hint: Hint, now: float) -> None:
        """A task announced itself. Times that make no sense are ignored."""
        if 0 <= hint.in_s <= FARTHEST_S:
            self._announced[hint.key] = _Announced(now + hint.in_s)

    def drop(self, key: TaskKey) -> None:
        """The task is gone."""
        self._announced.pop(key, None)

    def wanting(self) -> list[TaskKey]:
        """For whom the others went off."""
        return [key for key, announced in self._announced.items() if announced.begun >= 0]

    def off_until(self, entitled: Mapping[TaskKey, Task], now: float) -> tuple[float | None, float | None]:
        """Until when the background is off (None: it is not), and in how many seconds to ask again (None: no need).

        A hint of a task that is not `entitled` waits until it lapses.
        """
        until, look = float("-inf"), float("inf")
        self._savings.pass_time({entitled[key].owner for key in self._announced.keys() & entitled.keys()}, now)
        for key, announced in list(self._announced.items()):
            ends = announced.done or announced.at + WAIT_S
            task = entitled.get(key)
            if now >= ends:
                del self._announced[key]
                continue
            if task is None:
                continue
            account = self._savings[task.owner]
            free = self._savings.enough_at(account, now) if account.empty else now
            starts = max(announced.at - AHEAD_S, free)
            if starts >= ends:
                continue
            if now < starts:
                look = min(look, starts - now)
                continue
            if announced.begun < 0:
                announced.begun = _begun(task)
            elif not announced.done and _begun(task) > announced.begun:
                announced.done = ends = min(ends, now + GRACE_S)
            account.until = max(account.until, min(ends, now + account.saved_s))
            until = max(until, account.until)
            look = min(look, max(0.0, until - now), LOOK_S)
        return until if until > now else None, look if look < float("inf") else None


def _begun(task: Task) -> int:
    """How often a task began to work. Its library's touch of the context is none of what that counts, but switches it
    in, half a millisecond early: by that the others came back in the middle of the work (p99 1.33 × alone, H200).
    """
    return task.usage.turns if task.activity is None else task.activity.work
