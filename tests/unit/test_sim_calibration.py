"""The simulation against what was measured on an H200 (driver 580.159.04): within 2 %, and where it is off by more, by
as much as is known, within 2 % of that.
"""

from __future__ import annotations

from functools import cache

import pytest

from runlist.arrivals import Closed, Periodic
from runlist.model import TaskClass
from runlist.policies import PolicySpec
from runlist.sim import Trace, load_trace, simulate
from runlist.sim.result import SimulationResult
from runlist.sim.workload import TenantSpec

WITHIN = 0.02


def batch(count: int, slice_us: int | None = None) -> list[TenantSpec]:
    """Batch jobs as measured: 3.1 ms kernels, four and then a wait."""
    return [
        TenantSpec(f"batch-{index}", TaskClass.BATCH, kernel_us=(3_100.0,) * 4, gap_us=400.0, timeslice_us=slice_us)
        for index in range(count)
    ]


def service(closed: bool, slice_us: int | None = None) -> TenantSpec:
    """An 80 µs kernel every 3 ms; a closed loop sleeps for 3 ms between requests, and wakes a little late."""
    load = Closed() if closed else Periodic(1e3 / 3)
    return TenantSpec(
        "service",
        TaskClass.LATENCY,
        load=load,
        kernel_us=(80.0,),
        gap_us=3_055.0 if closed else 0.0,
        timeslice_us=slice_us,
    )


def run(policy: str, *tenants: TenantSpec) -> SimulationResult:
    return simulate(Trace("calibration", 5.0, tenants), PolicySpec(policy)).result


@cache
def alone() -> float:
    return run("none", *batch(1)).tenants[0].kernels_per_s


def near(measured: float, off: float = 0.0) -> object:
    """What was measured, for which the simulation is known to be `off` by that part."""
    return pytest.approx(measured * (1 + off), rel=WITHIN)


def test_a_batch_job_alone() -> None:
    assert alone() == near(310)


@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize(
    ("slice_us", "measured"), [(None, 0.935), (5_000, 0.986), (10_000, 1.002), (20_000, 1.019), (40_000, 1.019)]
)
def test_batch_jobs_together(count: int, slice_us: int | None, measured: float) -> None:
    tenants = run("none", *batch(count, slice_us)).tenants
    assert sum(tenant.kernels_per_s for tenant in tenants) / alone() == near(measured)
    for tenant in tenants:
        assert tenant.kernels_per_s / alone() * count == near(measured)


@pytest.mark.parametrize(
    ("one", "two", "measured", "off"),
    [(15_000, 5_000, 0.750, 0), (12_800, 4_270, 0.747, 0), (18_000, 1_800, 0.869, 0.018), (30_000, 3_000, 0.823, 0)],
)
def test_two_batch_jobs_at_unequal_slices(one: int, two: int, measured: float, off: float) -> None:
    first, second = run("none", batch(1, one)[0], batch(2, two)[1]).tenants
    assert first.share / (first.share + second.share) == near(measured, off)
    assert first.work_share / (first.work_share + second.work_share) == near(measured, off)


@pytest.mark.parametrize(
    ("slice_us", "p50", "p50_off", "p99", "p99_off"),
    [(None, 1_497, -0.04, 2_164, 0.055), (200, 389, -0.04, 475, 0), (10, 279, 0, 303, 0), (1, 273, 0, 292, 0)],
)
def test_a_service_beside_a_batch_job(
    slice_us: int | None, p50: float, p50_off: float, p99: float, p99_off: float
) -> None:
    own = None if slice_us is None else 1_000_000
    first, _ = run("none", service(closed=True, slice_us=own), *batch(1, slice_us)).tenants
    assert first.latency_us is not None
    assert first.latency_us.p50 == near(p50, p50_off)
    assert first.latency_us.p99 == near(p99, p99_off)


def test_a_service_alone() -> None:
    (tenant,) = run("none", service(closed=True)).tenants
    assert tenant.latency_us is not None
    assert tenant.latency_us.p50 == near(94)
    assert tenant.latency_us.p99 == near(113, 0.015)


def test_what_a_service_takes_from_a_batch_job() -> None:
    tenants = run("gpreempt", service(closed=False), *batch(1)).tenants
    assert tenants[1].kernels_per_s / alone() == near(0.865)


def test_three_batch_jobs_taking_turns_beside_a_service() -> None:
    first, *jobs = run("priority", service(closed=False), *batch(3)).tenants
    assert first.latency_us is not None
    assert first.latency_us.p50 == near(272)
    assert 282 * (1 - WITHIN) <= first.latency_us.p99 <= 374
    rates = [job.kernels_per_s for job in jobs]
    assert sum(rates) / alone() == near(0.851)
    assert min(rates) * 3 / sum(rates) > 0.9


@pytest.mark.parametrize(
    ("name", "p50", "p50_off", "rate", "rate_off"),
    [
        ("token-loop", 1.39, -0.12, 0.62, -0.055),
        ("eager-llm", 1.0, 0, 0.15, 0.47),
        ("resnet", 1.0, 0.02, 0.72, -0.13),
    ],
)
def test_programs_that_pause_often(name: str, p50: float, p50_off: float, rate: float, rate_off: float) -> None:
    """The traces are simpler than the programs that were measured; docs/simulation.md says in what."""
    program, job = load_trace(name).tenants
    (program_alone,), (job_alone,) = (run("none", one).tenants for one in (program, job))
    beside, job_beside = run("gpreempt", program, job).tenants
    assert beside.latency_us is not None
    assert program_alone.latency_us is not None
    assert beside.latency_us.p50 / program_alone.latency_us.p50 == near(p50, p50_off)
    assert job_beside.kernels_per_s / job_alone.kernels_per_s == near(rate, rate_off)
