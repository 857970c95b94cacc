"""Putting back what processes changed of how they, or others, are scheduled: soon after it was seen, and never so much
at a time that others wait.
"""

from __future__ import annotations

import asyncio
import time

from runlist.daemon.tree.checks import Checks

CORRECT_EVERY_S = 0.005
"""A process that changes its slices on and on has them put back so often."""
CORRECT_S, CORRECT_REST = 0.002, 4
"""So long they are put back in a row, however many do; then not for so many times as long as that took."""
ASSERT_REST = 50
"""Who may have stopped others on and on has that undone all the time but for so many times as long as it took last."""
MOST_MEDDLERS = 1 << 16


class Corrections:
    """Has `checks` look at what is due, in turn."""

    def __init__(self, checks: Checks) -> None:
        self._checks = checks
        self._wrong: dict[int, None] = {}  # processes whose slices are to be looked at, in the order of events
        self._correcting: asyncio.TimerHandle | None = None
        self._correct_at = 0.0  # not before
        self._corrected: dict[int, float] = {}  # when slices of a process were last looked at for an event
        self._meddlers: set[int] = set()  # who may have stopped others since all were last set right
        self._setting_right: asyncio.Task[None] | None = None
        self._set_right_at = 0.0  # not before

    def close(self) -> None:
        """Look no more."""
        if self._correcting is not None:
            self._correcting.cancel()
        if self._setting_right is not None:
            self._setting_right.cancel()

    def forget(self, pid: int) -> None:
        """A process has ended."""
        self._corrected.pop(pid, None)
        self._wrong.pop(pid, None)  # else a look at nobody would be remembered for ever

    def is_due(self, pid: int) -> bool:
        """Whether a process is to be looked at already."""
        return pid in self._wrong

    def is_new(self, meddler: int) -> bool:
        """Whether one who may have stopped others is to be remembered: all are set right for those that are there."""
        return meddler not in self._meddlers and len(self._meddlers) < MOST_MEDDLERS

    def set_all_right(self, but: int) -> None:
        """Set all right but what `but` did to itself: the driver lets any client disable the channels of all, and
        enable them; of whom is not told.
        """
        self._meddlers.add(but)
        if self._setting_right is None:
            self._setting_right = asyncio.get_running_loop().create_task(self._set_right())

    async def _set_right(self) -> None:
        try:
            while self._meddlers:
                await asyncio.sleep(max(0.0, self._set_right_at - time.monotonic()))
                meddlers, self._meddlers = self._meddlers, set()
                took_s = await self._assert_all(meddlers)
                self._set_right_at = time.monotonic() + max(CORRECT_EVERY_S, ASSERT_REST * took_s)
        finally:
            self._setting_right = None

    async def _assert_all(self, meddlers: set[int]) -> float:
        """What one does to itself stays. Returns how long it took, without what others did meanwhile."""
        pieces = self._checks.assert_all(but=meddlers.pop() if len(meddlers) == 1 else None)
        took_s, more = 0.0, True
        while more:
            began = time.monotonic()
            more = next(pieces, self) is not self
            took_s += time.monotonic() - began
            await asyncio.sleep(0)
        return took_s

    def look_at(self, pid: int) -> None:
        """Ask the driver what a process has now."""
        if pid not in self._wrong:
            self._wrong[pid] = None
            if self._correcting is None or time.monotonic() >= self._correct_at:
                self._some()

    def _some(self) -> None:
        """Those that are due, as long as others can wait."""
        if self._correcting is not None:
            self._correcting.cancel()
            self._correcting = None
        began = now = time.monotonic()
        if now >= self._correct_at:
            for pid in [pid for pid in self._wrong if self._due(pid) <= now]:
                del self._wrong[pid]
                self._checks.correct(pid, off=True)
                now = self._corrected[pid] = time.monotonic()
                if now - began >= CORRECT_S:
                    break
            self._correct_at = now + CORRECT_REST * (now - began)
        if self._wrong:
            due = max(self._correct_at, min(map(self._due, self._wrong)))
            self._correcting = asyncio.get_running_loop().call_later(max(0.0, due - now), self._some)

    def _due(self, pid: int) -> float:
        return self._corrected.get(pid, 0.0) + CORRECT_EVERY_S
