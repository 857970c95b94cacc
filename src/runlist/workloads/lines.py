"""The lines that another process prints, each waited for."""

from __future__ import annotations

import os
import selectors
import time


class Lines:
    """Lines from a pipe, which stays whose it is."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._buffer = b""

    def next(self, patience_s: float) -> bytes | None:
        """The next line, without its end; None where the pipe ended before that. Raises TimeoutError."""
        until = time.monotonic() + patience_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._descriptor, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, until - time.monotonic())):
                    raise TimeoutError
                if not (more := os.read(self._descriptor, 1 << 16)):
                    return None
                self._buffer += more
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line
