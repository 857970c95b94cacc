"""Background tasks in turns, under the default policy on a small GPU."""

from __future__ import annotations

import pytest

from runlist.model import TaskClass
from runlist.policies import PolicySpec, load_policy
from runlist.policies.parts.turns import PARKED_US
from runlist.statistics import percentile
from tests.unit.test_policies_gpu import FOREVER, Tenant, TinyGpu, shares, tenant

LATENCY, NORMAL = TaskClass.LATENCY, TaskClass.NORMAL


def service(
    pid: int = 1, kernel_s: float = 80e-6, gap_s: float = 0.003, **values: object
) -> tuple[Tenant, list[float]]:
    """A latency task and the times that its requests take."""
    took: list[float] = []
    return tenant(pid, LATENCY, burst_s=kernel_s, wait_s=gap_s, on_burst=lambda _, s: took.append(s), **values), took


def run(*tenants: Tenant, seconds: float = 5.0) -> TinyGpu:
    gpu = TinyGpu(load_policy(PolicySpec()), tenants)
    gpu.run(seconds)
    assert gpu.notes == []
    return gpu


def p99(took: list[float]) -> float:
    return percentile(sorted(took), 99)


def test_a_service_is_served_as_well_beside_eight_batch_jobs_as_beside_one() -> None:
    one, took_beside_one = service()
    run(one, tenant(2))
    eight, took_beside_eight = service()
    gpu = run(eight, *(tenant(pid) for pid in range(2, 10)), seconds=9)
    assert p99(took_beside_eight) < 1.15 * p99(took_beside_one)
    held = shares(gpu, 1, 9)
    assert [held[pid] for pid in range(2, 10)] == pytest.approx([(sum(held.values()) - held[1]) / 8] * 8, rel=0.15)
    assert gpu.decides < 25 * 9


def test_turns_by_weight() -> None:
    gpu = run(service()[0], tenant(2, weight=300), tenant(3), tenant(4, NORMAL), seconds=8)
    held = shares(gpu, 0, 8)
    behind = held[2] + held[3] + held[4]
    assert [held[pid] / behind for pid in (2, 3, 4)] == pytest.approx([3 / 8, 1 / 8, 4 / 8], abs=0.02)


def test_idle_tasks_cost_the_others_nothing() -> None:
    alone = run(service()[0], tenant(2), tenant(3))
    beside = run(service()[0], tenant(2), tenant(3), tenant(4, start_s=99.0), tenant(5, start_s=99.0))
    worked = [sum(each.worked_s for each in gpu.tenants) for gpu in (alone, beside)]
    assert worked[1] > 0.97 * worked[0]


def test_a_task_that_gets_work_is_in_turn_again_within_half_a_second() -> None:
    gpu = run(service()[0], tenant(2), tenant(3), tenant(4, start_s=3.0), seconds=6)
    held = shares(gpu, 3.5, 6)
    assert held[4] == pytest.approx(held[2], rel=0.1)


@pytest.mark.parametrize("rest_s", [0.0, 0.3, 2.0])
def test_what_one_had_while_nobody_else_had_work_is_not_held_against_it(rest_s: float) -> None:
    """As of a program that warmed up last, before requests came for all."""

    def rests(_: float, took_s: float) -> None:
        if took_s > 1.0:
            early.burst_s, early.wait_s = FOREVER, rest_s

    early = tenant(4, burst_s=2.0, on_burst=rests)
    gpu = run(service()[0], tenant(2, start_s=2.5 + rest_s), tenant(3, start_s=2.5 + rest_s), early, seconds=6 + rest_s)
    held = shares(gpu, 3 + rest_s, 6 + rest_s)
    assert [held[pid] for pid in (2, 3, 4)] == pytest.approx([held[2]] * 3, rel=0.15)


@pytest.mark.parametrize("burst_s", [0.01, 0.03, 0.06, 0.1])
def test_who_rests_after_each_turn_has_no_more_than_who_works_on(burst_s: float) -> None:
    others = [tenant(pid) for pid in (2, 3, 4, 5)]
    held = shares(run(service()[0], *others, tenant(9, burst_s=burst_s, wait_s=0.1), seconds=8), 1, 8)
    assert held[9] < 1.15 * sum(held[each.task.key.pid] for each in others) / 4


def test_nor_is_it_within_a_group() -> None:
    def rests(_: float, took_s: float) -> None:
        if took_s > 1.0:
            early.burst_s, early.wait_s = FOREVER, 2.0

    early = tenant(4, burst_s=2.0, group="a", on_burst=rests)
    late = [tenant(2, start_s=4.5), tenant(3, start_s=4.5, group="a")]
    held = shares(run(service()[0], *late, early, seconds=8), 5, 8)
    assert [held[3], held[4]] == pytest.approx([held[2] / 2] * 2, rel=0.15)


def test_a_foreground_that_comes_and_goes_does_not_park_those_behind_it() -> None:
    gpu = run(tenant(1, NORMAL, burst_s=0.010, wait_s=0.010), *(tenant(pid) for pid in (2, 3, 4)))
    held = shares(gpu, 1, 5)
    assert [held[pid] for pid in (2, 3, 4)] == pytest.approx([held[2]] * 3, rel=0.1)
    assert sum(each.worked_s for each in gpu.tenants) / 5 > 0.9
    assert all(each.share.timeslice_us != PARKED_US for each in gpu.tenants)


def test_jobs_that_work_now_and_then_leave_most_to_the_others() -> None:
    gpu = run(
        service()[0],
        tenant(2),
        tenant(3),
        tenant(4, burst_s=0.003, wait_s=0.1),
        tenant(5, burst_s=0.03, wait_s=0.5),
        seconds=8,
    )
    held = shares(gpu, 2, 8)
    assert held[2] + held[3] > 0.6
    assert held[4] + held[5] > 0.06
    assert gpu.decides < 100 * 8


def test_one_that_starts_by_itself_makes_the_foreground_wait_for_little_more_than_a_millisecond() -> None:
    served, took = service()
    run(served, tenant(2), tenant(3, burst_s=0.002, wait_s=0.3), tenant(4, burst_s=0.002, wait_s=0.4), seconds=8)
    assert max(took[len(took) // 4 :]) < 0.0018
