"""Which effect of a segment is told to a program on several GPUs, and when; and what each of its messages becomes."""

from __future__ import annotations

from typing import Any

import pytest

from runlist.daemon.requests.messages import Effect, Kind, TenantMessage
from runlist.daemon.requests.tenants import hear
from runlist.daemon.tasks.managed import ManagedTask
from runlist.model import Hint, Report, Segment, Task, TaskClass, TaskKey

IN, OUT = Effect.IN_FORCE, Effect.NOT_IN_FORCE


class Gpu:
    """A scheduler that notes what it is told."""

    def __init__(self, name: str) -> None:
        self.told: list[Any] = []
        key = TaskKey(7, name)
        self.task = ManagedTask(Task(key, TaskClass.LATENCY, "program", 1000, 0.0), {})

    def tell(self, event: Any) -> None:
        self.told.append(event)

    def worked(self, key: TaskKey) -> None:
        self.told.append(("worked", key))

    def announced(self, key: TaskKey, in_s: float) -> None:
        self.told.append(("announced", key, in_s))


class Program:
    """One with a task on each of two GPUs. `room` says whether its queue takes answers."""

    def __init__(self) -> None:
        self.gpus = [Gpu("GPU-0"), Gpu("GPU-1")]
        self.answers: list[Effect] = []
        self.room = True

    def says(self, kind: Kind, *, priority: int = 0, nanoseconds: int = 0) -> None:
        tasks: Any = {gpu: gpu.task for gpu in self.gpus}
        hear(tasks, TenantMessage(kind, priority, 1, nanoseconds), self._answer)

    def _answer(self, effect: Effect) -> bool:
        if self.room:
            self.answers.append(effect)
        return self.room

    def decided(self, *in_force: bool) -> list[Effect]:
        """What it is told of these decisions, each of one GPU."""
        self.answers.clear()
        for gpu, each in zip(self.gpus, in_force, strict=False):
            assert gpu.task.on_segment is not None
            gpu.task.on_segment(each)
        return list(self.answers)


@pytest.fixture
def program() -> Program:
    return Program()


def test_an_effect_is_told_once_it_is_known_on_all_gpus_and_again_when_it_changes(program: Program) -> None:
    program.says(Kind.SEGMENT_BEGIN, priority=3)
    assert program.decided(True) == []
    assert program.decided(True, True) == [IN]
    assert program.decided(True, True) == []
    assert program.decided(True, False) == [OUT]
    assert program.decided(False, False) == []
    assert program.decided(True, True) == [IN]


def test_one_that_is_not_in_force_on_one_gpu_is_not_in_force(program: Program) -> None:
    program.says(Kind.SEGMENT_BEGIN, priority=3)
    assert program.decided(True, False) == [OUT]


def test_what_a_full_queue_did_not_take_is_told_after_the_next_decision(program: Program) -> None:
    program.says(Kind.SEGMENT_BEGIN, priority=3)
    program.room = False
    assert program.decided(True, True) == []
    program.room = True
    assert program.decided(True, True) == [IN]


def test_of_a_segment_that_ended_or_began_anew_nothing_old_is_told(program: Program) -> None:
    program.says(Kind.SEGMENT_BEGIN, priority=3)
    old = program.gpus[0].task.on_segment
    program.decided(True, True)
    program.says(Kind.SEGMENT_BEGIN, priority=5)
    assert [gpu.task.task.segment for gpu in program.gpus] == [5, 5]
    assert program.decided(True, True) == [IN]  # it is another one
    program.says(Kind.SEGMENT_END)
    assert [(gpu.task.task.segment, gpu.task.on_segment) for gpu in program.gpus] == [(None, None)] * 2
    assert old is not None
    keys = [gpu.task.task.key for gpu in program.gpus]
    for gpu, key in zip(program.gpus, keys, strict=True):
        assert gpu.told == [Segment(key, 3), Segment(key, 5), Segment(key, None)]


def test_each_message_is_told_to_the_policy_of_each_gpu_in_seconds(program: Program) -> None:
    program.says(Kind.REPORT_LATENCY, nanoseconds=2_500_000)
    program.says(Kind.WORK)
    program.says(Kind.ANNOUNCE, nanoseconds=3_000_000)
    program.says(Kind.HINT, nanoseconds=4_000_000)
    program.says(Kind.JOIN, nanoseconds=5)
    for gpu in program.gpus:
        key = gpu.task.task.key
        assert gpu.told == [Report(key, 0.0025), ("worked", key), ("announced", key, 0.003), Hint(key, 0.004)]
        assert [latency_s for _, latency_s in gpu.task.tail._reports] == [0.0025]
        assert gpu.task.on_segment is None
    assert program.answers == []
