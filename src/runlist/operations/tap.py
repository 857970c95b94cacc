"""The library's log of operations, for whoever wants it: the library tells each operation once, and so one thread
takes them for all.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from runlist.errors import NotSupportedError
from runlist.operations.record import Operation

Sink = Callable[[Sequence[Operation], int], None]
"""Is given operations, in the order of their launches, and how many were overwritten before them since the last time.
It must not raise.
"""

_ROOM = 4096
_EVERY_S = 0.05


class _Taken(ctypes.Structure):
    """struct rl_operation of native/include/runlist_operations.h."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("called_ns", "launched_ns", "done_ns")),
        *((name, ctypes.c_uint32) for name in ("client", "kind", "operation_class", "sms")),
        ("lost", ctypes.c_uint64),
        ("name", ctypes.c_char * 64),
    )


class _Tap:
    """Of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sinks: list[Sink] = []
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._room = (_Taken * _ROOM)()
        self._lost = 0

    def open(self, library: ctypes.CDLL, sink: Sink) -> None:
        with self._lock:
            if not self._sinks:
                if library.rl_operations_log(1) < 0:
                    raise NotSupportedError("no scheduler of operations was started in this process")
                self._end.clear()
                self._thread = threading.Thread(target=self._work, args=(library,), daemon=True, name="operations-log")
                self._thread.start()
            self._sinks.append(sink)

    def close(self, library: ctypes.CDLL, sink: Sink) -> None:
        time.sleep(_EVERY_S)  # what the program waited for is seen to be done a little later
        thread = None
        with self._lock:
            self._take(library)
            if len(self._sinks) == 1:
                library.rl_operations_log(0)
                self._take(library)  # with what is not done
                self._end.set()
                thread = self._thread
            self._sinks.remove(sink)
        if thread is not None:
            thread.join()

    def _work(self, library: ctypes.CDLL) -> None:
        while not self._end.wait(_EVERY_S):
            with self._lock:
                if self._sinks and not self._end.is_set():
                    self._take(library)

    def _take(self, library: ctypes.CDLL) -> None:
        while (count := library.rl_operations_take(self._room, _ROOM)) > 0:
            taken = self._room[:count]
            lost, self._lost = max(0, taken[-1].lost - self._lost), taken[-1].lost  # it is told of all since the start
            found = [_operation_of(one) for one in taken]
            for sink in self._sinks:
                sink(found, lost)
            if count < _ROOM:
                return


_TAP = _Tap()


@contextlib.contextmanager
def listening(library: ctypes.CDLL, sink: Sink) -> Iterator[None]:
    """Give a sink all operations from now on, from a thread of its own, while this lasts; those that are not done then
    come last. Raises NotSupportedError where no scheduler was started.
    """
    _TAP.open(library, sink)
    try:
        yield
    finally:
        _TAP.close(library, sink)


def _operation_of(taken: Any) -> Operation:
    return Operation(
        taken.client, taken.kind, taken.operation_class, taken.sms, taken.called_ns, taken.launched_ns, taken.done_ns,
        taken.name.decode(errors="replace"),
    )  # fmt: skip
