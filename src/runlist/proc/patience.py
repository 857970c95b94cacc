"""Asking the kernel for what another process can hold up, and not waiting for long.

A process' command line and environment are its own memory, which it can lock for seconds (a large fork); its program
may lie on a file system that it serves itself (FUSE). Such a question is asked in a thread that nobody waits for any
more once patience is over. Whoever let us wait is not asked again for a while: by owner, since a user can have as many
processes and namespaces as they like. A process is not asked again before that thread has its answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from runlist.proc.owners import Owner
from runlist.proc.process import owner_of
from runlist.proc.threads import without_processor_s

PATIENCE_S = 0.1
"""What a question may take, besides the time in which its thread had no processor: that is not the process' doing."""
LONGEST_S = 2.0
"""What it may take with that time."""
SILENCE_S = 30.0
MOST_OPEN = 8
"""Of an owner, questions that nobody waits for any more; beyond that there are no others."""
_MANY_OWNERS = 1024

_Answer = TypeVar("_Answer")


class _Silence(msgspec.Struct):
    """Of an owner: until a time of the monotonic clock; and the questions that are open, by process id."""

    until: float = 0.0
    open: dict[int, threading.Event] = {}

    def covers(self, pid: int) -> bool:
        for asked in [asked for asked, answered in list(self.open.items()) if answered.is_set()]:
            self.open.pop(asked, None)
        return time.monotonic() < self.until or pid in self.open or len(self.open) >= MOST_OPEN


_silent: dict[Owner, _Silence] = {}


def ask(pid: int, question: Callable[[], _Answer], otherwise: _Answer) -> _Answer:
    """The answer to a question about a process, or `otherwise` where it takes too long or there is no such process."""
    uid = owner_of(pid)
    if uid is None:
        return otherwise
    owner = Owner.of(pid, uid)
    if (silence := _silent.get(owner)) is not None and silence.covers(pid):
        return otherwise
    answers: list[_Answer] = []
    answered = threading.Event()

    def work() -> None:
        try:
            answers.append(question())
        except OSError:
            pass
        finally:
            answered.set()

    asking = threading.Thread(target=work, daemon=True)
    try:
        asking.start()
    except RuntimeError:  # there is no room for a thread
        return otherwise
    if _in_time(asking, answered):
        return answers[0] if answers else otherwise
    if len(_silent) >= _MANY_OWNERS:
        for known in [known for known, each in list(_silent.items()) if not each.covers(0)]:
            _silent.pop(known, None)
    silence = _silent.setdefault(owner, _Silence())
    silence.until = time.monotonic() + SILENCE_S
    silence.open[pid] = answered
    return otherwise


def is_silent(pid: int) -> bool:
    """Whether a question about a process has no answer now, whatever it is."""
    uid = owner_of(pid)
    silence = None if uid is None else _silent.get(Owner.of(pid, uid))
    return silence is not None and silence.covers(pid)


def _in_time(asking: threading.Thread, answered: threading.Event) -> bool:
    began = time.monotonic()
    while not answered.wait(PATIENCE_S):
        passed = time.monotonic() - began
        if passed >= LONGEST_S or passed - without_processor_s(asking) >= PATIENCE_S:
            return answered.is_set()
    return True
