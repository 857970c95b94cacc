"""Running one trace under one policy."""

from __future__ import annotations

import time
from dataclasses import dataclass

from runlist.errors import UsageError
from runlist.policies import PolicySpec
from runlist.sim.machine import Machine
from runlist.sim.result import Series, SimulationResult, collect, series
from runlist.sim.workload import Trace, check_seconds


@dataclass(frozen=True)
class Outcome:
    """The result, and the time that it took: only the result repeats itself. `series` is for pictures."""

    result: SimulationResult
    series: list[Series]
    cpu_s: float

    @property
    def events_per_cpu_s(self) -> float:
        """How fast the simulation went."""
        return self.result.events / self.cpu_s if self.cpu_s else 0.0


def simulate(
    trace: Trace, policy: PolicySpec, *, gpus: int | None = None, seconds: float | None = None, seed: int = 1
) -> Outcome:
    """Simulate `trace`, on as many GPUs and for as long as it says itself unless told otherwise.

    Raises UsageError for a policy that cannot be loaded, for numbers that cannot be, and for errors of a trace that is
    read as it goes.
    """
    gpus = trace.gpus if gpus is None else gpus
    seconds = trace.seconds if seconds is None else seconds
    check_seconds(seconds)
    if gpus < 1:
        raise UsageError(f"gpus: take 1 or more, not {gpus}")
    machine = Machine(trace, policy, gpus, seconds, seed)
    began = time.process_time()
    machine.run()
    cpu_s = time.process_time() - began
    return Outcome(collect(machine, trace, policy, seed), series(machine), cpu_s)
