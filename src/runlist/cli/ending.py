"""Ending at a signal as at Ctrl-C: what was made is put away."""

from __future__ import annotations

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
