"""How much memory a GPU of this node has, which parts of a GPU are parts of."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection

from runlist.errors import RunlistError
from runlist.integrations.gpu_sizes import gpu_sizes
from runlist.planes.interface import Plane

AGAIN_S = 30.0
_CLOSE = 0.02
"""Sizes that differ by no more are one: the same model keeps a little more or less for itself."""


class GpuMemory:
    """Asks the driver, else the daemon, once they are needed; not again for a while where neither tells."""

    def __init__(self, plane: Plane, device: str | None) -> None:
        self._plane, self._device = plane, device
        self._known: int | None = None
        self._asked = -AGAIN_S

    def __call__(self) -> int | None:
        if self._known is None and time.monotonic() - self._asked >= AGAIN_S:
            self._asked = time.monotonic()
            with contextlib.suppress(RunlistError):
                self._known = _one(gpu_sizes(self._plane, self._device).values())
        return self._known


def _one(sizes: Collection[int]) -> int | None:
    """The smallest of sizes that are nearly the same."""
    return min(sizes) if sizes and max(sizes) <= min(sizes) * (1 + _CLOSE) else None
