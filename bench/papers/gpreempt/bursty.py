"""Arrivals in bursts, made by a seed: what stands for recorded traces, which nobody published.

A process of two states, as recorded traffic is often fitted by one: a quiet one and a busy one, which last for
exponential times, each with Poisson arrivals of its own rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from random import Random

from runlist.arrivals import Listed, Poisson, check
from runlist.errors import UsageError
from runlist.sim.traces.fields import Fields

_MOST = 200_000
"""Arrivals, and bursts."""


@dataclass(frozen=True)
class Bursty:
    """`frequency` a second on average, `peak` times as many in bursts, which take the part `busy` of the time and last
    `burst_s` on average; for `seconds`, by `seed`.
    """

    frequency: float
    peak: float
    busy: float
    burst_s: float
    seconds: float
    seed: int

    def __post_init__(self) -> None:
        check("frequency", self.frequency, 0.001, 1e5)
        check("busy", self.busy, 0.001, 0.9)
        check("peak", self.peak, 1, 1 / self.busy)
        check("burst_ms", self.burst_s, 0.001, 1e3)
        check("seconds", self.seconds, 0.1, 3600)
        check("frequency times seconds", self.frequency * self.seconds, 0, _MOST)
        check("bursts", self.seconds * self.busy / self.burst_s, 0, _MOST)

    @classmethod
    def of(cls, fields: Fields) -> Bursty:
        """The table `load` of a task. Raises UsageError."""
        fields.text("type")
        try:
            return cls(
                frequency=fields.number("frequency"), peak=fields.number("peak"), busy=fields.number("busy"),
                burst_s=fields.number("burst_ms") / 1e3, seconds=fields.number("seconds"), seed=fields.whole("seed"),
            )  # fmt: skip
        except ValueError as error:
            raise UsageError(f"{fields.where}: {error}") from None

    def listed(self) -> Listed:
        """Its arrivals; the same ones each time."""
        rng = Random(self.seed)  # noqa: S311 (a trace must repeat itself)
        quiet_hz = self.frequency * (1 - self.busy * self.peak) / (1 - self.busy)
        quiet_s = self.burst_s * (1 - self.busy) / self.busy
        steps: list[tuple[float, float]] = []
        time, busy = 0.0, False
        while time < self.seconds:
            steps.append((time, self.frequency * self.peak if busy else max(quiet_hz, 0.0)))
            time += max(1e-6, rng.expovariate(1 / (self.burst_s if busy else quiet_s)))
            busy = not busy
        found = tuple(takewhile(lambda at: at < self.seconds, Poisson(steps).arrivals(0.0, rng)))
        return Listed(found or (0.0,))
