"""Threads that work is given to, while memory is short."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor


class Pool(ThreadPoolExecutor):
    """One whose work waits for a thread that it has where there is no room for another."""

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError:
            if not self._threads:
                raise
