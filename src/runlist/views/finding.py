"""A line of what `runlist doctor` says."""

from __future__ import annotations

import msgspec


class Finding(msgspec.Struct, frozen=True):
    """`state` is ok, warn (works, with a limit) or fail (managing is not possible)."""

    what: str
    state: str
    detail: str
