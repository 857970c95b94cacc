"""Latency programs beside batch jobs in the simulator: kinds of programs that nobody named, under each way to give way.

Nothing here has run on a GPU. The programs are what a policy has to tell apart: how long a request is, how much of that
the GPU works, whether the host waits for each piece of it, and how requests come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random
from statistics import fmean

import msgspec

from bench.harness.pair_figures import NOISE
from runlist.arrivals import Closed, Listed, Periodic, Poisson
from runlist.model import TaskClass
from runlist.policies import PolicySpec
from runlist.policies.parts.give_way import Way
from runlist.sim import Trace
from runlist.sim.machine import Machine
from runlist.sim.tenant import Tenant
from runlist.sim.timing import MICROSECOND, MILLISECOND, SECOND
from runlist.sim.workload import TenantSpec
from runlist.statistics import percentile

LOOK = 10 * MILLISECOND
"""How often the way in force is noted."""

SETTLES_S = 0.05
"""What arrives earlier does not count: a program is managed a moment after it has come."""

Arrivals = Callable[[float, float, Random], Iterator[float]]
"""Times of requests within so many seconds, at so many a second."""


def steady(seconds: float, hz: float, random: Random) -> Iterator[float]:
    """Each up to half of the time between two late."""
    return _until(seconds, Periodic(hz, jitter=0.5).arrivals(0.0, random))


def poisson(seconds: float, hz: float, random: Random) -> Iterator[float]:
    """Independent of each other."""
    return _until(seconds, Poisson(hz).arrivals(0.0, random))


def bursts(seconds: float, hz: float, random: Random, size: int = 8) -> Iterator[float]:
    """So many at once."""
    for begins in poisson(seconds, hz / size, random):
        yield from (begins for _ in range(size))


def on_and_off(seconds: float, hz: float, random: Random, each_s: float = 4.0) -> Iterator[float]:
    """A while of requests, and as long without any."""
    return (time for time in poisson(seconds, hz, random) if int(time / each_s) % 2 == 0)


def _until(seconds: float, times: Iterator[float]) -> Iterator[float]:
    for time in times:
        if time >= seconds:
            return
        yield time


@dataclass(frozen=True)
class Program:
    """A latency program: how a request works, how requests come, and the part of all time that they take alone."""

    spec: TenantSpec
    arrivals: Arrivals
    load: float

    @cached_property
    def length_s(self) -> float:
        """How long one request takes alone, in the middle: a simulation of its own."""
        spec = replace(self.spec, load=Closed(), gap_us=5_000.0)
        machine = Machine(Trace("length", 0.5, [spec]), PolicySpec("none"), 1, 0.5, 1)
        machine.run()
        return percentile(sorted(machine.tenants[0].latencies), 50) / SECOND


def _program(arrivals: Arrivals, load: float, kernel_us: float, kernels: int = 1, **spec: float) -> Program:
    lengths = (kernel_us,) * kernels
    return Program(TenantSpec("program", TaskClass.LATENCY, kernel_us=lengths, tells=True, **spec), arrivals, load)  # type: ignore[arg-type]


def _batch(kernels_us: Sequence[float], **spec: float) -> TenantSpec:
    return TenantSpec("batch", TaskClass.BATCH, kernel_us=tuple(kernels_us), **spec)  # type: ignore[arg-type]


PROGRAMS: Mapping[str, Program] = {
    "lookup": _program(steady, 0.25, 12, 4, host_us=50),
    "fft": _program(steady, 0.35, 40, 3, host_us=60),
    "lookup-full": _program(poisson, 0.6, 250),
    "kernel": _program(steady, 0.03, 80),
    "graph": _program(poisson, 0.35, 1_000),
    "tokens": _program(steady, 0.35, 1_030, 32, step_gap_us=30),
    "short-tokens": _program(poisson, 0.3, 60, 10, step_gap_us=60),
    "callbacks": _program(steady, 0.3, 10, 12, step_gap_us=190),
    "embeddings": _program(poisson, 0.35, 9, 150, host_us=25),
    "resnet": _program(steady, 0.45, 30, 160, host_us=62),
    "eager-llm": _program(steady, 0.4, 12, 300, host_us=60, wait_every=60),
    "bursts": _program(bursts, 0.3, 40, 25, host_us=50),
    "on-and-off": _program(on_and_off, 0.5, 20, 120, host_us=40),
    "overloaded": _program(steady, 1.1, 20, 100, host_us=60),
    "long": _program(poisson, 0.5, 500, 100, host_us=20),
}
"""By name: single kernels that are waited for, loops that wait for each step, hosts that launch ahead, and queues."""

BACKGROUNDS: Mapping[str, Sequence[TenantSpec]] = {
    "products": [_batch([1_600.0] * 4, gap_us=20)],
    "training": [_batch([10.0] * 80 + [700.0] * 40 + [15.0] * 120, host_us=35, wait_every=120, gap_us=5_000)],
    "tiny-kernels": [_batch([20.0] * 200, gap_us=40)],
    "host-bound": [_batch([50.0] * 200, host_us=150, gap_us=2_000)],
    "two-jobs": [replace(_batch([1_600.0] * 4, gap_us=20), name=f"batch-{number}") for number in (1, 2)],
}
"""Training: a loss is waited for behind the layers, the first of which its host is too slow for; an optimizer's small
kernels; a pause for data. Two jobs count together."""

DEFAULT, AUTO, NAMED = "default", "auto", tuple(Way)
WAYS: Mapping[str, PolicySpec] = {
    DEFAULT: PolicySpec("none"),
    AUTO: PolicySpec("priority"),
    **{way: PolicySpec("priority", {"give_way": way}) for way in NAMED},
}
MUCH = 0.2
"""A way by name is much better if one side gains by so much, and the other loses nothing that can be told."""


class _Machine(Machine):
    """Notes the ways in force: each with the second from which it was."""

    def __init__(self, trace: Trace, policy: PolicySpec, seconds: float, seed: int) -> None:
        super().__init__(trace, policy, 1, seconds, seed)
        self.ways: list[tuple[float, str]] = []
        self.engine.at(LOOK, self._look)

    def _look(self, _: None) -> None:
        told = self.gpus[0].scheduler.loop.giving_way()
        if told is not None and (not self.ways or self.ways[-1][1] != told.way):
            self.ways.append((self.engine.now / SECOND, told.way))
        self.engine.at(self.engine.now + LOOK, self._look)


@dataclass(frozen=True)
class Run:
    """Response times in µs, ascending, those of requests that were not answered as long as they had waited; the
    background's work in seconds of GPU a second; and the ways in force.
    """

    responses: Sequence[float]
    unanswered: int
    batch: float
    ways: Sequence[tuple[float, str]] = ()

    @property
    def p50(self) -> float:
        return percentile(self.responses, 50)

    @property
    def p99(self) -> float:
        return percentile(self.responses, 99)


def simulate(
    program: Program, background: Sequence[TenantSpec], policy: PolicySpec, seconds: float, seed: int = 1
) -> Run:
    """A program beside a background, either of which may be none."""
    times = tuple(program.arrivals(seconds, program.load / program.length_s, Random(f"{seed}/arrivals")))  # noqa: S311
    spec = replace(program.spec, load=Listed(times))
    machine = _Machine(Trace("pair", seconds, [spec, *background]), policy, seconds, seed)
    machine.run()
    return Run(*_responses(machine.tenants[0], times, seconds), _worked(machine.tenants[1:], seconds), machine.ways)


def alone(background: Sequence[TenantSpec], seconds: float, seed: int = 1) -> float:
    """What one task of a background does alone, as in Run."""
    machine = Machine(Trace("batch", seconds, background[:1]), PolicySpec("none"), 1, seconds, seed)
    machine.run()
    return _worked(machine.tenants, seconds)


def _responses(tenant: Tenant, times: Sequence[float], seconds: float) -> tuple[list[float], int]:
    done = [latency / MICROSECOND for latency in tenant.latencies]
    waits = [(seconds - time) * 1e6 for time in times[len(done) :]]
    counted = [took for took, time in zip([*done, *waits], times, strict=True) if time >= SETTLES_S]
    return sorted(counted), len(waits)


def _worked(tenants: Sequence[Tenant], seconds: float) -> float:
    return sum(tenant.context.worked for tenant in tenants) / SECOND / seconds


class Row(msgspec.Struct, frozen=True):
    """One pair under one way, the mean of all seeds: response times over those alone, the background's work over that
    of one of its tasks alone, how many requests were not answered, and how often the way changed.
    """

    program: str
    background: str
    way: str
    p50: float
    p99: float
    batch: float
    unanswered: float
    changes: float


def compare(program: str, background: str, ways: Sequence[str], seconds: float, seeds: Sequence[int]) -> dict[str, Row]:
    """A pair by some of the ways, with the same requests in each."""
    found: dict[str, list[tuple[float, ...]]] = {way: [] for way in ways}
    for seed in seeds:
        base = simulate(PROGRAMS[program], [], WAYS[DEFAULT], seconds, seed)
        batch = alone(BACKGROUNDS[background], seconds, seed)
        for way in ways:
            run = simulate(PROGRAMS[program], BACKGROUNDS[background], WAYS[way], seconds, seed)
            changes = max(0, len(run.ways) - 1)
            found[way].append((run.p50 / base.p50, run.p99 / base.p99, run.batch / batch, run.unanswered, changes))
    return {
        way: Row(program, background, way, *(fmean(column) for column in zip(*runs, strict=True)))
        for way, runs in found.items()
    }


def worse_on_both_sides(rows: Mapping[str, Row]) -> bool:
    """Whether what is chosen has a longer p99 than default sharing, and leaves the background less."""
    ours, default = rows[AUTO], rows[DEFAULT]
    return ours.p99 > (1 + NOISE) * default.p99 and ours.batch < (1 - NOISE) * default.batch


def better(rows: Mapping[str, Row]) -> list[str]:
    """The ways by name with which one side has much more than with what is chosen, and the other no less."""
    ours = rows[AUTO]
    return [
        way
        for way in NAMED
        if (rows[way].p99 < (1 - MUCH) * ours.p99 and rows[way].batch > (1 - NOISE) * ours.batch)
        or (rows[way].batch > (1 + MUCH) * ours.batch and rows[way].p99 < (1 + NOISE) * ours.p99)
    ]
