"""Imports asyncio and structlog without what they take along if it is there and the daemon never uses: 4 MB each of TLS
and of coloured tracebacks. Import it before anything else.
"""

from __future__ import annotations

from runlist.lean import absent

with absent("colorama", "rich", "ssl"):
    import asyncio  # noqa: F401

    import structlog  # noqa: F401
