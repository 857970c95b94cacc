"""Ending a call that takes too long, in the one thread of the daemon: a policy may be anybody's code."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

from runlist import log
from runlist.errors import Ended
from runlist.proc.threads import without_processor_s

_Result = TypeVar("_Result")

MAX_RINGS = 20
"""A call that goes on after so many signals ends the daemon: then the keeper puts everything back."""
NEARLY = 0.9
"""Of its time: what is measured is a little less than what has passed."""


class Stalled(Ended):
    """The call took too long."""


class Watchdog:
    """Calls functions with a limit on their time. There can be one, in the main thread: it owns SIGALRM.

    Time in which this thread waited for a processor is not theirs. It cannot end a loop inside a C library. A loop that
    ignores every exception ends the process.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = self._limit_now_s = limit_s
        self._rings = 0
        self._begun_at_cpu_s = self._taken_s = 0.0
        self._looked: tuple[float, float] | None = None
        signal.signal(signal.SIGALRM, self._ring)

    def call(self, function: Callable[[], _Result], limit_s: float | None = None) -> _Result:
        """Call `function`. After `limit_s` (None: the usual limit) Stalled is raised inside it, again and again."""
        limit_s = self._limit_s if limit_s is None else limit_s
        self._limit_now_s = limit_s
        self._rings, self._looked = 0, None
        self._begun_at_cpu_s = time.thread_time()
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
        if not self._rings and not self._has_had_its_time():
            return  # it rings again
        self._rings += 1
        if self._rings > MAX_RINGS:
            log.write("a policy takes no notice of being stopped: the daemon ends, and everything is put back\n")
            os._exit(1)
        raise Stalled(f"took longer than {self._limit_now_s:g} s")

    def _has_had_its_time(self) -> bool:
        """Until the first ring what it computed counts, since then whatever it did while it could go on."""
        now, waited = time.monotonic(), without_processor_s(threading.main_thread())
        if self._looked is None:
            self._taken_s = time.thread_time() - self._begun_at_cpu_s
        else:
            at, waited_then = self._looked
            self._taken_s += now - at - (waited - waited_then)
        self._looked = now, waited
        return self._taken_s >= NEARLY * self._limit_now_s


def _guarded(function: Callable[[], _Result]) -> _Result:
    """Call it. Stalled is raised only below this frame, so that it cuts nothing else short."""
    return function()
