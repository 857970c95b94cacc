"""How the background gives way to several programs at once, and to those that come beside others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runlist.model import Activity, Appear, Busy, Task, TaskClass, Usage, Used, Vanish
from runlist.policies.parts.give_way import GiveWay, Way
from tests.unit.test_policies_give_way import Gpu, task

LATENCY, BATCH = TaskClass.LATENCY, TaskClass.BATCH
STEP_S = 0.01


class Several:
    """Programs beside a background: each has so many pauses a second, launches for a part of the time, and waits so
    often.
    """

    def __init__(self) -> None:
        self.part = GiveWay("auto", 0.1)
        self.now = 10.0
        self.doing: dict[int, tuple[float, float, float]] = {}
        self.tasks: dict[int, Task] = {}
        self.background = task(99, BATCH)
        self.ways = [self.part.way]

    def come(self, pid: int, pauses: float, launches: float, often: float) -> None:
        self.tasks[pid] = task(pid, LATENCY, activity=Activity())
        self.doing[pid] = (pauses, launches, often)
        self.part.on_event(Appear(self.tasks[pid]), self.now)
        self._ask()

    def go(self, pid: int) -> None:
        del self.doing[pid]
        self.part.on_event(Vanish(self.tasks.pop(pid).key), self.now)
        self._ask()

    def work(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.now += STEP_S
            turns = 0
            for pid, (pauses, launches, often) in self.doing.items():
                turns += (more := self._due(pauses))
                was = self.tasks[pid]
                assert was.activity is not None
                told = Activity(
                    was.activity.work + more, was.activity.waited_s + 0.2 * launches * STEP_S,
                    was.activity.launching_s + launches * STEP_S, 0, was.activity.waits + self._due(often),
                )  # fmt: skip
                usage = Usage(was.usage.held_s + 50e-6 * more, was.usage.turns + more)
                self.tasks[pid] = replace(was, usage=usage, activity=told)
            usage = self.background.usage
            self.background = replace(self.background, usage=Usage(usage.held_s + STEP_S / 2, usage.turns + turns))
            self.part.on_event(Used({one.key: 1e-5 for one in self.tasks.values()}), self.now)
            self._ask()

    def _due(self, often: float) -> int:
        return int(self.now * often) - int((self.now - STEP_S) * often)

    def _ask(self) -> None:
        self.part.manner(list(self.tasks.values()), [self.background], self.now)
        if self.part.way is not self.ways[-1]:
            self.ways.append(self.part.way)


HOST_BOUND = (1_000, 0.5, 50)
RARE = (5, 0.0, 5)
SELDOM_BUSY = (60, 0.02, 60)
SHORT = (900, 0.15, 900)


def test_programs_that_come_beside_others_one_after_the_other_do_not_undo_what_fits() -> None:
    several = Several()
    several.come(1, *HOST_BOUND)
    several.work(0.5)
    assert several.part.way is Way.SLICE
    for pid in range(2, 40):
        several.come(pid, *RARE)
        several.work(0.07)
        several.go(pid)
    assert several.ways == [Way.SWITCH, Way.SLICE]


def test_nor_do_they_keep_the_way_from_being_found() -> None:
    several = Several()
    several.come(1, *HOST_BOUND)
    for pid in range(2, 12):
        several.work(0.05)
        several.come(pid, *RARE)
    assert several.ways == [Way.SWITCH, Way.SLICE]


def test_who_waits_for_the_gpu_now_and_then_does_not_turn_what_fits_another() -> None:
    """While the one is idle for a moment, the other one's waits are all there is."""
    several = Several()
    several.come(1, *HOST_BOUND)
    several.come(2, *SELDOM_BUSY)
    for _ in range(10):
        several.doing[1] = HOST_BOUND
        several.work(0.6)
        several.doing[1] = (0, 0.0, 0)
        several.work(0.3)
    assert several.ways == [Way.SWITCH, Way.SLICE]


@pytest.mark.parametrize("after_s", [2.0, 2.05, 2.1, 2.15, 2.2])
def test_one_that_waits_for_each_of_short_pieces_is_seen_soon_after_it_came(after_s: float) -> None:
    several = Several()
    several.come(1, *HOST_BOUND)
    several.work(after_s)
    assert several.part.way is Way.SLICE
    several.come(2, *SHORT)
    several.work(0.36)
    assert several.part.way is Way.SWITCH


def test_who_waits_too_often_for_slices_in_turns_has_them_ever_more_seldom() -> None:
    several = Several()
    several.come(1, *HOST_BOUND)
    several.come(2, *SHORT)
    for _ in range(12):
        several.doing[2] = (0, 0.0, 0)
        several.work(1)
        several.doing[2] = SHORT
        several.work(0.6)
    assert 2 <= several.ways.count(Way.SLICE) <= 5
    several.doing[2] = (0, 0.0, 0)
    several.work(16)
    assert several.part.way is Way.SLICE


@pytest.mark.parametrize(("silent_has", "way"), [(30, Way.REQUEST), (900, Way.SWITCH)])
def test_beside_one_that_does_not_tell_another_has_the_gpu_for_its_requests_while_that_one_costs_little(
    silent_has: float, way: Way
) -> None:
    """It finds the background on, as by switch, or off."""
    gpu, silent, last = Gpu(tells=True), task(3, LATENCY), 0
    for step in range(2_000):
        gpu.now += 1e-3
        if step % 3 == 0:
            gpu._use(gpu.manner.off_until is None, 1e-3, 2.5e-3, 0.0)
        more = int(gpu.now * silent_has) - last if last else 0
        last = int(gpu.now * silent_has)
        usage = gpu.background.usage
        silent = replace(silent, usage=Usage(silent.usage.held_s + 0.1e-3 * more, silent.usage.turns + more))
        gpu.background = replace(gpu.background, usage=Usage(usage.held_s, usage.turns + more))
        gpu.part.on_event(Used({gpu.key: 1e-3, silent.key: 0.1e-3}), gpu.now)
        gpu.manner = gpu.part.manner([gpu.foreground, silent], [gpu.background], gpu.now)
        if step == 300:
            gpu.part.on_event(Busy(gpu.key), gpu.now)
    assert gpu.part.way is way
