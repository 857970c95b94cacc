"""What requests and slices may cost the GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runlist.model import Busy, Idle, Report
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
@pytest.mark.parametrize(
    ("pauses", "held", "way"),
    [(400, 100e-6, Way.SWITCH), (400, 300e-6, Way.SLICE), (1_500, 100e-6, Way.SWITCH), (2_200, 100e-6, Way.SLICE)],
)
def test_without_counted_waits_who_does_no_more_at_a_time_beside_slices_waits_for_each_piece(
    pauses: float, held: float, way: Way, tells: bool
) -> None:
    """A program that polls, or is not under the library; one that was started under an older one tells how long. Slices
    spare nothing where it has the GPU as often as before. Where it has it more often, its load has changed.
    """
    told = {"waits": 0.2, "launches": 0.3} if tells else {}
    gpu = Gpu(tells=tells)
    gpu.ahead = 1.0
    gpu.work(0.26, pauses=1_500, held=100e-6, **told)
    assert gpu.part.way is Way.SLICE
    gpu.work(0.12, pauses=pauses, held=held, **told)
    assert gpu.part.way is way
    if way is Way.SWITCH:  # it is not tried again for a while
        gpu.work(9, pauses=1_500, held=100e-6, **told)
        assert gpu.ways == [Way.SWITCH, Way.SLICE, Way.SWITCH]


def test_a_load_that_falls_beside_slices_says_nothing_of_waits() -> None:
    gpu = Gpu()
    gpu.work(1, pauses=1_500, held=100e-6)
    gpu.work(1, pauses=250, held=100e-6)
    assert gpu.ways == [Way.SWITCH, Way.SLICE]


@pytest.mark.parametrize(
    ("pauses", "held", "way"), [(420, 100e-6, Way.SWITCH), (420, 200e-6, Way.SLICE), (300, 100e-6, Way.SLICE)]
)
def test_who_always_wants_the_gpu_and_does_no_more_at_a_time_beside_longer_slices_has_none(
    pauses: float, held: float, way: Way
) -> None:
    """The first slices may be short enough, and those that spare switches not."""
    gpu = Gpu()
    gpu.work(0.4, pauses=1_000, held=100e-6)
    gpu.work(1, pauses=pauses, held=held)
    assert gpu.part.way is way


def test_who_is_off_nearly_always_is_told_what_leaves_it_some() -> None:
    gpu = at_requests()
    gpu.work(0.6, pauses=300, held=1e-3, waits=0.9)
    assert "a cap on the foreground leaves it some" in gpu.part.why()
    gpu.tell(Idle(gpu.key))
    gpu.work(0.3, pauses=300, held=1e-3, waits=0.9)
    assert gpu.part.way is Way.REQUEST
    assert "a cap" not in gpu.part.why()


@pytest.mark.parametrize(
    ("waits", "launches", "pauses_each_s", "turn_us"),
    [(0.9, 0.05, None, 2_000), (0.05, 0.0, None, 2_000), (0.6, 0.1, None, 1), (0.9, 0.05, 0.9, 1)],
)
def test_a_request_that_does_not_end_leaves_the_background_slices_in_its_breaks(
    waits: float, launches: float, pauses_each_s: float | None, turn_us: int
) -> None:
    """By tiny ones it had nothing of them. One that has pauses which are too short to be seen may be many."""
    gpu = Gpu("request", tells=True)
    gpu.work(0.01, pauses=300, held=1e-3)
    gpu.tell(Busy(gpu.key))
    if pauses_each_s is None:
        gpu.work(1.2, pauses=300, held=1e-3, waits=waits, launches=launches)
    else:
        for _ in range(3):
            gpu.work(pauses_each_s, pauses=300, held=1e-3, waits=waits, launches=launches)
            gpu.tell(Idle(gpu.key))
            gpu.tell(Busy(gpu.key))
    assert gpu.part.way is Way.REQUEST
    assert gpu.manner.turn_us == turn_us
    assert ("; its request does not end" in gpu.part.why_of(gpu.key)) is (pauses_each_s is None)
    gpu.tell(Idle(gpu.key))
    assert gpu.manner.turn_us == 1


def test_who_leaves_nothing_by_switch_is_named_with_what_leaves_some() -> None:
    gpu = Gpu()
    gpu.work(1, pauses=40, held=24.5e-3)
    assert gpu.ways == [Way.SWITCH]
    assert "a cap on the foreground leaves it some" in gpu.part.why()


def late(gpu: Gpu, seconds: float, latency_s: float) -> None:
    """It reports requests that take so long."""
    for _ in range(round(seconds / 0.02)):
        gpu.work(0.02, pauses=1_500, held=100e-6, waits=0.1, launches=0.6)
        gpu.tell(Report(gpu.key, latency_s))


@pytest.mark.parametrize(("latency_s", "way"), [(1.7e-3, Way.SLICE), (1.9e-3, Way.SWITCH)])
def test_slices_end_where_a_target_is_in_danger_beside_them(latency_s: float, way: Way) -> None:
    gpu = Gpu(tells=True)
    gpu.foreground = replace(gpu.foreground, target_p99_us=2_000.0)
    late(gpu, 1.0, 1e-3)
    assert gpu.part.way is Way.SLICE
    late(gpu, 0.6, latency_s)
    assert gpu.part.way is way
    late(gpu, 9.0, 1e-3)
    assert gpu.part.way is way  # they are not tried again for a while, but for another target
    gpu.foreground = replace(gpu.foreground, target_p99_us=4_000.0)
    late(gpu, 0.6, latency_s)
    assert gpu.part.way is Way.SLICE


def test_they_end_while_the_background_is_stopped_for_that() -> None:
    gpu = Gpu(tells=True)
    gpu.foreground = replace(gpu.foreground, target_p99_us=2_000.0)
    late(gpu, 1.0, 1e-3)
    for _ in range(30):
        gpu.now += 0.02
        gpu.part.on_event(Report(gpu.key, 1.9e-3), gpu.now)
        gpu.part.manner([gpu.foreground], [], gpu.now)
    assert gpu.ask().turn_us == 1


def test_slices_that_were_asked_for_stay_whatever_the_target() -> None:
    gpu = Gpu("slice", tells=True)
    gpu.foreground = replace(gpu.foreground, target_p99_us=2_000.0)
    late(gpu, 2.0, 5e-3)
    assert gpu.part.way is Way.SLICE


def test_programs_that_fit_another_way_by_turns_change_it_a_few_times_in_8_s() -> None:
    gpu, changes = Gpu(tells=True), []
    for _ in range(40):
        for work in ({"waits": 0.1, "launches": 0.6}, {"waits": 0.9, "launches": 0.05, "often": 900}):
            gpu.ahead = 1.0
            before = len(gpu.ways)
            gpu.work(0.6, pauses=900, held=100e-6, **work)
            changes += [gpu.now] * (len(gpu.ways) - before)
    assert changes
    assert max(sum(at <= other < at + 8 for other in changes) for at in changes) <= 6


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
