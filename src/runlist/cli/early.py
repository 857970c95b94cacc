"""Ctrl-C while the command line loads its libraries ends it at once and without a word: there is nothing to put back,
and the line of an import that it happened to meet tells nobody anything. Import it before anything else.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

INTERRUPTED = 128 + signal.SIGINT
"""The exit code of what Ctrl-C ended, as in a shell."""


def _end(number: int, frame: FrameType | None) -> None:
    del number, frame
    os._exit(INTERRUPTED)


def loaded() -> None:
    """Ctrl-C is a KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


try:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # who ignores it goes on doing so
        signal.signal(signal.SIGINT, _end)
except ValueError:  # imported by a thread of somebody's program, where signals are not ours
    pass
