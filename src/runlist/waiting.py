"""Waiting until descriptors have something to read, whatever their numbers: `select` takes none of 1024 and above."""

from __future__ import annotations

import math
import select
from collections.abc import Sequence


def readable(descriptors: Sequence[int], timeout_s: float | None = None) -> list[int]:
    """Those that can be read, or whose other end is gone, as soon as there are any; none once the time is over."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    ready = poll.poll(None if timeout_s is None else math.ceil(max(0.0, timeout_s) * 1e3))
    return [descriptor for descriptor, _ in ready]
