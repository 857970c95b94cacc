"""The simulated service whose load steps up: what the policy keeps and leaves, against the same requests alone."""

from __future__ import annotations

import pytest

from bench.harness.service_load import LOADS, Run, simulated, simulated_target_us

SEEDS = range(6)


@pytest.fixture(scope="module")
def target_us() -> float:
    return simulated_target_us(range(1_000, 1_004))


def test_kept_is_the_part_of_the_windows_within_the_target() -> None:
    run = Run([1_000.0, 2_000.0, 3_000.0, float("inf")], 5.0)
    assert run.kept(2_000.0) == 0.5
    assert run.details(3_000.0)["kept"] == 0.75


def test_the_same_seed_gives_the_same_requests() -> None:
    assert simulated(3, alone=True, policy="none", step_s=1) == simulated(3, alone=True, policy="none", step_s=1)
    assert simulated(3, alone=True, policy="none", step_s=1) != simulated(4, alone=True, policy="none", step_s=1)


def test_the_target_is_kept_nearly_as_often_as_alone_and_the_batch_job_has_what_that_leaves(target_us: float) -> None:
    """Up to half of what the service can do: beyond that it does not keep the target alone either, now and then. Of the
    GPU three in ten are left to the batch job then, which has 310 kernels a second alone.
    """
    lost, rates = 0, []
    for seed in SEEDS:
        run = simulated(seed, target_us, loads=LOADS[:-1], step_s=3)
        alone = simulated(seed, loads=LOADS[:-1], step_s=3, alone=True, policy="none")
        lost += sum(here > target_us >= there for here, there in zip(run.p99_us, alone.p99_us, strict=True))
        rates.append(run.batch_rate)
    assert lost <= 2  # of 90
    assert sum(rates) / len(rates) > 90


def test_while_there_is_room_the_batch_job_has_nearly_what_it_has_without_a_target(target_us: float) -> None:
    for seed in SEEDS:
        with_target = simulated(seed, target_us, loads=(0.2,), step_s=5).batch_rate
        assert with_target > 0.93 * simulated(seed, loads=(0.2,), step_s=5).batch_rate


def test_no_fixed_cap_on_the_batch_job_does_as_well(target_us: float) -> None:
    """It keeps the target less often, and leaves less."""
    ours = [simulated(seed, target_us, step_s=2) for seed in SEEDS]
    for cap in (20, 10):
        fixed = [simulated(seed, cap=cap, step_s=2) for seed in SEEDS]
        assert sum(run.kept(target_us) for run in ours) > 1.2 * sum(run.kept(target_us) for run in fixed)
        assert sum(run.batch_rate for run in ours) > 1.3 * sum(run.batch_rate for run in fixed)


def test_a_target_that_cannot_be_kept_leaves_the_background_its_least_part() -> None:
    """The service takes half a millisecond by itself."""
    rates = [simulated(seed, 300.0, loads=(0.3,), step_s=10).batch_rate for seed in SEEDS]
    assert all(0.2 * 3.1 < rate < 5 * 3.1 for rate in rates)
