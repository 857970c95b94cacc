"""Limits that users set for a task's share, in the terms of Linux: weights, bandwidth (cpu.max) and deadlines."""

from __future__ import annotations

from dataclasses import dataclass

from runlist.units import duration

MAX_TIMESLICE_US = 60_000_000
"""Longest slice that Runlist sets. The driver takes any; a minute is longer than any use and shorter than a mistake."""

DEFAULT_WEIGHT = 100
MIN_WEIGHT, MAX_WEIGHT = 1, 10_000
"""As cgroup v2's cpu.weight."""

ROUNDING = 1e-9
"""By so much a sum of parts may seem to be more than it is."""

DEFAULT_PERIOD_US = 100_000
MIN_PERIOD_US, MAX_PERIOD_US = 10_000, 1_000_000
"""Of a cap: as cgroup v2's cpu.max, with a longer shortest period, since suspending and resuming takes about 1 ms."""
MAX_DEADLINE_PERIOD_US = 10_000_000
"""The shortest is that of a cap."""


def check_weight(weight: int) -> int:
    """The weight. Raises ValueError when it is out of range."""
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        raise ValueError(f"a weight is {MIN_WEIGHT} to {MAX_WEIGHT}, not {weight}")
    return weight


@dataclass(frozen=True, slots=True)
class Cap:
    """At most `quota_us` of GPU time in every `period_us`; unused time adds up to `burst_us` for later.

    Raises ValueError, with one clear line, for bad values.
    """

    quota_us: int
    period_us: int = DEFAULT_PERIOD_US
    burst_us: int = 0

    def __post_init__(self) -> None:
        if not MIN_PERIOD_US <= self.period_us <= MAX_PERIOD_US:
            allowed = f"{duration(MIN_PERIOD_US)} to {duration(MAX_PERIOD_US)}"
            raise ValueError(f"a cap's period is {allowed}, not {duration(self.period_us)}")
        if not self.period_us <= 100 * self.quota_us <= 100 * self.period_us:
            asked = f"{duration(self.quota_us)} of {duration(self.period_us)}"
            raise ValueError(f"a cap is 1 to 100 % of the GPU, not {asked}")
        if not 0 <= self.burst_us <= self.quota_us:
            allowed = f"0 to its quota ({duration(self.quota_us)})"
            raise ValueError(f"a cap's burst is {allowed}, not {duration(self.burst_us)}")

    @classmethod
    def of_percent(cls, percent: float, period_us: int = DEFAULT_PERIOD_US) -> Cap:
        """A cap of so many percent of the GPU."""
        if not 1 <= percent <= 100:
            raise ValueError(f"a cap is 1 to 100 % of the GPU, not {percent:g}")
        return cls(round(period_us * percent / 100), period_us)

    @property
    def fraction(self) -> float:
        """The share of the GPU, 0 to 1."""
        return self.quota_us / self.period_us


@dataclass(frozen=True, slots=True)
class Deadline:
    """`budget_us` of GPU time in every `period_us`, before its end. Raises ValueError for bad values."""

    budget_us: int
    period_us: int

    def __post_init__(self) -> None:
        if not MIN_PERIOD_US <= self.period_us <= MAX_DEADLINE_PERIOD_US:
            allowed = f"{duration(MIN_PERIOD_US)} to {duration(MAX_DEADLINE_PERIOD_US)}"
            raise ValueError(f"a deadline's period is {allowed}, not {duration(self.period_us)}")
        if not 0 < self.budget_us <= self.period_us:
            raise ValueError(
                f"a deadline's budget is more than 0 and at most its period ({duration(self.period_us)}), "
                f"not {duration(self.budget_us)}"
            )

    @property
    def fraction(self) -> float:
        """The share of the GPU, 0 to 1."""
        return self.budget_us / self.period_us
