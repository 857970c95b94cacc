"""What workloads used: no end of a task is missed, nothing is counted twice, and the oldest that ended become one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from runlist.daemon.gpu import ledger as module
from runlist.daemon.gpu.ledger import ENDED, Ledger
from runlist.daemon.tasks.managed import Count, ManagedTask, Root
from runlist.model import NO_USAGE, Task, TaskClass, TaskKey, Usage
from tests.fixtures.scheduler import World

# As they are to be: taken from the code they would hold whatever it says.
MOST_ENDED = 1000
SETTLED_S = 2.0

GPU = "GPU-4e3db026-c5f4-6c0f-e70a-eeef00a48fe0"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


@pytest.fixture
def ledger(clock: Clock) -> Ledger:
    return Ledger(GPU)


def task(pid: int, uid: int = 1000, container: str = "", root: Any = None, **labels: str) -> ManagedTask:
    owner = (1000 if uid >= 100_000 else uid, "")
    made = Task(TaskKey(pid, GPU), TaskClass.NORMAL, command="x", uid=uid, since=0.0, owned_by=owner)
    return ManagedTask(made, container=container, labels=labels, root=root)


def held(ledger: Ledger, pid: int, seconds: float, idle: float = 0.0) -> None:
    ledger.used({pid: Usage(seconds, 1, idle)})


def by_pod(ledger: Ledger, name: str = "held_s") -> dict[str, float]:
    """A count of each workload, by its pod, else its container, else its user; "folded" for what is not told apart."""
    told = {}
    for who, counts in ledger.workloads():
        key = "folded" if who is None else dict(who.labels).get("pod") or who.container or str(who.uid)
        told[key] = round(counts.get(name, 0), 9)
    return told


def test_what_a_task_used_stays_when_it_has_ended(ledger: Ledger, clock: Clock) -> None:
    for pid in (1, 2):
        ledger.begin(task(pid, pod="web"), NO_USAGE)
        held(ledger, pid, 0.2)
        ledger.end(TaskKey(pid, GPU))
        clock.now += 0.3
    held(ledger, 2, 0.01)  # a record of its last moment, read after its end
    clock.now += SETTLED_S
    assert by_pod(ledger) == {"web": 0.41}
    assert by_pod(ledger, "turns") == {"web": 3}
    assert by_pod(ledger, ENDED) == {"web": 2}
    held(ledger, 2, 5.0)  # of another process with that id
    assert by_pod(ledger) == {"web": 0.41}


def test_looking_changes_nothing_and_nothing_counts_twice(ledger: Ledger, clock: Clock) -> None:
    ledger.begin(task(1, pod="web"), NO_USAGE)
    clock.now += SETTLED_S
    for total in (0.5, 1.0, 1.5):
        held(ledger, 1, 0.5)
        assert by_pod(ledger) == by_pod(ledger) == {"web": total}
    ledger.end(TaskKey(1, GPU))
    ledger.end(TaskKey(1, GPU))
    clock.now += SETTLED_S
    assert by_pod(ledger) == {"web": 1.5}
    assert by_pod(ledger, ENDED) == {"web": 1}


def test_a_new_task_is_charged_with_what_it_used_before_it_was_found(ledger: Ledger, clock: Clock) -> None:
    ledger.begin(task(1, pod="web"), Usage(0.01, 1))
    held(ledger, 1, 0.2)
    clock.now += SETTLED_S
    assert by_pod(ledger) == {"web": 0.21}


def test_who_a_task_is_may_be_told_after_it_came(ledger: Ledger, clock: Clock) -> None:
    late = task(1, container="c0ffee")
    ledger.begin(late, NO_USAGE)
    held(ledger, 1, 0.5)
    assert by_pod(ledger) == {}
    late.labels = {"pod": "web"}
    clock.now += SETTLED_S
    assert by_pod(ledger) == {"web": 0.5}


def test_a_short_first_process_of_a_container_is_its_pods(ledger: Ledger, clock: Clock) -> None:
    ledger.begin(task(1, container="c0ffee"), NO_USAGE)
    held(ledger, 1, 0.2)
    ledger.end(TaskKey(1, GPU))
    ledger.begin(task(2, container="c0ffee", pod="web"), NO_USAGE)
    ledger.end(TaskKey(2, GPU))
    clock.now += SETTLED_S
    assert by_pod(ledger) == {"web": 0.2}


def test_the_labels_of_a_container_that_was_long_not_seen_are_forgotten_first(
    ledger: Ledger, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_NAMED", 2)
    for pid, pod in enumerate(["old", "seen again", "new", "seen again"], 1):
        ledger.begin(task(pid, container=f"of {pod}", pod=pod), NO_USAGE)
        ledger.end(TaskKey(pid, GPU))
    ledger.begin(task(5, container="of newest", pod="newest"), NO_USAGE)
    ledger.end(TaskKey(5, GPU))
    for pid, pod in enumerate(["old", "seen again", "new", "newest"], 10):
        ledger.begin(task(pid, container=f"of {pod}"), NO_USAGE)
        held(ledger, pid, 1.0)
        ledger.end(TaskKey(pid, GPU))
    clock.now += SETTLED_S
    assert {who for who, seconds in by_pod(ledger).items() if seconds} == {"of old", "seen again", "of new", "newest"}


def test_what_was_charged_to_somebody_stays_there(ledger: Ledger, clock: Clock) -> None:
    """A counter never goes down, also where a task becomes another's."""
    moved = task(1, container="c0ffee")
    ledger.begin(moved, NO_USAGE)
    held(ledger, 1, 1.0)
    clock.now += SETTLED_S
    assert by_pod(ledger) == {"c0ffee": 1.0}
    moved.labels = {"pod": "web"}
    held(ledger, 1, 0.25)
    assert by_pod(ledger) == {"c0ffee": 1.0, "web": 0.25}


