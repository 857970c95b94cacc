"""The result of a simulation, as plain data. The same trace, policy and seed give the same to the last digit.

Shares and the like are 0 to 1 of a GPU's time, latencies µs.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from runlist.arrivals import Closed
from runlist.policies import PolicySpec
from runlist.sim.machine import Machine, ScheduledGpu
from runlist.sim.recorder import Book
from runlist.sim.tenant import Tenant
from runlist.sim.timing import CONTROLS, MICROSECOND, SECOND
from runlist.sim.workload import TenantSpec, Trace
from runlist.statistics import percentile


class Latencies(msgspec.Struct, frozen=True):
    """Of the requests that finished, µs: from the intended arrival (open loop) or the launch (closed loop)."""

    mean: float
    p50: float
    p99: float
    p999: float
    max: float


class TenantResult(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant. Shares are of the time that it was there.

    `share` is its time on the GPU without idle times, `work_share` what of it was work (the rest is restoring state
    and cold caches). `relative` is its rate over what it would be alone (closed loop) or over what arrived (open
    loop). `unfinished` requests had arrived and were not done at the end. `slo_windows` are those in which the target
    could be judged. `deadline_misses` are requests that took longer than the tenant's period.
    """

    name: str
    pid: int
    gpu: int
    task_class: str
    weight: int
    cap_percent: float | None
    group: str
    seconds: float
    share: float
    work_share: float
    requests: int
    requests_per_s: float
    kernels_per_s: float
    relative: float
    unfinished: int
    turns_per_s: float
    latency_us: Latencies | None
    target_p99_us: float | None
    slo_windows: int
    slo_missed: int
    deadline_misses: int | None


class GpuResult(msgspec.Struct, frozen=True, kw_only=True):
    """Where one GPU's time went: `work` + `lost` (restoring, cold caches) + `idle` (a tenant was on it that had nothing
    to do) + `gaps` (of switches) + `empty` (nobody was on it) = 1.
    """

    gpu: int
    policy: str
    tenants: int
    work: float
    lost: float
    idle: float
    gaps: float
    empty: float
    switches: int
    decisions: int


class Refused(msgspec.Struct, frozen=True):
    """A tenant that did not run, and why."""

    name: str
    reason: str


