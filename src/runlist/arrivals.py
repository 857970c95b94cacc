"""When requests come, of whatever: the one generator of the simulator, the workloads, and the benchmarks.

Everything here is checked when it is made; ValueError says in one line what is wrong with which field.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from random import Random
from typing import NoReturn

Rate = float | list[tuple[float, float]]
"""Requests per second: one number, or steps of (from this second of the tenant's life on, so many), the first at 0."""

MAX_RATE_HZ = 100_000.0
MAX_SECONDS = 1e6


class _Load:
    """Never changes, and is equal to another of its kind with the same fields. No dataclass: these few took a sixth of
    the start of a workload.
    """

    def __init__(self, **fields: object) -> None:
        self.__dict__.update(fields)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{self} never changes")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


class Closed(_Load):
    """A request, a pause on the host, and the next: the load follows the speed of the GPU."""

    def __init__(self) -> None:
        super().__init__()


class After(_Load):
    """A request whenever each of the tenants named has finished one more."""

    names: tuple[str, ...]

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__(names=names)
        if not names:
            raise ValueError("after: name at least one tenant")


class Periodic(_Load):
    """Evenly spaced. `phase_s` is when the first request comes; None: anywhere in the first period, by the seed.

    With `jitter` (0 to 1) each is late on its even place by up to that part of a period.
    """

    rate: Rate
    phase_s: float | None
    jitter: float

    def __init__(self, rate: Rate, phase_s: float | None = None, jitter: float = 0.0) -> None:
        super().__init__(rate=rate, phase_s=phase_s, jitter=jitter)
        _check_rate(rate)
        check("jitter", jitter, 0, 1)
        if phase_s is not None:
            check("phase_us", phase_s, 0, MAX_SECONDS)

    def arrivals(self, start_s: float, rng: Random) -> Iterator[float]:
        steps = _steps(self.rate)
        first = rng.random() if self.phase_s is None else self.phase_s * steps[0][1]
        late = 0.0

        def gap() -> float:
            nonlocal late
            before, late = late, self.jitter * rng.random()
            return 1.0 + late - before

        if not self.jitter:
            return _paced(steps, start_s, first, lambda: 1.0)
        return _paced(steps, start_s, first - 1.0 + gap(), gap)


class Poisson(_Load):
    """Independent of each other."""

    rate: Rate

    def __init__(self, rate: Rate) -> None:
        super().__init__(rate=rate)
        _check_rate(rate)

    def arrivals(self, start_s: float, rng: Random) -> Iterator[float]:
        return _paced(_steps(self.rate), start_s, rng.expovariate(1.0), lambda: rng.expovariate(1.0))


class Listed(_Load):
    """At these seconds after the tenant's start, in order."""

    at_s: tuple[float, ...]

    def __init__(self, at_s: tuple[float, ...]) -> None:
        super().__init__(at_s=at_s)
        if not at_s:
            raise ValueError("times: give at least one")
        for time in at_s:
            check("times", time, 0, MAX_SECONDS)
        if any(a > b for a, b in pairwise(at_s)):
            raise ValueError("times: give them in order")

    def arrivals(self, start_s: float, rng: Random) -> Iterator[float]:
        del rng
        return (start_s + at for at in self.at_s)


AnyLoad = Closed | After | Periodic | Poisson | Listed


def check(field_name: str, value: float, least: float, most: float) -> None:
    """Raises ValueError when a number is not within its bounds, or not a number at all."""
    if not (math.isfinite(value) and least <= value <= most):
        raise ValueError(f"{field_name}: take {least:g} to {most:g}, not {value:g}")


def _check_rate(rate: Rate) -> None:
    steps = _steps(rate)
    if not steps or steps[0][0] != 0:
        raise ValueError("hz: the first step begins at second 0")
    if any(a[0] >= b[0] for a, b in pairwise(steps)):
        raise ValueError("hz: the seconds of the steps ascend")
    for second, hz in steps:
        check("hz", second, 0, MAX_SECONDS)
        check("hz", hz, 0, MAX_RATE_HZ)
    if not any(hz for _, hz in steps):
        raise ValueError("hz: give more than 0")


def _steps(rate: Rate) -> list[tuple[float, float]]:
    return rate if isinstance(rate, list) else [(0.0, rate)]


def _paced(steps: list[tuple[float, float]], start_s: float, first: float, gap: Callable[[], float]) -> Iterator[float]:
    """Arrivals `first` and then `gap()` expected requests apart, at rates that change with the steps."""
    time, step, wanted = 0.0, 0, first
    while True:
        hz = steps[step][1]
        ends = steps[step + 1][0] if step + 1 < len(steps) else math.inf
        if hz == 0 and ends == math.inf:
            return
        if hz > 0 and wanted <= (ends - time) * hz:
            time += wanted / hz
            yield start_s + time
            wanted = gap()
        else:
            wanted -= (ends - time) * hz
            time, step = ends, step + 1
