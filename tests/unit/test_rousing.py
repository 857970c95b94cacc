"""Who is enabled once more because it waits for a GPU that does not turn to it: after how long, and how often."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runlist.daemon.gpu.accounting import Account
from runlist.daemon.tasks.managed import Count, ManagedTask
from runlist.daemon.tree import rousing
from runlist.daemon.tree.rousing import Rousing
from runlist.errors import RunlistError
from runlist.model import Share, Task, TaskClass, TaskKey, Usage
from runlist.planes.process.region.activity import Activity


class Context:
    """Counts how often it was roused, and how often enabled."""

    def __init__(self) -> None:
        self.roused = self.enabled = 0
        self.fails = False
        self.takes: Callable[[], None] = lambda: None

    def resume(self) -> None:
        self.enabled += 1
        self.takes()
        if self.fails:
            raise RunlistError("no")

    def rouse(self) -> None:
        self.roused += 1
        self.takes()
        if self.fails:
            raise RunlistError("no")


class World:
    """One task, its account, and a clock in seconds."""

    def __init__(self, told: Activity | None) -> None:
        self.context: Any = Context()
        self.told = told
        quota: Any = SimpleNamespace(activity=lambda pid: self.told)
        root: Any = SimpleNamespace(quota=quota)
        self.task = ManagedTask(Task(TaskKey(7, "GPU-0"), TaskClass.BATCH, "x", 0, 0.0), {1: self.context}, root=root)
        self.account, self.all = Account(), Account()
        self.accounts: dict[int, Account] = {}  # of processes that have one of their own
        accounting = SimpleNamespace(of=lambda pid: self.accounts.get(pid, self.account), all=self.all)
        self.ran: list[str] = []
        gpus: Any = SimpleNamespace(
            scheduler=lambda gpu: SimpleNamespace(accounting=accounting), run=lambda gpus, _: self.ran.extend(gpus)
        )
        self.tasks = [self.task]
        processes: Any = SimpleNamespace(tasks=lambda: self.tasks)
        self.seen = False
        self.rousing = Rousing(processes, gpus, lambda: self.seen)
        self.now = 100.0

    def look(self, seconds: int = 1) -> list[int]:
        """Look once a second; after how many of them it was roused."""
        return self._look(seconds, lambda: self.context.roused)

    def look_whether_enabled(self, seconds: int) -> list[int]:
        """The same for when it was enabled."""
        return self._look(seconds, lambda: self.context.enabled)

    def _look(self, seconds: int, count: Callable[[], int]) -> list[int]:
        found = []
        for second in range(seconds):
            before = count()
            self.rousing.look(self.now)
            self.now += 1
            if count() > before:
                found.append(second)
        return found

    def runs(self) -> None:
        self.account.add(Usage(0.001, 1))


def replace_key(task: ManagedTask, pid: int) -> ManagedTask:
    """Such a task of another process."""
    return ManagedTask(replace(task.task, key=TaskKey(pid, "GPU-0")), task.contexts, root=task.root)


WAITS = Activity(work=9, waiting=1)


@pytest.fixture
def world() -> World:
    return World(WAITS)


def test_one_that_waits_is_roused_ever_more_rarely(world: World) -> None:
    assert world.look(40) == [3, 7, 15, 31]
    assert world.task.counts[Count.ROUSED] == 4


def test_it_is_said_the_first_time(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.look(40)
    assert capsys.readouterr().out.count("enabled once more") == 1


def test_one_that_runs_now_and_then_is_not(world: World) -> None:
    for _ in range(20):
        assert world.look(2) == []
        world.runs()
    assert world.look(5) == [3]  # counted from its last turn


def test_one_that_waits_for_nothing_is_not(world: World) -> None:
    world.told = Activity(work=9)
    assert world.look(40) == []


def test_one_that_is_stopped_waits_for_nothing(world: World) -> None:
    """Its thread was in the middle of a wait, and cannot see that it is over."""
    stopped = subprocess.Popen(["sleep", "60"])
    world.tasks = [replace_key(world.task, stopped.pid)]
    try:
        for number, state in ((signal.SIGSTOP, "T"), (signal.SIGCONT, "S")):
            stopped.send_signal(number)
            while Path(f"/proc/{stopped.pid}/stat").read_text().rpartition(")")[2].split()[0] != state:
                time.sleep(0.001)
            assert bool(world.look(10)) is (number == signal.SIGCONT)
    finally:
        stopped.kill()
        stopped.wait()


def test_one_that_begins_to_wait_has_not_waited_long(world: World) -> None:
    for _ in range(20):
        world.told = Activity(work=9)
        world.look(3)
        world.told = WAITS
        assert world.look(1) == []
    assert world.look(3) == [1]


def test_one_that_is_off_or_carried_is_not(world: World) -> None:
    world.task.share = Share(enabled=False)
    assert world.look(10) == []
    world.task.share = Share()
    world.task.carrier = World(None).task
    assert world.look(10) == []
    world.task.carrier = None
    assert world.look(4) == [3]


def test_while_the_gpu_is_busy_with_others_it_may_take_longer(world: World) -> None:
    world.all.shares.append(0.95)
    assert world.look(9) == []
    world.all.shares.append(0.5)
    assert world.look(3) == [2]
    busy = World(WAITS)
    busy.all.shares.append(0.95)
    assert busy.look(40) == [11, 15, 23, 39]


def test_without_a_library_once_after_it_was_suspended() -> None:
    world = World(None)
    assert world.look(10) == []
    world.task.counts[Count.SUSPENSIONS] += 1
    world.runs()
    world.look(1)
    world.task.counts[Count.SUSPENSIONS] += 1
    assert world.look(40) == [2]
    world.runs()
    assert world.look(10) == []


def test_without_a_library_it_is_enabled_now_and_then_since_a_stranger_may_have_stopped_it() -> None:
    world = World(None)
    world.all.shares.append(0.95)
    assert world.look_whether_enabled(200) == [32, 92, 152]  # it has not run yet
    world.runs()
    assert world.look_whether_enabled(200) == [2, 32, 92, 152]
    assert (world.task.counts[Count.ROUSED], world.context.roused) == (0, 0)


def test_while_the_kernel_tells_who_stops_others_only_after_a_suspension() -> None:
    world = World(None)
    world.seen = True
    world.runs()
    asked: list[int] = []
    world.task.root.quota.activity = asked.append  # type: ignore[union-attr, method-assign, assignment]
    assert world.look_whether_enabled(100) == []
    assert len(asked) == 2  # once a minute
    world.runs()
    world.look(1)
    world.task.counts[Count.SUSPENSIONS] += 1
    assert world.look(100) == [2]
    assert world.context.enabled == 0
    world.seen = False
    assert len(world.look_whether_enabled(120)) == 2


@pytest.mark.parametrize("told", [None, WAITS], ids=["enabled", "roused"])
def test_of_many_some_have_their_turn_in_a_look_and_the_others_in_the_next(
    monkeypatch: pytest.MonkeyPatch, told: Activity | None
) -> None:
    """As many as there is time for: some controls take longer, and some tasks have more."""
    clock = 0.0

    def passes() -> None:
        nonlocal clock
        clock += 0.002

    monkeypatch.setattr(rousing, "time", SimpleNamespace(monotonic=lambda: clock))
    world = World(told)
    world.runs()
    world.context.takes = passes
    world.tasks = [replace_key(world.task, pid) for pid in range(7)]
    counts = []
    for _ in range(6):
        before = world.context.enabled + world.context.roused
        world.look(1)
        counts.append(world.context.enabled + world.context.roused - before)
    assert [count for count in counts if count] == [3, 3, 1]


def test_those_who_seem_to_wait_on_and_on_keep_nobody_from_being_roused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They run for a moment whenever they were roused, and are looked at as anew from then on."""
    clock = 0.0

    def liar(pid: int) -> ManagedTask:
        task = replace_key(world.task, pid)
        context: Any = Context()
        world.accounts[pid] = Account()

        def takes() -> None:
            nonlocal clock
            clock += 0.002
            world.accounts[pid].add(Usage(0.001, 1))

        context.takes = takes
        task.contexts = {1: context}
        return task

    monkeypatch.setattr(rousing, "time", SimpleNamespace(monotonic=lambda: clock))
    world.tasks = [*map(liar, range(100, 140)), world.task]
    assert world.look(30)


def test_what_may_go_off_at_once_is_let_go_of_before_and_armed_again(world: World) -> None:
    order: list[str] = []
    world.task.on_settle = lambda: order.append(f"settled, roused {world.context.roused}")
    world.look(4)
    assert order == ["settled, roused 0"]
    assert world.ran == ["GPU-0"]


def test_a_driver_that_refuses_ends_nothing(world: World) -> None:
    world.context.fails = True
    assert world.look(10) == [3, 7]
    assert world.task.counts[Count.ROUSED] == 0


def test_a_task_that_comes_again_begins_anew(world: World) -> None:
    world.look(2)
    world.task.share = Share(enabled=False)
    world.look()
    world.task.share = Share()
    assert world.look(4) == [3]
