"""Imports asyncio and structlog without what they take along if it is there and the daemon never uses: 4 MB each of TLS
and of coloured tracebacks. Import it before anything else.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def _absent(*names: str) -> Iterator[None]:
    """Modules that are not loaded yet cannot be imported meanwhile; afterwards whoever wants them gets them."""
    hidden = [name for name in names if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


with _absent("rich", "ssl"):
    import asyncio  # noqa: F401

    import structlog  # noqa: F401
