"""Who held the GPU, by a reader of its switch log that is the benchmark's own: no daemon's word is taken."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from bench.harness.figures import rounded
from runlist.planes.nvidia import nvml
from runlist.planes.nvidia.rm.transport import choose_driver
from runlist.planes.nvidia.usage.switch_log import SwitchLogUsage
from runlist.planes.usage import Residency

READ_EVERY_S = 0.05
_NS = 1e9


@dataclass(frozen=True)
class Span:
    """A stretch of time, and who held the GPU in it. Times are CLOCK_REALTIME, ns."""

    start_ns: int
    end_ns: int
    residencies: Sequence[Residency]

    @property
    def seconds(self) -> float:
        """Its length."""
        return (self.end_ns - self.start_ns) / _NS

    def held(self, pid: int) -> float:
        """The part of the time that a process held the GPU, 0 to 1."""
        held_ns = sum(
            max(0, min(end, self.end_ns) - max(start, self.start_ns))
            for each, _, start, end in self.residencies
            if each == pid
        )
        return held_ns / (self.end_ns - self.start_ns)

    def shares(self, pids: Sequence[int]) -> list[float]:
        """Of the time that these processes held together, the part of each; zeros when none held anything."""
        held = [self.held(pid) for pid in pids]
        total = sum(held)
        return [one / total if total else 0.0 for one in held]

    def switches(self) -> int:
        """How often the GPU went from one context to another, or to the same again."""
        inside = [one for one in self.residencies if self.start_ns <= one.start_ns < self.end_ns]
        return sum(before.end_ns != after.start_ns for before, after in itertools.pairwise(inside))

    def part(self, from_s: float, to_s: float | None = None) -> Span:
        """From so many seconds after its beginning to so many, or to its end."""
        start = self.start_ns + round(from_s * _NS)
        end = self.end_ns if to_s is None else self.start_ns + round(to_s * _NS)
        inside = [one for one in self.residencies if one.end_ns > start and one.start_ns < end]
        return Span(start, end, inside)

    def windows(self, length_s: float = 1.0) -> list[Span]:
        """As many whole windows as fit, one after the other."""
        count = int(self.seconds / length_s + 1e-6)
        return [self.part(index * length_s, (index + 1) * length_s) for index in range(count)]


class GpuLog:
    """The switch log of the first GPU, where all benchmarks run; a context manager. Open it before the programs work:
    what held the GPU before, and goes on holding it, is not in it.
    """

    def __init__(self) -> None:
        driver = choose_driver()
        with nvml.session(driver):
            self.uuid = nvml.gpus()[0].uuid
        self._source = SwitchLogUsage(driver, self.uuid)
        self._residencies: list[Residency] = []
        self.dropped = 0
        """Records that were lost, of all that was watched."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._source.close()

    def watch(self, seconds: float) -> Span:
        """The next `seconds`."""
        self.read()
        began_ns = time.time_ns()
        self._residencies.clear()
        until = time.perf_counter() + seconds
        while (left := until - time.perf_counter()) > 0:
            time.sleep(min(left, READ_EVERY_S))
            self.read()
        return self.span(began_ns)

    def read(self) -> None:
        """Take in what was logged; at least every few seconds, or some of it is lost."""
        reading = self._source.read()
        self._residencies += reading.residencies
        self.dropped += reading.dropped

    def forget(self) -> int:
        """Begin a span by hand; when it begins."""
        self.read()
        self._residencies.clear()
        return time.time_ns()

    def span(self, began_ns: int) -> Span:
        """What was read since a span began."""
        self.read()
        return Span(began_ns, time.time_ns(), list(self._residencies))


def worst_points(windows: Sequence[Span], pids: Sequence[int], wanted: Sequence[float]) -> float:
    """How far any of the shares in any of the windows is from what it should be, in percent of the GPU."""
    return max(points(window.shares(pids), wanted) for window in windows)


def points(found: Sequence[float], wanted: Sequence[float]) -> float:
    """The largest difference, in percentage points."""
    return max(abs(one - other) for one, other in zip(found, wanted, strict=True)) * 100


def as_details(windows: Sequence[Span], pids: Sequence[int]) -> list[list[float]]:
    """The shares of each window, for `details`."""
    return [rounded(window.shares(pids)) for window in windows]
