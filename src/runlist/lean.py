"""Imports msgspec without what it takes along if it is there and we never use, and has the collector of garbage look
less often: what a start makes nearly all stays. For processes of our own alone; import it before anything else.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator

gc.set_threshold(10_000)  # objects; with 700, the default of Python 3.11, a sixth of the daemon's start went into it


@contextlib.contextmanager
def absent(*names: str) -> Iterator[None]:
    """Modules that are not loaded yet cannot be imported meanwhile; afterwards whoever wants them gets them."""
    hidden = [name for name in names if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


with absent("typing_extensions"):  # it brings inspect
    import msgspec  # noqa: F401
