"""Who is suspended once more since it works while it is off: after how long, how often, and who is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from runlist.daemon.gpu import escapes
from runlist.daemon.gpu.escapes import Escapes
from runlist.daemon.tasks.managed import Count, ManagedTask
from runlist.errors import RunlistError
from runlist.model import Share, Task, TaskClass, TaskKey, Usage
from runlist.planes.usage import Reading, Residency

# As they are to be: taken from the code they would hold whatever it says.
MOST_CONTEXTS = 256
REST = 20

KEY = TaskKey(7, "GPU-0")
REALTIME_S = 1000.0
"""What the log's clock is ahead."""


class Context:
    """Counts how often it was suspended, which takes so long."""

    def __init__(self, takes: Callable[[], None] = lambda: None) -> None:
        self.suspended = 0
        self.fails = False
        self.takes = takes

    def suspend(self) -> None:
        self.suspended += 1
        self.takes()
        if self.fails:
            raise RunlistError("no")


class World:
    """One task that was suspended, and readings every half second."""

    def __init__(self) -> None:
        self.context: Any = Context()
        self.task = ManagedTask(Task(KEY, TaskClass.BATCH, "x", 0, 0.0), {1: self.context}, Share(enabled=False))
        self.task.counts[Count.SUSPENSIONS] = 1
        self.tasks = {KEY: self.task}
        self.escapes = Escapes(self.tasks, self._later)
        self.now = 100.0
        self.planned: list[tuple[float, Callable[[], None]]] = []

    def _later(self, after_s: float, call: Callable[[], None]) -> Any:
        self.planned.append((self.now + after_s, call))
        return SimpleNamespace(cancel=self.planned.clear)

    def go_on(self) -> None:
        """What is due is done."""
        due = [call for at, call in self.planned if at <= self.now]
        self.planned = [(at, call) for at, call in self.planned if at > self.now]
        for call in due:
            call()

    def read(self, *turns: float, after_s: float = 0.5, context: int = 0) -> int:
        """A reading; the task was switched in so long before its end, each time. How often it was suspended at that."""
        held = {KEY.pid: Usage(0.002 * len(turns), turns=len(turns))} if turns else {}
        began = {(KEY.pid, context): REALTIME_S + self.now + after_s - min(turns)} if turns else {}
        return self._look(Reading(0.0, {**held, 8: Usage(0.1, 1)}, [Residency(8, 0, 0, 1)], began), after_s)

    def read_without_a_switch(self) -> int:
        """It has the GPU all along."""
        return self._look(Reading(0.0, {KEY.pid: Usage(0.5)}, [Residency(KEY.pid, 0, 0, 1)]), 0.5)

    def _look(self, reading: Reading, after_s: float) -> int:
        before, since = self.context.suspended, self.now
        self.now += after_s
        reading.until = REALTIME_S + self.now
        self.escapes.look(reading, since, self.now)
        assert self.context.suspended == before  # a request waits for what is decided
        self.go_on()
        return int(self.context.suspended - before)

    @property
    def count(self) -> int:
        return self.task.counts[Count.SUSPENDED_AGAIN]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(escapes, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


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
    found = [number for number in range(600) if world.read_without_a_switch()]
    assert found == [0, 2, 6, 14, 30, 62, 126, 254, 382, 510]  # at last every 64 s
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
    world.escapes.forget(KEY)
    world.read()
    world.tasks[KEY] = world.task
    assert world.read(0.2) == 0


def test_of_many_some_are_suspended_at_once_and_the_others_after_a_rest(world: World) -> None:
    def takes() -> None:
        world.now += 0.002

    contexts: list[Any] = [Context(takes) for _ in range(7)]
    world.tasks.clear()
    for pid, context in enumerate(contexts, 20):
        key = TaskKey(pid, "GPU-0")
        world.tasks[key] = ManagedTask(Task(key, TaskClass.BATCH, "x", 0, 0.0), {pid: context}, Share(enabled=False))
    world.escapes.note(world.now)
    world.now += 0.5
    usage = {key.pid: Usage(0.1, 1) for key in world.tasks}
    began = {(key.pid, 0): REALTIME_S + world.now - 0.1 for key in world.tasks}
    reading = Reading(REALTIME_S + world.now, usage, [Residency(20, 0, 0, 1)], began)
    world.escapes.look(reading, world.now - 0.5, world.now)
    done = []
    while world.planned:
        at, _ = world.planned[0]
        assert not done or at == pytest.approx(world.now + REST * 0.006)
        world.now = max(world.now, at)
        world.go_on()
        done.append([context.suspended for context in contexts])
    assert done == [[1] * 3 + [0] * 4, [1] * 6 + [0], [1] * 7]


def test_who_came_on_meanwhile_is_let_be(world: World) -> None:
    world.escapes.note(world.now)
    world.escapes._rests_until = world.now + 1
    assert world.read(0.1) == 0
    world.task.share = replace(world.task.share, enabled=True)
    world.now += 2
    world.go_on()
    assert (world.context.suspended, world.planned) == (0, [])


def test_one_that_stayed_without_a_switch_is_seen_at_once_when_it_is_switched_in(world: World) -> None:
    """Else it would know when nobody looks."""
    world.read()
    for _ in range(5):
        while not world.read_without_a_switch():
            pass
    assert world.read(0.2) == 1
    assert world.count == 1


def test_one_that_enables_itself_as_soon_as_it_is_suspended_and_has_the_gpu_alone(world: World) -> None:
    """So soon that clocks may not tell it from what it did before, and then it is switched no more."""
    world.read()
    assert world.read(0.2) == 1
    for _ in range(20):
        assert world.read(0.497) == 0
        assert world.read_without_a_switch() == 1
    assert world.count == 21


def test_one_that_works_in_each_of_its_pauses_is_said_once_a_minute(world: World) -> None:
    with capture_logs() as lines:
        for _ in range(240):
            world.task.share = replace(world.task.share, enabled=True)
            world.escapes.note(world.now)
            world.task.share = replace(world.task.share, enabled=False)
            world.task.counts[Count.SUSPENSIONS] += 1
            world.escapes.note(world.now)
            assert world.read(0.1) == 1
    assert len(lines) == 2


def test_a_context_that_nobody_has_found_yet_is_no_escape(world: World) -> None:
    """Its task may have made it while it was on."""
    world.read()
    assert world.read(0.2) == 1
    assert [world.read(0.2, context=1) for _ in range(3)] == [0] * 3
    world.task.task = replace(world.task.task, contexts=2)
    world.task.settles_at = world.now + 1
    assert [world.read(0.2, context=1) for _ in range(4)] == [1] * 4
    assert world.count == 1 + 2  # it was in the making


def test_a_context_that_nobody_has_found_yet_and_that_stays_on_is_none_either(world: World) -> None:
    """Another one was found a moment ago, and seen at work in the making."""
    world.task.share = replace(world.task.share, enabled=True)
    world.read(0.2)
    world.task.share = replace(world.task.share, enabled=False)
    world.read()
    assert world.read(0.2, context=1) == 0
    world.task.task = replace(world.task.task, contexts=2)
    world.task.settles_at = world.now + 1
    assert world.read(0.2, context=1) == 1
    assert world.read(0.495, context=1) == 0  # before it was suspended again
    assert world.read(0.2, context=2) == 0
    assert world.read_without_a_switch() == 0
    world.task.task = replace(world.task.task, contexts=3)
    world.task.settles_at = world.now + 1
    assert world.read_without_a_switch() == 1  # the log may not have been told yet that it is off
    assert world.count == 0


def test_who_makes_one_context_after_the_other_is_let_be_for_a_part_of_the_time(world: World) -> None:
    world.read()
    world.read(0.2)
    found = [world.read(0.2, context=number) for number in range(1, 481)]
    assert found[:20] == [0] * 20
    assert found[120:].count(0) == pytest.approx(len(found[120:]) / 6, rel=0.2)


def test_who_makes_a_context_now_and_then_is_let_be_each_time(world: World) -> None:
    world.read()
    world.read(0.2)
    for number in range(2, 20):
        world.now += 8
        assert [world.read(0.2, context=number) for _ in range(2)] == [0, 0]
        world.task.task = replace(world.task.task, contexts=number)
    assert world.count == 1


def test_a_context_of_which_the_log_has_not_told_before_may_be_the_known_one(world: World) -> None:
    world.read()
    assert world.read(0.2, context=5) == 1
    assert world.count == 1


def test_of_one_that_makes_contexts_without_end_not_all_are_remembered(world: World) -> None:
    for number in range(2 * MOST_CONTEXTS):
        world.read(0.2, context=number)
    (contexts,) = world.escapes._contexts.values()
    assert len(contexts.known) == MOST_CONTEXTS


def test_of_another_process_of_that_number_it_is_said_anew(world: World) -> None:
    world.read()
    with capture_logs() as lines:
        for _ in range(2):
            world.read(0.2)
        world.escapes.forget(KEY)
        world.read()
        world.read(0.2)
    assert len(lines) == 2
