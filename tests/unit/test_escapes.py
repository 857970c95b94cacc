"""Who is suspended once more since it works while it is off: after how long, how often, and who is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runlist.daemon.gpu.escapes import Escapes
from runlist.daemon.tasks.managed import Count, ManagedTask
from runlist.errors import RunlistError
from runlist.model import Share, Task, TaskClass, TaskKey, Usage

KEY = TaskKey(7, "GPU-0")


class Context:
    """Counts how often it was suspended."""

    def __init__(self) -> None:
        self.suspended = 0
        self.fails = False

    def suspend(self) -> None:
        self.suspended += 1
        if self.fails:
            raise RunlistError("no")


class World:
    """One task that was suspended, and readings every half second."""

    def __init__(self) -> None:
        self.context: Any = Context()
        self.task = ManagedTask(Task(KEY, TaskClass.BATCH, "x", 0, 0.0), {1: self.context}, Share(enabled=False))
        self.task.counts[Count.SUSPENSIONS] = 1
        self.tasks = {KEY: self.task}
        self.escapes = Escapes(self.tasks)
        self.now = 100.0

    def read(self, usage: Usage | None = None, *, after_s: float = 0.5) -> int:
        """A reading with so much usage of the task; how often it was suspended at that."""
        before, since = self.context.suspended, self.now
        self.now += after_s
        self.escapes.look({} if usage is None else {KEY.pid: usage}, since, self.now)
        return int(self.context.suspended - before)

    @property
    def count(self) -> int:
        return self.task.counts[Count.SUSPENDED_AGAIN]


WORK, NO_SWITCH = Usage(0.2, turns=3), Usage(0.5, turns=0)


@pytest.fixture
def world() -> World:
    return World()


def test_one_that_works_while_it_is_off_is_suspended_again(world: World) -> None:
    assert world.read() == 0
    assert world.read() == 0
    assert world.read(WORK) == 1
    assert world.read(WORK) == 0  # its last work may be told late
    assert world.read(WORK) == 1
    assert world.count == 2


def test_what_ran_before_it_went_off_is_no_escape(world: World) -> None:
    assert world.read(WORK) == 0  # it was seen off just now
    assert world.read(WORK, after_s=0.05) == 0  # this reading began then
    assert world.read(WORK, after_s=0.1) == 0
    assert world.read(WORK) == 1


def test_one_that_comes_on_and_goes_off_between_two_readings_is_off_anew(world: World) -> None:
    world.read()
    for _ in range(5):
        world.task.counts[Count.SUSPENSIONS] += 1
        assert world.read(WORK) == 0


def test_one_that_is_on_may_work(world: World) -> None:
    world.read()
    world.task.share = replace(world.task.share, enabled=True)
    assert [world.read(WORK) for _ in range(4)] == [0] * 4


def test_a_moment_is_nothing(world: World) -> None:
    world.read()
    world.read()
    assert [world.read(Usage(0.0005, turns=1)) for _ in range(4)] == [0] * 4


def test_who_stays_without_a_switch_is_suspended_ever_more_rarely_and_not_counted(world: World) -> None:
    world.read()
    world.read()
    found = [number for number in range(200) if world.read(NO_SWITCH)]
    assert found[:5] == [0, 3, 8, 17, 34]
    assert world.count == 0


def test_one_that_shares_its_group_is_left_to_those_that_carry_it(world: World) -> None:
    world.task.task = replace(world.task.task, together=3)
    assert [world.read(WORK) for _ in range(5)] == [0] * 5


def test_a_control_that_fails_is_no_fault_of_the_reading(world: World) -> None:
    world.context.fails = True
    world.read()
    world.read()
    assert world.read(WORK) == 1
    assert world.count == 1


def test_one_that_is_gone_is_forgotten(world: World) -> None:
    world.read()
    world.read()
    del world.tasks[KEY]
    world.read()
    world.tasks[KEY] = world.task
    assert world.read(WORK) == 0
