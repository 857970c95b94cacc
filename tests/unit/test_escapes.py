"""Who is suspended once more since it works while it is off: after how long, how often, and who is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runlist.daemon.gpu.escapes import MOST_AT_ONCE, Escapes
from runlist.daemon.tasks.managed import Count, ManagedTask
from runlist.errors import RunlistError
from runlist.model import Share, Task, TaskClass, TaskKey, Usage
from runlist.planes.usage import Reading, Residency

KEY = TaskKey(7, "GPU-0")
REALTIME_S = 1000.0
"""What the log's clock is ahead."""


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

    def read(self, *turns: float, after_s: float = 0.5) -> int:
        """A reading; the task was switched in so long before its end, each time. How often it was suspended at that."""
        held = {KEY.pid: Usage(0.002 * len(turns), turns=len(turns))} if turns else {}
        began = {KEY.pid: REALTIME_S + self.now + after_s - min(turns)} if turns else {}
        return self._look(Reading(0.0, {**held, 8: Usage(0.1, 1)}, [Residency(8, 0, 0, 1)], began), after_s)

    def read_without_a_switch(self) -> int:
        """It has the GPU all along."""
        return self._look(Reading(0.0, {KEY.pid: Usage(0.5)}, [Residency(KEY.pid, 0, 0, 1)]), 0.5)

    def _look(self, reading: Reading, after_s: float) -> int:
        before, since = self.context.suspended, self.now
        self.now += after_s
        reading.until = REALTIME_S + self.now
        self.escapes.look(reading, since, self.now)
        return int(self.context.suspended - before)

    @property
    def count(self) -> int:
        return self.task.counts[Count.SUSPENDED_AGAIN]


@pytest.fixture
def world() -> World:
    return World()


def test_one_that_is_switched_in_while_it_is_off_is_suspended_again(world: World) -> None:
    world.escapes.note(world.now)
    assert world.read() == 0
    assert [world.read(0.4, 0.1) for _ in range(3)] == [1, 1, 1]
    assert world.count == 3


def test_what_it_did_before_it_went_off_is_no_escape(world: World) -> None:
    world.escapes.note(world.now + 0.495)
    assert world.read(0.45, 0.2, 0.1) == 0
    assert world.read(0.497) == 0  # clocks disagree a little
    assert world.read(0.3) == 1


def test_what_it_did_before_it_was_suspended_again_is_no_other_escape(world: World) -> None:
    world.read()
    assert world.read(0.2) == 1
    assert world.read(0.495) == 0
    assert world.read(0.2) == 1
    assert world.count == 2


def test_it_is_said_once_a_minute(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.read()
    for _ in range(200):  # 100 s
        world.read(0.2)
    assert capsys.readouterr().out.count("suspended again") == 2


def test_who_is_off_for_short_turns_is_seen_too(world: World) -> None:
    """A reading begins before the suspension, by as long as others' controls took."""
    for _ in range(3):
        world.task.counts[Count.SUSPENSIONS] += 1
        world.escapes.note(world.now + 0.003)
        assert world.read(0.049, after_s=0.05) == 0
        world.task.counts[Count.SUSPENSIONS] += 1
        world.escapes.note(world.now + 0.003)
        assert world.read(0.049, 0.02, after_s=0.05) == 1
    assert world.count == 3


def test_one_that_comes_on_and_goes_off_between_two_readings_is_off_anew(world: World) -> None:
    world.read()
    for _ in range(5):
        world.task.counts[Count.SUSPENSIONS] += 1
        assert world.read(0.2) == 0


def test_one_that_is_on_may_work(world: World) -> None:
    world.read()
    world.task.share = replace(world.task.share, enabled=True)
    assert [world.read(0.2) for _ in range(4)] == [0] * 4


def test_who_stays_without_a_switch_is_suspended_ever_more_rarely_and_not_counted(world: World) -> None:
    world.read()
    world.read()
    found = [number for number in range(200) if world.read_without_a_switch()]
    assert found[:5] == [0, 3, 8, 17, 34]
    assert world.count == 0


def test_a_source_that_sees_no_turns_tells_nothing(world: World) -> None:
    world.read()
    assert world._look(Reading(0.0, {KEY.pid: Usage(0.5)}), 0.5) == 0


def test_one_that_shares_its_group_is_left_to_those_that_carry_it(world: World) -> None:
    world.task.task = replace(world.task.task, together=3)
    assert [world.read(0.2) for _ in range(5)] == [0] * 5


def test_a_control_that_fails_is_no_fault_of_the_reading(world: World) -> None:
    world.context.fails = True
    world.read()
    assert world.read(0.2) == 1
    assert world.count == 1


def test_one_that_is_gone_is_forgotten(world: World) -> None:
    world.read()
    world.read()
    del world.tasks[KEY]
    world.read()
    world.tasks[KEY] = world.task
    assert world.read(0.2) == 0


def test_of_many_some_are_suspended_at_a_reading_and_the_others_at_the_next(world: World) -> None:
    contexts: list[Any] = [Context() for _ in range(MOST_AT_ONCE + 3)]
    world.tasks.clear()
    for pid, context in enumerate(contexts, 20):
        key = TaskKey(pid, "GPU-0")
        task = ManagedTask(Task(key, TaskClass.BATCH, "x", 0, 0.0), {pid: context}, Share(enabled=False))
        world.tasks[key] = task
    world.escapes.note(world.now)
    usage = {key.pid: Usage(0.1, 1) for key in world.tasks}
    for done in (MOST_AT_ONCE, 2 * MOST_AT_ONCE):
        began = {key.pid: REALTIME_S + world.now + 0.4 for key in world.tasks}
        world._look(Reading(0.0, usage, [Residency(20, 0, 0, 1)], began), 0.5)
        assert sum(context.suspended for context in contexts) == done
    assert {context.suspended for context in contexts} == {1, 2}
