"""Accounts of policies over time: beside tasks that pause, are kept off again and again, and come back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from runlist.model import Cap, TaskClass
from runlist.policies import PolicySpec, load_policy
from tests.unit.test_policies_gpu import FOREVER, TinyGpu, shares, tenant

LATENCY = TaskClass.LATENCY


# -- turns by weight, of a background that is kept off again and again -------------------------------


def every(gpu: TinyGpu, seconds: float, *actions: tuple[float, Callable[[], None]]) -> None:
    """Do these things again and again, each so long after the one before."""

    def do(index: int) -> None:
        actions[index][1]()
        following = (index + 1) % len(actions)
        gpu.at(gpu.now + actions[following][0], lambda: do(following))

    gpu.at(gpu.now + seconds, lambda: do(0))


@pytest.mark.parametrize("every_s", [0.015, 0.045, 0.2])
@pytest.mark.parametrize("stop", ["segment", "hint", "suspend"])
def test_turns_go_by_weight_however_often_the_background_is_kept_off(every_s: float, stop: str) -> None:
    service = tenant(1, LATENCY, start_s=FOREVER)
    light, heavy = tenant(2, weight=100), tenant(3, weight=400)
    gpu = TinyGpu(load_policy(PolicySpec()), [service, light, heavy])

    def suspend(suspended: bool) -> None:
        for each in (light, heavy):
            gpu.change(each, suspended=suspended)

    stops = {
        "segment": [(every_s, lambda: gpu.segment(service, 1)), (0.005, lambda: gpu.segment(service, None))],
        "hint": [(every_s, lambda: gpu.hint(service, 0.0))],
        "suspend": [(every_s, lambda: suspend(True)), (0.005, lambda: suspend(False))],
    }
    every(gpu, 0.1, *stops[stop])
    gpu.run(12)
    held = shares(gpu, 1, 12)
    assert held[3] / held[2] == pytest.approx(4, rel=0.15)


@pytest.mark.parametrize(("percent", "period_us"), [(15, 500_000), (40, 200_000), (45, 200_000), (60, 100_000)])
def test_a_cap_above_its_part_gives_a_task_no_more_than_its_weight(percent: int, period_us: int) -> None:
    capped = tenant(2, weight=100, cap=Cap.of_percent(percent, period_us))
    gpu = TinyGpu(load_policy(PolicySpec()), [tenant(1, LATENCY, start_s=FOREVER), capped, tenant(3, weight=900)])
    gpu.run(12)
    held = shares(gpu, 1, 12)
    assert held[2] / (held[2] + held[3]) == pytest.approx(0.1, abs=0.01)
