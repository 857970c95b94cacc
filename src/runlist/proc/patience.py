"""Asking the kernel for what another process can hold up, and not waiting for long.

A process' command line and environment are its own memory, which it can lock for seconds (a large fork); its program
may lie on a file system that it serves itself (FUSE). Such a question is asked in a thread that nobody waits for any
more once patience is over. Whoever let us wait is not asked again for a while.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 0.1
SILENCE_S = 30.0
_MOST_KEYS = 1024

_Answer = TypeVar("_Answer")

_silent_until: dict[tuple[int, int], float] = {}


def ask(pid: int, question: Callable[[], _Answer], otherwise: _Answer) -> _Answer:
    """The answer to a question about a process, or `otherwise` where it takes too long or there is no such process."""
    key = _key(pid)
    if key is None or time.monotonic() < _silent_until.get(key, 0.0):
        return otherwise
    answers: list[_Answer] = []
    done = threading.Event()

    def work() -> None:
        try:
            answers.append(question())
        except OSError:
            pass
        finally:
            done.set()

    threading.Thread(target=work, daemon=True).start()
    if done.wait(PATIENCE_S):
        return answers[0] if answers else otherwise
    if len(_silent_until) >= _MOST_KEYS:
        _silent_until.clear()
    _silent_until[key] = time.monotonic() + SILENCE_S
    return otherwise


def _key(pid: int) -> tuple[int, int] | None:
    """Who answers for a process: its user, and the container that it is in."""
    try:
        return os.stat(f"/proc/{pid}").st_uid, os.stat(f"/proc/{pid}/ns/pid").st_ino
    except PermissionError:
        return -1, 0  # its memory may not be read, either
    except OSError:
        return None
