"""Taking the GPU before a request is due: a kernel of one thread that waits on the program's stream for the host."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

from bench.papers.common.programs.waiting import until
from runlist.workloads.gpu import Flag, current_kernel, in_this_context

_U32 = 0xFFFFFFFF
_GRACE_S = 50e-6
_SWITCH_S = 50e-6
"""Python lets another thread go on after so long; its own 5 ms would be longer than a request."""


class Ahead:
    """Blocks a stream before a moment, and releases it then, so that what was queued behind begins at once.

    Who launches many kernels one by one is still at that when the moment comes, or even stuck, where a channel has no
    room for them all: then another thread does what is to be done at the moment.
    """

    def __init__(self, stream: int) -> None:
        self._stream = stream
        self._flag = Flag()
        self._kernel = current_kernel("wait_flag_u32")
        self._ticket = 0
        self._due_ns = 0
        self._released_ns = 1
        self._ready: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._armed = threading.Event()
        sys.setswitchinterval(_SWITCH_S)
        threading.Thread(target=in_this_context(self._watch), daemon=True, name="release").start()

    def begin(self, due_ns: int, lead_us: float, ready: Callable[[], None]) -> None:
        """Wait until it is so long before it is due, and block. `ready` is done once it is due, before the release; by
        this thread or another.
        """
        until(due_ns - round(lead_us * 1e3))
        with self._lock:
            self._ticket = (self._ticket + 1) & _U32
            self._due_ns, self._released_ns, self._ready = due_ns, 0, ready
        self._kernel.launch(self._stream, 1, self._flag.address, self._ticket, threads=1)
        self._armed.set()

    def release(self) -> int:
        """Wait until it is due, and let go; when the stream was let go, by whomever."""
        until(self._due_ns)
        self._let_go(self._ticket)
        return self._released_ns

    def _let_go(self, ticket: int) -> None:
        with self._lock:
            if not self._released_ns and ticket == self._ticket:
                self._armed.clear()
                self._ready()
                self._released_ns = time.monotonic_ns()
                self._flag.value = ticket

    def _watch(self) -> None:
        while True:
            self._armed.wait()
            ticket = self._ticket
            time.sleep(max(0.0, (self._due_ns - time.monotonic_ns()) / 1e9) + _GRACE_S)
            self._let_go(ticket)
