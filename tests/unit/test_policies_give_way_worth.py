"""What requests and slices may cost the GPU."""

from __future__ import annotations

import pytest

from runlist.model import Busy, Idle
from runlist.policies.parts.give_way import Way
from tests.unit.test_policies_give_way import WINDOW_S, Gpu, listen
from tests.unit.test_policies_give_way_bounds import at_requests


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


@pytest.mark.parametrize("tells", [False, True])
@pytest.mark.parametrize(("held", "way"), [(100e-6, Way.SWITCH), (300e-6, Way.SLICE)])
def test_without_counted_waits_who_does_no_more_at_a_time_beside_slices_waits_for_each_piece(
    held: float, way: Way, tells: bool
) -> None:
    """A program that polls, or is not under the library; one that was started under an older one tells how long."""
    told = {"waits": 0.2, "launches": 0.3} if tells else {}
    gpu = Gpu(tells=tells)
    gpu.work(0.26, pauses=1_500, held=100e-6, **told)
    assert gpu.part.way is Way.SLICE
    gpu.work(0.12, pauses=400, held=held, **told)
    assert gpu.part.way is way
    if way is Way.SWITCH:  # it is not tried again for a while
        gpu.work(9, pauses=1_500, held=100e-6, **told)
        assert gpu.ways == [Way.SWITCH, Way.SLICE, Way.SWITCH]


def test_a_load_that_falls_beside_slices_says_nothing_of_waits() -> None:
    gpu = Gpu()
    gpu.work(1, pauses=1_500, held=100e-6)
    gpu.work(1, pauses=500, held=100e-6)
    assert gpu.ways == [Way.SWITCH, Way.SLICE]


def test_who_is_off_nearly_always_is_told_what_leaves_it_some() -> None:
    gpu = at_requests()
    gpu.work(0.6, pauses=300, held=1e-3, waits=0.9)
    assert "a cap on the foreground leaves it some" in gpu.part.why()
    gpu.tell(Idle(gpu.key))
    gpu.work(0.3, pauses=300, held=1e-3, waits=0.9)
    assert gpu.part.way is Way.REQUEST
    assert "a cap" not in gpu.part.why()


@pytest.mark.parametrize("rests_s", [4.0, 30.0])
def test_a_long_pause_is_no_part_of_how_a_program_works(rests_s: float) -> None:
    """Who has work again has the slices that fit it, and not the shortest ones on account of the time without."""
    gpu = Gpu(tells=True)

    def works(windows: int) -> list[int]:
        found = []
        for _ in range(windows):
            turn_us = gpu.manner.turn_us if gpu.part.way is Way.SLICE else 0.0
            pauses = min(1_000, 0.5 / (turn_us * 1e-6 + 0.28e-3))
            gpu.work(WINDOW_S, pauses=pauses, held=60e-6, waits=0.05, launches=0.5, often=60)
            if gpu.part.way is Way.SLICE:  # the GPU is looked at beside tiny ones now and then
                found.append(gpu.manner.turn_us)
        return found

    def rest() -> None:
        gpu.work(2 * WINDOW_S, pauses=0, held=0)
        gpu.now += rests_s

    gpu.work(3.0, pauses=10, held=60e-6, waits=0.01, launches=1.0)  # it loads
    rest()
    before = works(16)
    rest()
    after = works(8)
    assert min(before[2:]) > before[-1] / 2
    assert min(after) > before[-1] / 3
