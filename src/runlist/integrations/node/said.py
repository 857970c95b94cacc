"""Lines of the log, each said once: not again with every pass while it stays true."""

from __future__ import annotations

import threading
from collections.abc import Collection

import structlog

_log = structlog.get_logger()
_MOST = 20_000


class Said:
    """What was said last of each subject. May be used by several threads."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}
        self._lock = threading.Lock()

    def say(self, subject: str, text: str) -> bool:
        """Say what is wrong with a subject, or with no text that it is well again. Whether it was said now."""
        with self._lock:
            before = self._last.get(subject, "")
            if text == before:
                return False
            if text:
                if len(self._last) >= _MOST:
                    self._last.clear()
                self._last[subject] = text
            else:
                del self._last[subject]
        if text:
            _log.warning(f"{subject}: {text}", about=subject)
        else:
            _log.info(f"{subject}: in order again", about=subject)
        return True

    def forget(self, subjects: Collection[str]) -> None:
        """Drop subjects that are gone, without a word."""
        with self._lock:
            for subject in subjects:
                self._last.pop(subject, None)
