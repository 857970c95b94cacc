"""The two kinds of workload: requests that arrive on a schedule, and bursts back to back."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from runlist.workloads.protocol import Workload

_SEED = 1


def _always_correct() -> bool:
    return True


class RequestLoop(Workload):
    """Latency-critical: one request every `period_s` seconds.

    Open loop: the arrivals are fixed in advance, whether or not the request before has finished. `closed` counts the
    period from the end of the request before instead. With `poisson` the times between arrivals are exponential with
    that mean, the same ones in every run.
    `request(arrival)` carries out one request and returns when its measured part began (`time.perf_counter`, seconds).
    A request may begin `lead_s` before its arrival, to prepare; it then waits for the arrival itself.
    `report` is told the seconds from arrival to the end of each request.
    """

    def __init__(
        self,
        request: Callable[[float], float],
        period_s: float,
        *,
        closed: bool = False,
        poisson: bool = False,
        lead_s: float = 0.0,
        report: Callable[[float], None] | None = None,
        correct: Callable[[], bool] = _always_correct,
    ) -> None:
        self._request = request
        self._period = period_s
        self._closed = closed
        self._random = random.Random(_SEED) if poisson else None  # noqa: S311 (no secret)
        self._lead = lead_s
        self._report = report
        self._correct = correct
        self._arrival = 0.0
        self.begin_window()

    def due(self) -> float:
        return self._arrival - self._lead

    def resume(self) -> None:
        self._arrival = time.perf_counter() + self._gap()

    def set_rate(self, per_second: float) -> None:
        if not 0 < per_second < float("inf"):
            raise ValueError(f"a rate is a number above 0, not {per_second:g}")
        self._period = 1 / per_second
        self.resume()

    def step(self) -> None:
        arrival = self._arrival
        began = self._request(arrival)
        done = time.perf_counter()
        self._latencies.append((done - began) * 1e6)
        self._responses.append((done - arrival) * 1e6)
        self._arrival = (done if self._closed else arrival) + self._gap()
        if self._report is not None:
            self._report(done - arrival)

    def begin_window(self) -> None:
        self._latencies: list[float] = []
        self._responses: list[float] = []

    def window(self) -> dict[str, Any]:
        """`latency_us`: launch to synchronised; `response_us`: arrival to synchronised; one float a request."""
        return {"latency_us": self._latencies, "response_us": self._responses}

    def finish(self) -> dict[str, Any]:
        return {"correct": self._correct()}

    def _gap(self) -> float:
        """Seconds between this arrival and the next."""
        return self._period if self._random is None else self._random.expovariate(1 / self._period)


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
