"""What is known of tasks and groups that are away for a while: it is forgotten after some time, and where there is too
much of it. A user may name a thousand groups a second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

MOST = 1024
"""So many are remembered, beside those that are there; once there are more, half of that."""

_Name = TypeVar("_Name")
_Record = TypeVar("_Record")


def remembered(
    records: Mapping[_Name, _Record], seen: Callable[[_Record], float], now: float, for_s: float
) -> dict[_Name, _Record]:
    """Those that were `seen` less than so long ago, the latest ones where there are too many."""
    kept = {name: record for name, record in records.items() if now - seen(record) < for_s}
    if len(kept) > MOST:
        for name in sorted(kept, key=lambda name: seen(kept[name]))[: len(kept) - MOST // 2]:
            if seen(kept[name]) < now:
                del kept[name]
    return kept
