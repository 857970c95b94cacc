"""The measurement: short windows that alternate between the configurations, with the same two processes throughout."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from runlist.client import Client
from runlist.demo.noise import noise
from runlist.demo.result import Latency, Result, Row
from runlist.errors import RunlistError
from runlist.workloads.process import WorkloadProcess

ALONE, DEFAULT, RUNLIST = "alone", "default sharing", "Runlist"
CONFIGURATIONS = (ALONE, DEFAULT, RUNLIST)

WINDOW_S = 1.0
"""Aimed-at length of a window: hundreds of requests, yet a slow drift of the machine hits all configurations alike."""

_SETTLE_S = 0.1
"""Between a change of configuration and the window after it."""


@dataclass
class Samples:
    """What the windows of one configuration gave, together."""

    latency_us: list[float] = field(default_factory=list)
    kernels: int = 0
    batch_seconds: float = 0.0
    batch_rates: list[float] = field(default_factory=list)
    """Kernels a second, in each window."""

    @property
    def batch_per_second(self) -> float:
        """Kernels a second."""
        return self.kernels / self.batch_seconds if self.batch_seconds else 0.0


@dataclass(frozen=True)
class Plan:
    """How time is spent: `rounds` times a window of `window_s` for each program alone, default sharing and Runlist."""

    rounds: int
    window_s: float

    WINDOWS_A_ROUND = 4

    @classmethod
    def of(cls, seconds: float) -> Plan:
        """A plan that measures for `seconds` in all."""
        rounds = max(1, round(seconds / (cls.WINDOWS_A_ROUND * WINDOW_S)))
        return cls(rounds, seconds / (cls.WINDOWS_A_ROUND * rounds))

    @property
    def windows(self) -> int:
        """Windows in all."""
        return self.rounds * self.WINDOWS_A_ROUND


class Bench:
    """A latency-critical and a batch process, and the daemon that may manage them."""

    def __init__(
        self, latency: WorkloadProcess, batch: WorkloadProcess, connect: Callable[[], Client], others: float = 0.0
    ) -> None:
        """`others` is the part of the processors' time that was in use before any of this began."""
        self._others = others
        self.samples = {name: Samples() for name in CONFIGURATIONS}
        self.attach_ms = 0.0
        self._latency = latency
        self._batch = batch
        self._connect = connect

    def measure(self, plan: Plan, on_window: Callable[[str], None]) -> None:
        """Carries out `plan`; says the name of each window as it begins."""
        for _ in range(plan.rounds):
            on_window("LC alone")
            with self._working(self._latency):
                self._window(ALONE, plan.window_s, latency=True)
            on_window("BE alone")
            with self._working(self._batch):
                self._window(ALONE, plan.window_s, batch=True)
            with self._working(self._latency), self._working(self._batch):
                on_window(DEFAULT)
                self._window(DEFAULT, plan.window_s, latency=True, batch=True)
                on_window(RUNLIST)
                with self._managed():
                    self._window(RUNLIST, plan.window_s, latency=True, batch=True)

    def result(self, device: str, workload: str) -> Result:
        """Ends both processes, checks their results, sums up. Raises RunlistError if a configuration did no work."""
        verdicts = [process.quit()["correct"] for process in (self._latency, self._batch)]
        alone, default, managed = (self.samples[name] for name in CONFIGURATIONS)
        if not all(samples.latency_us and samples.kernels for samples in self.samples.values()):
            raise RunlistError("a program finished no work in its windows: measure longer with --seconds")
        rows = [
            Row(
                name,
                Latency.of(samples.latency_us),
                round(samples.batch_per_second, 1),
                round(samples.batch_per_second / alone.batch_per_second, 3),
            )
            for name, samples in self.samples.items()
        ]
        p99 = {row.configuration: row.latency_us.p99 for row in rows}
        return Result(
            device=device,
            gpu=self._latency.ready["gpu"],
            workload=workload,
            rows=rows,
            p99_to_default=round(p99[RUNLIST] / p99[DEFAULT], 3),
            p99_to_alone=round(p99[RUNLIST] / p99[ALONE], 3),
            batch_to_default=round(managed.batch_per_second / default.batch_per_second, 3),
            attach_ms=round(self.attach_ms, 1),
            correct=all(verdicts),
            noise=noise(alone.latency_us, alone.batch_rates, self._others, p99[DEFAULT]),
        )

    @contextmanager
    def _working(self, process: WorkloadProcess) -> Iterator[None]:
        process.run()
        yield
        process.pause()

    @contextmanager
    def _managed(self) -> Iterator[None]:
        """Both processes under Runlist; put back on the way out, whatever happened."""
        try:
            with self._connect() as client:
                for process, task_class in ((self._latency, "latency"), (self._batch, "batch")):
                    for task in client.attach(process.pid, task_class):
                        self.attach_ms = max(self.attach_ms, task.attach_ms)
            yield
        finally:
            # A connection of its own: an interrupt may have left the other one in the middle of an answer.
            with self._connect() as client:
                managed = {task.pid for task in client.ps()}
                for process in (self._latency, self._batch):
                    if process.pid in managed:
                        client.detach(process.pid)

    def _window(self, configuration: str, seconds: float, *, latency: bool = False, batch: bool = False) -> None:
        """One window, added to the samples of `configuration`."""
        time.sleep(_SETTLE_S)
        processes = [process for process, wanted in ((self._latency, latency), (self._batch, batch)) if wanted]
        for process in processes:
            process.start()
        time.sleep(seconds)
        samples = self.samples[configuration]
        for process in processes:
            window = process.stop()
            if process is self._latency:
                samples.latency_us += window["latency_us"]
            else:
                samples.kernels += window["kernels"]
                samples.batch_seconds += window["seconds"]
                samples.batch_rates.append(window["kernels"] / window["seconds"])
