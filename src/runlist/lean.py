"""Starts of processes of our own: msgspec is imported without what it takes along if it is there and we never use, and
the collector of garbage looks seldom until `started`, and not once more at the end. Import it before anything else.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import sys
from collections.abc import Iterator

_USUAL = gc.get_threshold()
gc.set_threshold(10_000)  # nearly all that is new stays: with 700 a sixth of the daemon's start went into looks
atexit.register(gc.freeze)  # or Python would look through all that was ever loaded before it ends


def started() -> None:
    """What is loaded is no garbage: collections skip it from now on, and so stay short. They come as usual again."""
    gc.freeze()
    gc.set_threshold(*_USUAL)


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
