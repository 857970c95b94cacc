"""What requests and slices may cost the GPU."""

from __future__ import annotations

import pytest

from runlist.model import Busy, Idle
from runlist.policies.parts.give_way import Way
from tests.unit.test_policies_give_way import WINDOW_S, Gpu, listen


@pytest.mark.parametrize(("waits", "way"), [(0.37, Way.SWITCH), (0.43, Way.REQUEST)])
def test_it_is_more_where_the_program_waits_for_the_gpu(waits: float, way: Way) -> None:
    """Each request is busy for 30 ms, and a part of that it waits: else the GPU stands idle for nothing."""
    gpu = Gpu(tells=True)
    listen(gpu, pauses=300, held=1e-3, waits=0.9)
    for _ in range(20):
        gpu.tell(Busy(gpu.key))
        gpu.work(0.03, pauses=0, held=0, waits=waits)
        gpu.tell(Idle(gpu.key))
        gpu.work(0.07, pauses=10, held=1e-3)
    assert gpu.ways[1] is Way.REQUEST
    assert gpu.part.way is way


def test_who_works_for_half_of_the_time_has_shorter_slices_meanwhile() -> None:
    """The budget is a part of all time: what is not taken in one half may be in the other."""
    slices = {}
    for rests in (0.0, WINDOW_S):
        gpu = Gpu("slice")
        for _ in range(24):
            gpu.work(WINDOW_S, pauses=0.5 / (gpu.manner.turn_us * 1e-6 + 0.4e-3), held=100e-6)
            gpu.now += rests
        slices[rests] = gpu.manner.turn_us
    assert slices[WINDOW_S] == pytest.approx(slices[0.0] / 2, rel=0.4)
