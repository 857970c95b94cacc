"""Ending at a signal as at Ctrl-C: what was made is put away. And ending by the signal by which a command ended."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from types import FrameType

STOPS = (signal.SIGTERM, signal.SIGHUP)


def in_order(numbers: Iterable[int] = STOPS, code: int | None = None) -> None:
    """Signals of these `numbers`, but those that we were started to ignore (`nohup`), are a SystemExit from now on,
    with `code`, else 128 + number.
    """
    taken = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        for other in taken:
            signal.signal(other, signal.SIG_IGN)  # what is put away now is put away whole
        raise SystemExit(128 + number if code is None else code)

    for number in taken:
        signal.signal(number, end)


_PR_SET_DUMPABLE = 4
_noted: list[int] = []


def note(number: int) -> None:
    """Be ended by that signal once all is put away: the command that we ran was. Who waits for us learns what he would
    learn of the command: a shell that it was Ctrl-C, a service manager that it was its own SIGTERM.
    """
    _noted.append(number)


def as_noted() -> None:
    """End so, if that was noted. Returns else, and where nothing ends us so, as process 1 of a container."""
    for number in _noted:
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # what is dumped is the command
        with contextlib.suppress(OSError, ValueError):  # nobody handles SIGKILL
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
