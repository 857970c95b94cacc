"""The schedulers of all GPUs, under one policy: what is changed for all of them, or for none."""

from __future__ import annotations

import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from runlist.daemon import helper
from runlist.daemon.gpu.gpus import Gpus
from runlist.daemon.tasks.managed import Count
from runlist.errors import RunlistError, UsageError
from runlist.model import TaskKey
from runlist.policies import PolicySpec
from tests.fixtures.usage import FakeSource

pytestmark = pytest.mark.timeout(method="thread")  # a watchdog takes SIGALRM for itself


class Scheduler:
    """Of one GPU with one task."""

    def __init__(self, gpu: str, pid: int) -> None:
        self.gpu = gpu
        self.key = TaskKey(pid, gpu)
        self.tasks = {self.key: SimpleNamespace(task=f"task {pid}")}
        self.refuses = ""
        self.did: list[Any] = []
        self.fails: list[dict[TaskKey, RunlistError]] = []
        self.ended: Counter[Count] = Counter()
        self.accounting = SimpleNamespace(in_use=False)
        self.ledger = SimpleNamespace(tree_ended=lambda quota: self.did.append(("tree ended", quota)))
        self.loop = SimpleNamespace(
            use=lambda spec, policy: self.did.append((spec.name, type(policy).__name__)),
            read_usage=lambda kept_s: self.did.append(("read", kept_s)),
        )

    def refusal(self, task: str, policy: Any) -> str:
        self.did.append(("asked", task, type(policy).__name__))
        return self.refuses

    def run(self, kept_s: float = 0.0) -> dict[TaskKey, RunlistError]:
        self.did.append(("run", kept_s))
        return self.fails.pop(0) if self.fails else {}

    def remove(self, key: TaskKey) -> None:
        self.did.append(("removed", key))

    def close(self) -> None:
        self.did.append("closed")

    def done(self) -> list[Any]:
        done, self.did = self.did, []
        return done


class World:
    def __init__(self) -> None:
        self.released: list[tuple[int, str]] = []
        plane: Any = SimpleNamespace()
        self.gpus = Gpus(plane, PolicySpec(), lambda pid, error: self.released.append((pid, str(error))))
        self.one, self.two = Scheduler("GPU-1", 11), Scheduler("GPU-2", 22)
        schedulers: Any = {each.gpu: each for each in (self.one, self.two)}
        self.gpus._schedulers.update(schedulers)


@pytest.fixture
def world() -> Iterator[World]:
    before = signal.getsignal(signal.SIGALRM)
    yield World()
    signal.signal(signal.SIGALRM, before)


def test_a_source_of_usage_is_opened_again_elsewhere(world: World) -> None:
    opened = threading.Event()

    def open_source() -> FakeSource:
        assert opened.wait(60)
        return FakeSource()

    plane: Any = world.gpus._plane
    plane.usage_sources = lambda gpu: [(gpu, open_source)]
    answer = world.gpus._open_again("GPU-1")
    assert not answer.done()
    opened.set()
    assert answer.result(60).source.name == "fake"
    plane.usage_sources = lambda gpu: []
    assert world.gpus._open_again("GPU-1").result(60).source.name == "book"


def test_all_gpus_are_switched_to_a_policy_and_run(world: World) -> None:
    spec = PolicySpec("fair")
    world.gpus.use(spec)
    assert world.gpus.spec == spec
    for each, pid in ((world.one, 11), (world.two, 22)):
        assert each.done() == [("asked", f"task {pid}", "SloLayer"), ("fair", "SloLayer"), ("run", 0.0)]
    assert world.gpus.all() == [world.one, world.two]


def test_a_policy_that_refuses_one_task_is_taken_on_no_gpu(world: World) -> None:
    world.two.refuses = "no room for task 22"
    before = world.gpus.spec
    with pytest.raises(RunlistError, match=r"no room for task 22 \(nothing changed\)"):
        world.gpus.use(PolicySpec("fair"))
    assert world.gpus.spec == before
    assert [what[0] for each in (world.one, world.two) for what in each.done()] == ["asked", "asked"]


