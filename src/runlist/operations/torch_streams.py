"""A PyTorch stream of its own for each thread that is a client.

PyTorch's default stream is the driver's legacy one for all threads, and its other streams come from a pool that any
thread may have made. The scheduler knows whose a stream is by who made it; PyTorch's threads for backward passes, which
are no clients, work on the stream of the forward pass. So the stream is made by the driver, in the client's thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from collections.abc import Iterator
from typing import Any

from runlist.errors import NotSupportedError

_NON_BLOCKING = 1


class TorchStreams:
    """Those of one scheduler. None is ever destroyed, since PyTorch remembers which memory was used on it: who is a
    client again has one that is free.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: dict[tuple[int, int], list[Any]] = {}

    def settle(self) -> None:
        """Before a thread becomes a client: what it gave to its stream is done, and there is a context."""
        if (cuda := _cuda()) is not None:
            cuda.current_stream().synchronize()

    @contextlib.contextmanager
    def own(self, client: int) -> Iterator[None]:
        """In a client's thread: a stream of its own is PyTorch's current one. What was given to it is done at the end,
        unless that comes by an exception. Nothing where PyTorch was not imported, or sees no GPU.
        """
        if (cuda := _cuda()) is None:
            yield
            return
        key = client, int(cuda.current_device())
        with self._lock:
            free = self._free.setdefault(key, [])
            stream = free.pop() if free else None
        if stream is None:
            stream = cuda.ExternalStream(_make(), device=key[1])
        try:
            with cuda.stream(stream):
                yield
            stream.synchronize()
        finally:
            with self._lock:
                free.append(stream)


def _cuda() -> Any:
    """PyTorch's part for GPUs; None where nobody imported PyTorch, or it sees none. It is never imported here."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_available() else None


def _make() -> int:
    """A stream of the driver's in the thread's context; the library chooses its priority. Returns its handle."""
    handle = ctypes.c_void_p()
    try:
        status = ctypes.CDLL("libcuda.so.1").cuStreamCreateWithPriority(ctypes.byref(handle), _NON_BLOCKING, 0)
    except (OSError, AttributeError) as error:
        raise NotSupportedError(f"no stream can be made for PyTorch: {error}") from None
    if status != 0 or not handle.value:
        raise NotSupportedError(f"no stream can be made for PyTorch: CUDA error {status}")
    return handle.value
