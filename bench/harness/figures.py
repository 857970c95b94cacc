"""A measured figure and its target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from runlist.statistics import percentile

AT_MOST, AT_LEAST = "≤", "≥"
KIB, MIB = 1 << 10, 1 << 20


class Figure(msgspec.Struct, frozen=True):
    """One figure: `value` `relation` `target` is what should hold; without a target it is only told. `details` is
    everything that was measured for it.
    """

    name: str
    value: float
    relation: str = ""
    target: float | None = None
    unit: str = ""
    details: Mapping[str, Any] = {}

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without one."""
        if self.target is None:
            return None
        return self.value <= self.target if self.relation == AT_MOST else self.value >= self.target

    @property
    def verdict(self) -> str:
        """`met` in a word."""
        return {None: "", True: "met", False: "MISSED"}[self.met]

    @property
    def aim(self) -> str:
        """The target in words."""
        return "none" if self.target is None else f"{self.relation} {self.target:g} {self.unit}".rstrip()


def spread(samples: Sequence[float]) -> dict[str, float]:
    """Percentiles of samples, for `details`."""
    ordered = sorted(samples)
    return {
        "n": len(ordered),
        **{f"p{percent:g}": round(percentile(ordered, percent), 4) for percent in (50, 90, 99)},
        "max": round(ordered[-1], 4),
    }


def p99(samples: Sequence[float]) -> float:
    """The 99th percentile. Raises ValueError without samples."""
    return percentile(sorted(samples), 99)


def rounded(values: Sequence[float], digits: int = 4) -> list[float]:
    """Values as `details` show them."""
    return [round(value, digits) for value in values]


def with_details(figures: Sequence[Figure], details: Mapping[str, Any]) -> list[Figure]:
    """The figures, the first with the details of them all."""
    return [msgspec.structs.replace(figures[0], details=details), *figures[1:]] if figures else []


def holds(name: str, whether: bool, details: Mapping[str, Any] | None = None) -> Figure:
    """A figure of 1 when something is as it must be, else of 0."""
    return Figure(name, float(whether), AT_LEAST, 1, details=details or {})