def test_a_policy_that_is_none_is_refused_before_anybody_is_asked_even_where_no_gpu_has_a_task(world: World) -> None:
    for _ in range(2):
        with pytest.raises(UsageError, match="nonsense"):
            world.gpus.use(PolicySpec("nonsense"))
        assert world.one.done() == world.two.done() == []
        world.gpus._schedulers.clear()


def test_whose_control_failed_is_released_unless_somebody_asked_for_it(world: World) -> None:
    error = RunlistError("gone")
    world.one.fails = [{world.one.key: error}]
    world.gpus.run(["GPU-1"], set())
    assert world.released == [(11, "gone")]
    # the others get its share; what was unsafe beside it may be safe now
    assert world.one.done() == [("run", 0.02), ("removed", world.one.key), ("run", 0.0)]
    assert world.two.done() == [("run", 0.0)]
    world.one.fails = [{world.one.key: error}]
    with pytest.raises(RunlistError, match="gone"):
        world.gpus.run(["GPU-1"], {world.one.key})
    assert world.released == [(11, "gone")]
    assert world.one.done() == [("run", 0.02)]


def test_usage_is_read_and_timers_stopped_on_all_gpus(world: World) -> None:
    assert world.gpus.read_usage(0.0) is False
    world.two.accounting.in_use = True
    assert world.gpus.read_usage(0.5) is True
    world.gpus.close()
    for each in (world.one, world.two):
        assert each.done() == [("read", 0.0), ("read", 0.5), "closed"]


def test_gpus_that_are_listed_come_before_others_that_have_tasks(world: World) -> None:
    assert world.gpus.with_listed(["GPU-3", "GPU-2"]) == ["GPU-3", "GPU-2", "GPU-1"]


def test_a_task_is_forgotten_on_its_gpu(world: World) -> None:
    for gpu in ("GPU-1", "GPU-3"):
        task: Any = SimpleNamespace(task=SimpleNamespace(key=TaskKey(5, gpu)))
        world.gpus.remove(task)
    assert (world.one.done(), world.two.done()) == ([("removed", TaskKey(5, "GPU-1"))], [])


def test_what_a_tree_was_refused_is_kept_for_each_gpu(world: World) -> None:
    quota = SimpleNamespace(refused={"GPU-1": 3, "GPU-2": 4}.get)
    root: Any = SimpleNamespace(quota=quota)
    for _ in range(2):
        world.gpus.tree_ended(root)
    assert [each.ended[Count.MEMORY_REFUSALS] for each in (world.one, world.two)] == [6, 8]
    assert world.one.done() == [("tree ended", quota)] * 2


def test_without_an_actuator_it_has_no_process(world: World) -> None:
    assert world.gpus.actuator_pid == 0
    actuator: Any = SimpleNamespace(pid=99)
    assert Gpus(SimpleNamespace(), PolicySpec(), lambda *_: None, actuator).actuator_pid == 99  # type: ignore[arg-type]


# -- helpers ---------------------------------------------------------------------------------------


def test_a_helper_that_cannot_be_started_leaves_no_socket_open() -> None:
    ours, theirs = socket.socketpair()
    with pytest.raises(FileNotFoundError):
        helper.start_program(["/nonexistent/program"], "nvidia", ours, theirs)
    assert (ours.fileno(), theirs.fileno()) == (-1, -1)


def test_a_helper_hears_us_on_its_standard_input_and_is_told_the_device() -> None:
    ours, theirs = socket.socketpair()
    script = 'read line; printf "%s %s %s" "$line" "$RUNLIST_DEVICE" "$PWD" >&0'
    with ours, helper.start_program(["sh", "-c", script], "emulated", ours, theirs) as process:
        assert theirs.fileno() == -1
        ours.settimeout(60)
        ours.sendall(b"hello\n")
        assert ours.recv(100) == b"hello emulated /"
        assert process.wait(60) == 0
