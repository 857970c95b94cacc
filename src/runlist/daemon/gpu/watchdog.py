"""Ending a call that takes too long, in the one thread of the daemon: a policy may be anybody's code."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

from runlist.errors import Ended

_Result = TypeVar("_Result")

MAX_RINGS = 20
"""A call that goes on after so many signals ends the daemon: then the keeper puts everything back."""


class Stalled(Ended):
    """The call took too long."""


class Watchdog:
    """Calls functions with a limit on their time. There can be one, in the main thread: it owns SIGALRM.

    It cannot end a loop inside a C library. A loop that ignores every exception ends the process.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = self._limit_now_s = limit_s
        self._rings = 0
        signal.signal(signal.SIGALRM, self._ring)

    def call(self, function: Callable[[], _Result], limit_s: float | None = None) -> _Result:
        """Call `function`. After `limit_s` (None: the usual limit) Stalled is raised inside it, again and again."""
        limit_s = self._limit_s if limit_s is None else limit_s
        self._limit_now_s = limit_s
        self._rings = 0
        signal.setitimer(signal.ITIMER_REAL, limit_s, limit_s)
        try:
            return _guarded(function)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        del number
        while frame is not None and frame.f_code is not _guarded.__code__:
            frame = frame.f_back
        if frame is None:  # just before the call, where it rings again, or just after
            return
        self._rings += 1
        if self._rings > MAX_RINGS:
            os.write(2, b"a policy takes no notice of being stopped: the daemon ends, and everything is put back\n")
            os._exit(1)
        raise Stalled(f"took longer than {self._limit_now_s:g} s")


def _guarded(function: Callable[[], _Result]) -> _Result:
    """Call it. Stalled is raised only below this frame, so that it cuts nothing else short."""
    return function()
