"""Threads that work is given to, while memory is short, and for which nobody waits without end."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

PARTING_S = 1.0
"""How long threads may go on at the end: one waits perhaps for a file system, or a driver, that never answers."""


class Pool(ThreadPoolExecutor):
    """One whose work waits for a thread that it has where there is no room for another."""

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError:
            if not self._threads:
                raise

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As any other's, but whoever waits does so for PARTING_S at most."""
        super().shutdown(wait=False, cancel_futures=cancel_futures)
        if wait:
            _hang(self._threads)

    @property
    def hangs(self) -> bool:
        """Of one that was shut down: whether a thread goes on all the same."""
        return any(thread.is_alive() for thread in self._threads)


def leave(code: int) -> NoReturn:
    """End this process, whatever its threads wait for."""
    if _hang(thread for thread in threading.enumerate() if thread is not threading.main_thread() and not thread.daemon):
        os._exit(code)
    sys.exit(code)


def _hang(threads: Iterable[threading.Thread]) -> bool:
    """Wait for threads, PARTING_S at most; whether there are any left then."""
    until = time.monotonic() + PARTING_S
    waited_for = list(threads)
    for thread in waited_for:
        thread.join(max(0.0, until - time.monotonic()))
    return any(thread.is_alive() for thread in waited_for)
