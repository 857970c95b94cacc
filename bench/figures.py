"""A measured figure and its target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from runlist.demo.statistics import percentile

AT_MOST, AT_LEAST = "≤", "≥"


class Figure(msgspec.Struct, frozen=True):
    """One figure: `value` `relation` `target` is what should hold. `details` is everything that was measured for it."""

    name: str
    value: float
    relation: str
    target: float
    unit: str = ""
    details: Mapping[str, Any] = {}

    @property
    def met(self) -> bool:
        """Whether the target is met."""
        return self.value <= self.target if self.relation == AT_MOST else self.value >= self.target


def spread(samples: Sequence[float]) -> dict[str, float]:
    """Percentiles of samples, for `details`."""
    ordered = sorted(samples)
    return {
        "n": len(ordered),
        **{f"p{percent:g}": round(percentile(ordered, percent), 4) for percent in (50, 90, 99)},
        "max": round(ordered[-1], 4),
    }
