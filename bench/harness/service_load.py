"""A service whose load steps up beside a batch job: what is asked of it, and the same simulated.

Windows of a second are judged by themselves, so what one of them gives is also chance: with 600 requests in it, six may
be late. How many the service alone does not keep says how good a scheduler can be at best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.harness.figures import p99, rounded
from runlist.arrivals import Poisson
from runlist.model import Cap, TaskClass
from runlist.policies import PolicySpec
from runlist.sim import Trace
from runlist.sim.machine import Machine
from runlist.sim.timing import MICROSECOND, SECOND
from runlist.sim.workload import TenantSpec

LOADS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
"""Of what the service can answer alone."""

STEP_S = 4
"""Seconds, which are windows, at each load."""

TARGET = 1.3
"""Times the service's own p99, alone at the highest load."""

KEPT = 0.99
FIXED_CAPS = (100, 60, 35, 20, 10)
"""Percent, tried in this order until one keeps the target: with a smaller one the batch job gets less."""

CAP_PERIOD_US = 50_000

KERNEL_US, LAUNCH_US = 500.0, 15.5
BATCH_KERNELS_US, BATCH_GAP_US = (3_200.0,) * 4, 400.0
_BEGINS_S = 0.05
"""In the simulation: a tenant is managed a moment after it came, and only then the first window begins."""


@dataclass(frozen=True)
class Run:
    """p99 of each window in µs, in order, and the batch job's rate over all of them."""

    p99_us: Sequence[float]
    batch_rate: float

    def kept(self, target_us: float) -> float:
        """Part of the windows within the target."""
        return sum(each <= target_us for each in self.p99_us) / len(self.p99_us)

    def details(self, target_us: float) -> dict[str, Any]:
        """For a figure's `details`."""
        return {
            "p99 by window, µs": rounded(self.p99_us, 1),
            "kept": round(self.kept(target_us), 4),
            "BE, kernels/s": round(self.batch_rate, 2),
        }


class _Windows(Machine):
    """Keeps the latencies of the service by window, in µs."""

    def __init__(self, specs: Sequence[TenantSpec], seconds: int, policy: PolicySpec, seed: int) -> None:
        end_s = _BEGINS_S + seconds + 0.01
        super().__init__(Trace("service", end_s, specs), policy, 1, end_s, seed)
        self.windows: list[list[float]] = []
        self._told = 0
        for second in range(seconds + 1):
            self.engine.at(round((_BEGINS_S + second) * SECOND), self._mark, second)

    def _mark(self, second: int) -> None:
        service, *batch = self.tenants
        if second:
            self.windows.append([each / MICROSECOND for each in service.latencies[self._told :]])
        else:
            self._worked = [tenant.context.worked for tenant in batch]
        self._told = len(service.latencies)

    def batch_rate(self) -> float:
        """Kernels a second since the first window began."""
        done = sum(
            (tenant.context.worked - before) / tenant.length * len(tenant.spec.kernel_us)
            for tenant, before in zip(self.tenants[1:], self._worked, strict=True)
        )
        return done / len(self.windows)


def simulated(
    seed: int,
    target_us: float | None = None,
    *,
    loads: Sequence[float] = LOADS,
    step_s: int = STEP_S,
    cap: int | None = None,
    alone: bool = False,
    policy: str = "priority",
) -> Run:
    """All loads, one after the other, under Runlist with a target or with a cap (percent) on the batch job; `alone`:
    without it. The same seed gives the same arrivals.
    """
    machine = _machine(seed, target_us, loads, step_s, cap, alone, policy)
    return Run([p99(window) if window else float("inf") for window in machine.windows], machine.batch_rate())


def simulated_target_us(seeds: Sequence[int]) -> float:
    """TARGET times the p99 of the service alone at the highest load, over a run with each seed."""
    latencies = []
    for seed in seeds:
        machine = _machine(seed, None, LOADS[-1:], 10, None, True, "none")
        latencies += [each for window in machine.windows for each in window]
    return TARGET * p99(latencies)


def _machine(
    seed: int, target_us: float | None, loads: Sequence[float], step_s: int, cap: int | None, alone: bool, policy: str
) -> _Windows:
    capacity = 1e6 / (KERNEL_US + LAUNCH_US)
    steps = [(_BEGINS_S + at * step_s if at else 0.0, load * capacity) for at, load in enumerate(loads)]
    specs = [
        TenantSpec("service", TaskClass.LATENCY, kernel_us=(KERNEL_US,), load=Poisson(steps), target_p99_us=target_us)
    ]
    if not alone:
        quota = None if cap is None or cap >= 100 else Cap(cap * CAP_PERIOD_US // 100, CAP_PERIOD_US)
        specs.append(TenantSpec("batch", TaskClass.BATCH, kernel_us=BATCH_KERNELS_US, gap_us=BATCH_GAP_US, cap=quota))
    machine = _Windows(specs, step_s * len(loads), PolicySpec(policy), seed)
    machine.run()
    return machine