def test_a_task_that_comes_back_counts_on(ledger: Ledger, clock: Clock) -> None:
    managed = task(1, pod="web")
    managed.counts[Count.SUSPENSIONS] = 3
    ledger.begin(managed, NO_USAGE)
    held(ledger, 1, 1.0)
    ledger.end(TaskKey(1, GPU))
    managed.counts.clear()
    held(ledger, 1, 0.1)
    ledger.begin(managed, Usage(0.1))  # that is charged already
    held(ledger, 1, 1.0)
    managed.counts[Count.SUSPENSIONS] = 1
    clock.now += SETTLED_S
    assert by_pod(ledger) == {"web": 2.1}
    assert by_pod(ledger, Count.SUSPENSIONS) == {"web": 4}


def test_work_never_shrinks_though_idle_time_is_known_late(ledger: Ledger, clock: Clock) -> None:
    ledger.begin(task(1, pod="web"), NO_USAGE)
    clock.now += SETTLED_S
    held(ledger, 1, 1.0)
    assert by_pod(ledger, "worked_s") == {"web": 1.0}
    held(ledger, 1, 0.5, idle=1.2)
    assert by_pod(ledger, "worked_s") == {"web": 1.0}
    assert by_pod(ledger, "idle_s") == {"web": 1.2}


def test_users_and_containers_are_told_apart_where_no_rule_says_who(ledger: Ledger, clock: Clock) -> None:
    for pid, (uid, container) in enumerate([(1, ""), (2, ""), (1, "a"), (1, "b"), (1, "")], 1):
        ledger.begin(task(pid, uid, container), NO_USAGE)
        held(ledger, pid, pid)
    clock.now += SETTLED_S
    assert by_pod(ledger) == {"1": 6, "2": 2, "a": 3, "b": 4}


def test_the_oldest_that_ended_become_one_and_the_sum_stays(ledger: Ledger, clock: Clock) -> None:
    ledger.begin(task(1_000_000, pod="lives"), NO_USAGE)
    count = MOST_ENDED + 50
    for pid in range(1, count + 1):
        ledger.begin(task(pid, pod=f"pod-{pid}"), NO_USAGE)
        held(ledger, pid, 1.0)
        held(ledger, 1_000_000, 1.0)
        ledger.end(TaskKey(pid, GPU))
        clock.now += SETTLED_S
    told = by_pod(ledger)
    assert len(told) == MOST_ENDED + 2
    assert told["lives"] == count
    assert told["folded"] == 50
    assert "pod-50" not in told
    assert "pod-51" in told
    assert sum(told.values()) == 2 * count
    assert by_pod(ledger, ENDED)["folded"] == 50