class SimulationResult(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. `utilisation` is the mean of the GPUs' work. `fairness` is Jain's index over the weight-normalised
    shares of the tenants that were backlogged, the mean over windows of `window_s` and GPUs (None: there was never
    more than one). `controls` counts the driver calls that the daemon would have made.
    """

    trace: str
    policy: str
    options: dict[str, str]
    seed: int
    seconds: float
    window_s: float
    events: int
    utilisation: float
    fairness: float | None
    slo_windows: int
    slo_missed: int
    switches: int
    controls: dict[str, int]
    gpus: list[GpuResult]
    tenants: list[TenantResult]
    refused: list[Refused]
    notes: list[str]


class Series(msgspec.Struct, frozen=True):
    """The data of a picture beyond those of a table: one tenant's latencies (µs, ascending) and its share per window,
    from window `first` on.
    """

    name: str
    gpu: int
    latencies_us: list[float]
    first: int
    shares: list[float]


def collect(machine: Machine, trace: Trace, policy: PolicySpec, seed: int) -> SimulationResult:
    """The result of a machine that has run."""
    gpus = [_gpu(index, place, machine) for index, place in enumerate(machine.gpus)]
    tenants = [_tenant(tenant, machine) for tenant in machine.tenants]
    refused = [Refused(spec.name, reason) for spec, reason in machine.refused]
    refused += [Refused(spec.name, "found no room until the end") for spec in machine.waiting]
    fairness = machine.recorder.fairness
    notes = [*trace.notes, *(f"{place.name}: {note}" for place in machine.gpus for note in place.scheduler.notes)]
    return SimulationResult(
        trace=trace.name,
        policy=policy.name,
        options=dict(policy.options),
        seed=seed,
        seconds=machine.end / SECOND,
        window_s=machine.recorder.length / SECOND,
        events=machine.engine.events,
        utilisation=_rounded(sum(gpu.work for gpu in gpus) / len(gpus)),
        fairness=_rounded(sum(fairness) / len(fairness)) if fairness else None,
        slo_windows=sum(tenant.slo_windows for tenant in tenants),
        slo_missed=sum(tenant.slo_missed for tenant in tenants),
        switches=sum(gpu.switches for gpu in gpus),
        controls={name: machine.controller.calls[name] for name in CONTROLS},
        gpus=gpus,
        tenants=tenants,
        refused=refused,
        notes=notes,
    )


def series(machine: Machine) -> list[Series]:
    """The tenants that finished something or were there for a whole window."""
    return [
        Series(
            tenant.spec.name,
            _index(tenant.key.gpu),
            sorted(latency / MICROSECOND for latency in tenant.latencies),
            book.first,
            list(book.shares),
        )
        for tenant, book in machine.recorder.books.items()
    ]


def _gpu(index: int, place: ScheduledGpu, machine: Machine) -> GpuResult:
    gpu, end = place.gpu, machine.end
    contexts = [tenant.context for tenant in machine.tenants if tenant.gpu is gpu]
    held = sum(context.held for context in contexts)
    worked = sum(context.worked for context in contexts)
    idle = sum(context.idle for context in contexts)
    return GpuResult(
        gpu=index,
        policy=place.scheduler.loop.policy_name,
        tenants=len(contexts),
        work=_rounded(worked / end),
        lost=_rounded((held - worked - idle) / end),
        idle=_rounded(idle / end),
        gaps=_rounded(gpu.gaps / end),
        empty=_rounded(gpu.empty / end),
        switches=gpu.switches,
        decisions=place.scheduler.decisions,
    )


def _tenant(tenant: Tenant, machine: Machine) -> TenantResult:
    spec, context = tenant.spec, tenant.context
    lived = max(1, (tenant.ended if tenant.ended is not None else machine.end) - tenant.began)
    requests = len(tenant.latencies)
    unfinished = tenant.unfinished() if tenant.ended is None else 0
    book = machine.recorder.books.get(tenant) or Book(0)
    latencies_us = sorted(latency / MICROSECOND for latency in tenant.latencies)
    return TenantResult(
        name=spec.name,
        pid=tenant.key.pid,
        gpu=_index(tenant.key.gpu),
        task_class=spec.task_class.value,
        weight=spec.weight,
        cap_percent=None if spec.cap is None else _rounded(100 * spec.cap.fraction),
        group=spec.group,
        seconds=_rounded(lived / SECOND),
        share=_rounded((context.held - context.idle) / lived),
        work_share=_rounded(context.worked / lived),
        requests=requests,
        requests_per_s=_rounded(requests * SECOND / lived),
        kernels_per_s=_rounded(context.worked / tenant.length * len(spec.kernel_us) * SECOND / lived),
        relative=_rounded(_relative(tenant, lived, requests, unfinished)),
        unfinished=unfinished,
        turns_per_s=_rounded(context.turns * SECOND / lived),
        latency_us=_latencies(latencies_us),
        target_p99_us=spec.target_p99_us,
        slo_windows=book.targeted,
        slo_missed=book.missed,
        deadline_misses=_deadline_misses(spec, latencies_us),
    )


def _relative(tenant: Tenant, lived: int, requests: int, unfinished: int) -> float:
    """The rate over that of the same loop alone; or how much of what arrived was done."""
    if isinstance(tenant.spec.load, Closed):
        return tenant.context.worked / lived * tenant.alone_ns / tenant.length
    return requests / (requests + unfinished) if requests + unfinished else 1.0


def _latencies(ordered: Sequence[float]) -> Latencies | None:
    if not ordered:
        return None
    figures = (percentile(ordered, percent) for percent in (50, 99, 99.9, 100))
    return Latencies(_rounded(sum(ordered) / len(ordered)), *map(_rounded, figures))


def _deadline_misses(spec: TenantSpec, latencies_us: Sequence[float]) -> int | None:
    if spec.deadline is None:
        return None
    return sum(latency > spec.deadline.period_us for latency in latencies_us)


def _index(gpu: str) -> int:
    return int(gpu.rpartition("-")[2])


def _rounded(value: float) -> float:
    return round(value, 6)
