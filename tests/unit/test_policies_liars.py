"""Who is not believed that it is busy, and who of its user comes after it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runlist.model import Activity, Task, TaskClass, TaskKey, Usage
from runlist.policies.parts.requests import Requests

# As they are to be: taken from the code they would hold whatever it says.
MOST_OFF_S, BREAK_S, MOST_LIES, FORGIVEN_S = 0.1, 0.005, 3, 60.0


class Foreground:
    """Latency tasks on a GPU, and what becomes of their requests."""

    def __init__(self) -> None:
        self.part = Requests()
        self.now = 10.0
        self.tasks: dict[TaskKey, Task] = {}

    def appears(self, pid: int, uid: int = 1000) -> TaskKey:
        key = TaskKey(pid, "GPU-0")
        self.tasks[key] = Task(key, TaskClass.LATENCY, "program", uid, 0.0, activity=Activity())
        self.part.appears(self.tasks[key], self.now)
        return key

    def goes(self, key: TaskKey) -> None:
        self.part.drop(key, self.now)
        del self.tasks[key]
        self.ask()

    def works(self, key: TaskKey) -> None:
        usage = self.tasks[key].usage
        self.tasks[key] = replace(self.tasks[key], usage=Usage(usage.held_s + 1e-3, usage.turns + 1))

    def ask(self) -> bool:
        """Whether the background is off."""
        tasks = list(self.tasks.values())
        return self.part.off_until(self.part.believed(tasks, self.now), tasks, {}, self.now)[0] is not None

    def passes(self, seconds: float) -> bool:
        self.now += seconds
        return self.ask()

    def lies(self, key: TaskKey) -> bool:
        """It is busy until after the break, and does nothing; returns whether the background was off for it."""
        self.part.begins(key, self.now)
        off = self.ask()
        assert not self.passes(MOST_OFF_S)
        self.passes(BREAK_S)
        self.part.ends(key, self.now)
        self.ask()
        self.now += BREAK_S
        return off

    def is_believed(self, key: TaskKey) -> bool:
        return not self.part.is_liar(key)


def test_who_is_found_out_and_comes_anew_is_not_believed() -> None:
    gpu = Foreground()
    key = gpu.appears(1)
    assert [gpu.lies(key) for _ in range(MOST_LIES + 1)] == [True] * MOST_LIES + [False]
    gpu.goes(key)
    assert not gpu.is_believed(gpu.appears(1))
    assert not gpu.is_believed(gpu.appears(2))
    assert gpu.is_believed(gpu.appears(3, uid=1001))


def test_lies_of_children_that_end_in_time_are_counted_together() -> None:
    gpu = Foreground()
    off = []
    for pid in range(1, 2 * MOST_LIES):
        key = gpu.appears(pid)
        off.append(gpu.lies(key))
        gpu.goes(key)
    assert off == [True] * MOST_LIES + [False] * (MOST_LIES - 1)


@pytest.mark.parametrize("after", [0.9 * MOST_OFF_S, MOST_OFF_S + BREAK_S / 2])
@pytest.mark.parametrize("works", [False, True])
def test_who_is_gone_before_the_break_is_over_lied_unless_it_worked(works: bool, after: float) -> None:
    gpu = Foreground()
    for pid in range(1, 1 + MOST_LIES):
        key = gpu.appears(pid)
        gpu.part.begins(key, gpu.now)
        assert gpu.ask()
        if works:
            gpu.works(key)
            gpu.part.ends(key, gpu.now)
        gpu.passes(min(after, MOST_OFF_S))
        gpu.passes(after - min(after, MOST_OFF_S))
        gpu.goes(key)
        gpu.now += 2 * BREAK_S
    assert gpu.is_believed(gpu.appears(9)) is works


def test_what_a_user_s_liars_left_is_forgiven_after_a_minute() -> None:
    gpu = Foreground()
    key = gpu.appears(1)
    for _ in range(MOST_LIES):
        gpu.lies(key)
    gpu.goes(key)
    gpu.now += FORGIVEN_S - 1
    assert not gpu.is_believed(gpu.appears(2))
    gpu.now += 2
    gpu.ask()
    assert gpu.is_believed(gpu.appears(3))
    gpu.ask()
    assert gpu.is_believed(TaskKey(2, "GPU-0"))


def test_one_that_was_there_before_is_believed_whatever_another_of_its_user_does() -> None:
    gpu = Foreground()
    honest, key = gpu.appears(1), gpu.appears(2)
    for _ in range(MOST_LIES):
        gpu.lies(key)
    gpu.goes(key)
    assert gpu.is_believed(honest)


def test_of_a_crowd_of_liars_nobody_is_believed() -> None:
    """Else each of those that are there beforehand would have its own three."""
    gpu = Foreground()
    crowd = [gpu.appears(pid) for pid in range(1, 8)]
    stranger = gpu.appears(9, uid=1001)
    lies = 0
    while believed := [key for key in crowd if gpu.is_believed(key)]:
        lies += gpu.lies(believed[0])
    assert lies == MOST_LIES * MOST_LIES
    assert gpu.is_believed(stranger)
    gpu.now += FORGIVEN_S
    gpu.ask()
    assert all(gpu.is_believed(key) for key in crowd)


def test_one_that_wants_the_gpu_in_its_break_is_believed_again() -> None:
    gpu = Foreground()
    key = gpu.appears(1)
    for _ in range(MOST_LIES):
        for _ in range(MOST_LIES - 1):
            assert gpu.lies(key)
        gpu.part.begins(key, gpu.now)
        gpu.ask()
        gpu.passes(MOST_OFF_S)
        gpu.works(key)
        gpu.passes(BREAK_S)
        gpu.part.ends(key, gpu.now)
        gpu.ask()
        gpu.now += BREAK_S
    assert gpu.is_believed(key)