def test_the_oldest_are_those_that_ended_first(ledger: Ledger, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ENDED", 2)
    for pid in (1, 2, 3, 4):
        ledger.begin(task(pid, pod=f"pod-{pid}"), NO_USAGE)
        held(ledger, pid, 1.0)
        clock.now += SETTLED_S
        by_pod(ledger)
    for pid in (4, 3, 1, 2):
        ledger.end(TaskKey(pid, GPU))
        clock.now += SETTLED_S
        by_pod(ledger)
    assert by_pod(ledger) == {"pod-1": 1.0, "pod-2": 1.0, "folded": 2.0}


@pytest.mark.parametrize("by", ["user", "number", "container", "pod", "labelled"])
def test_whoever_makes_many_loses_nobody_elses(ledger: Ledger, clock: Clock, by: str) -> None:
    """Root in a container is any user that it likes, and a namespace may have any number of pods. A user may have many
    numbers, and containers below a cgroup of their own.
    """

    def short(pid: int, made: ManagedTask) -> None:
        ledger.begin(made, NO_USAGE)
        held(ledger, pid, 1.0)
        ledger.end(TaskKey(pid, GPU))
        clock.now += SETTLED_S

    for pid in range(1, 6):
        short(pid, task(pid, namespace=f"shop-{pid}", pod=f"victim-{pid}"))
    for pid in range(6, MOST_ENDED + 50):
        match by:
            case "user":
                short(pid, task(pid, uid=pid, container="c"))
            case "number":
                short(pid, task(pid, uid=100_000 + pid))
            case "container":
                short(pid, task(pid, uid=1000, container=f"1000:{pid:064x}"))
            case "pod":
                short(pid, task(pid, namespace="mean", pod=f"pod-{pid}"))
            case _:
                short(pid, task(pid, uid=pid, namespace="mean", pod="pod"))
    told = by_pod(ledger)
    assert {f"victim-{pid}" for pid in range(1, 6)} <= told.keys()
    assert told["folded"] == 49


class Refusing:
    """A tree's quota that has refused so much."""

    def __init__(self) -> None:
        self.count = 0

    def refused(self, gpu: str) -> int:
        assert gpu == GPU
        return self.count


def test_refusals_of_a_tree_count_once_whatever_the_number_of_its_tasks(ledger: Ledger, clock: Clock) -> None:
    quota = Refusing()
    root: Any = Root(1, -1, 1000, {}, quota=quota)  # type: ignore[arg-type]
    for pid in (1, 2):
        ledger.begin(task(pid, root=root, pod="web"), NO_USAGE)
    clock.now += SETTLED_S
    quota.count = 3
    assert by_pod(ledger, Count.MEMORY_REFUSALS) == {"web": 3}
    ledger.end(TaskKey(1, GPU))
    quota.count = 4
    ledger.end(TaskKey(2, GPU))
    quota.count = 5
    ledger.tree_ended(quota)  # type: ignore[arg-type]
    clock.now += SETTLED_S
    assert by_pod(ledger, Count.MEMORY_REFUSALS) == {"web": 5}


def test_refusals_of_a_tree_that_ended_at_once_are_not_lost(ledger: Ledger, clock: Clock) -> None:
    quota = Refusing()
    root: Any = Root(1, -1, 1000, {}, quota=quota)  # type: ignore[arg-type]
    ledger.begin(task(1, root=root, pod="web"), NO_USAGE)
    quota.count = 2
    ledger.end(TaskKey(1, GPU))
    ledger.tree_ended(quota)  # type: ignore[arg-type]
    clock.now += SETTLED_S
    assert by_pod(ledger, Count.MEMORY_REFUSALS) == {"web": 2}


# -- in the scheduler ------------------------------------------------------------------------------


def test_a_scheduler_charges_all_that_its_tasks_used(world: World) -> None:
    """Also what was logged before a process was found, and what is read when it is gone."""
    world.source.hold(1, 0.05, turns=1)
    world.do(world.scheduler.loop.read_usage)
    world.source.hold(1, 0.01)
    managed = world.add(1)
    world.source.hold(1, 0.2)
    world.pass_time(0.2)
    world.do(lambda: world.scheduler.remove(managed.task.key))
    world.source.hold(1, 0.002)
    world.pass_time(SETTLED_S / 2)
    world.do(world.scheduler.loop.read_usage)
    world.pass_time(SETTLED_S)
    (workload,) = world.scheduler.ledger.workloads()
    assert workload.counts["held_s"] == pytest.approx(0.262)


def test_a_process_that_was_there_for_long_is_charged_from_when_it_is_managed(world: World) -> None:
    """Else its workload's counter would leap by hours."""
    for _ in range(6):
        world.source.hold(1, 1.0)
        world.pass_time(1.0)
        world.do(world.scheduler.loop.read_usage)
    world.add(1)
    world.source.hold(1, 0.5)
    world.pass_time(SETTLED_S)
    world.do(world.scheduler.loop.read_usage)
    (workload,) = world.scheduler.ledger.workloads()
    assert workload.counts["held_s"] == pytest.approx(0.5)


def test_the_end_of_a_task_counts_from_when_it_came_first(ledger: Ledger, clock: Clock) -> None:
    ledger.end(TaskKey(99, GPU))  # nobody knows it
    one = task(1)
    ledger.begin(one, NO_USAGE)
    held(ledger, 1, 0.5)
    ledger.end(one.task.key)
    clock.now += 1.9
    ledger.end(one.task.key)
    held(ledger, 1, 0.25)  # read late
    clock.now += 0.1
    assert by_pod(ledger) == {"1000": 0.75}
    held(ledger, 1, 8.0)  # of another one, which nobody manages
    assert by_pod(ledger) == {"1000": 0.75}
    assert by_pod(ledger, ENDED) == {"1000": 1}


def test_a_task_is_shown_two_seconds_after_it_came(ledger: Ledger, clock: Clock) -> None:
    ledger.begin(task(1), NO_USAGE)
    held(ledger, 1, 0.5)
    clock.now += 1.9
    assert by_pod(ledger) == {}
    clock.now += 0.1
    assert by_pod(ledger) == {"1000": 0.5}
