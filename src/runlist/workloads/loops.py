"""The two kinds of workload: requests that arrive on a schedule, and bursts back to back."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

from runlist.arrivals import MAX_RATE_HZ, Periodic, Poisson
from runlist.workloads.protocol import Workload

_SEED = 1


def _always_correct() -> bool:
    return True


class RequestLoop(Workload):
    """Latency-critical: one request every `period_s` seconds.

    Open loop: the arrivals are fixed in advance, whether or not the request before has finished. `closed` counts the
    period from the end of the request before instead. With `poisson` the times between arrivals are exponential with
    that mean, the same ones in every run. With `jitter` (0 to 1) each arrival is late on its even place by up to that
    part of a period, the same ones each time that the work begins.
    `request(arrival)` carries out one request and returns when its measured part began (`time.perf_counter`, seconds).
    A request may begin `lead_s` before its arrival, to prepare; it then waits for the arrival itself.
    `report` is told the seconds from arrival to the end of each request.
    """

    _times: Iterator[float]
    _last: float

    def __init__(
        self,
        request: Callable[[float], float],
        period_s: float,
        *,
        closed: bool = False,
        poisson: bool = False,
        jitter: float = 0.0,
        lead_s: float = 0.0,
        report: Callable[[float], None] | None = None,
        correct: Callable[[], bool] = _always_correct,
    ) -> None:
        self._request = request
        self._period = period_s
        self._closed = closed
        self._poisson = poisson
        self._jitter = jitter
        self._random = random.Random(_SEED)  # noqa: S311 (no secret)
        self._begin_arrivals()
        self._lead = lead_s
        self._report = report
        self._correct = correct
        self._arrival = 0.0
        self._free = 0.0
        self.begin_window()

    def due(self) -> float:
        return self._arrival - self._lead

    def resume(self) -> None:
        if self._jitter:
            self._random.seed(_SEED)
        self._begin_arrivals()
        self._free = time.perf_counter()
        self._arrival = self._free + self._gap()

    def set_rate(self, per_second: float) -> None:
        if not 0 < per_second <= MAX_RATE_HZ:
            raise ValueError(f"a rate is a number above 0, of at most {MAX_RATE_HZ:g}, not {per_second:g}")
        self._period = 1 / per_second
        self.resume()

    def step(self) -> None:
        arrival = self._arrival
        began = self._request(arrival)
        done = time.perf_counter()
        self._latencies.append((done - began) * 1e6)
        self._responses.append((done - arrival) * 1e6)
        self._wakes.append(max(0.0, began - arrival) * 1e6 if self._free < arrival else 0.0)
        self._free = done
        self._arrival = (done if self._closed else arrival) + self._gap()
        if self._report is not None:
            self._report(done - arrival)

    def begin_window(self) -> None:
        self._latencies: list[float] = []
        self._responses: list[float] = []
        self._wakes: list[float] = []

    def window(self) -> dict[str, Any]:
        """`latency_us`: launch to synchronised; `response_us`: arrival to synchronised; `wake_us`: the part of that by
        which the timer woke it late, 0 where it was at the request before; one float a request.
        """
        return {"latency_us": self._latencies, "response_us": self._responses, "wake_us": self._wakes}

    def finish(self) -> dict[str, Any]:
        return {"correct": self._correct()}

    def _gap(self) -> float:
        """Seconds between this arrival and the next."""
        before, self._last = self._last, next(self._times)
        return self._last - before

    def _begin_arrivals(self) -> None:
        rate = 1 / self._period
        load = Poisson(rate) if self._poisson else Periodic(rate, self._period, self._jitter)
        self._times = load.arrivals(0.0, self._random)
        self._last = 0.0


class BurstLoop(Workload):
    """Batch: `burst()` over and over, each `kernels` kernels launched and then waited for."""

    def __init__(self, burst: Callable[[], None], kernels: int, correct: Callable[[], bool]) -> None:
        self._burst = burst
        self._kernels = kernels
        self._correct = correct
        self.begin_window()

    def due(self) -> float:
        return 0.0

    def resume(self) -> None:
        pass

    def step(self) -> None:
        self._burst()
        self._count += self._kernels

    def begin_window(self) -> None:
        self._count = 0

    def window(self) -> dict[str, Any]:
        """`kernels`: how many finished. Windows begin and end between bursts, so the count is exact."""
        return {"kernels": self._count}

    def finish(self) -> dict[str, Any]:
        return {"correct": self._correct()}
