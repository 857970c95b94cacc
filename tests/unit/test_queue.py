"""Who finds room on GPUs within the limits, in which order those come who wait, and that nobody has it all."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runlist.daemon.placement.book import RuleBook
from runlist.daemon.placement.queue import Command, Queue
from runlist.daemon.placement.rules import Over, Rules
from runlist.errors import UsageError
from runlist.model import Deadline, Task, TaskClass, TaskKey
from runlist.proc.owners import Owner

GPU, OTHER = "GPU-1", "GPU-2"
ROOT, ALICE, BOB, POD = Owner(0), Owner(1000), Owner(1001), Owner(0, "c0ffee")


class Machine:
    """Two GPUs: the tasks of each, and what processes hold of its memory."""

    def __init__(self) -> None:
        self.tasks: dict[str, dict[int, Any]] = {GPU: {}, OTHER: {}}
        self.memory: dict[str, dict[int, int]] = {GPU: {}, OTHER: {}}
        self._numbers = itertools.count()

    def add(self, owner: Owner, count: int = 1, *, queued: bool = False, gpu: str = GPU) -> list[Any]:
        """Tasks of an owner, each a second after the one before."""
        added = []
        for number in itertools.islice(self._numbers, count):
            key = SimpleNamespace(pid=number)
            task = SimpleNamespace(key=key, owner=(owner.uid, owner.container), since=float(number))
            added.append(SimpleNamespace(queued=queued, task=task))
            self.tasks[gpu][number] = added[-1]
        return added

    def scheduler(self, gpu: str) -> Any:
        return SimpleNamespace(tasks=self.tasks[gpu])

    def by_pid(self, gpu: str) -> dict[int, int]:
        return self.memory[gpu]


def commands(*owners: Owner) -> dict[int, Command]:
    """Of launchers 7, 8 and so on."""
    return {7 + index: Command(owner, owner.uid) for index, owner in enumerate(owners)}


Make = Callable[[str], Queue]


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def make(tmp_path: Path, machine: Machine) -> Make:
    def make(text: str) -> Queue:
        path = tmp_path / "rules.toml"
        path.write_text(text)
        gpus: Any = machine
        return Queue(RuleBook(Rules.load(path)), gpus, gpus)

    return make


def test_without_limits_there_is_always_room(make: Make, machine: Machine) -> None:
    machine.add(ALICE, 100)
    machine.memory[GPU] = {1: 1 << 50}
    for queue in (make(""), make('[[rule]]\nset.class = "batch"\n')):
        assert queue.over_limit(GPU, ALICE, [ALICE] * 1000) is None
        assert queue.over_limit("GPU-3", ALICE) is None  # nothing is opened to find that out
        assert queue.no_room("GPU-3", ALICE) is None
        queue.commands = commands(ALICE, BOB)
        assert queue.next_command(["GPU-3"], ()) == 7


def test_a_limit_of_tasks_is_for_each_gpu(make: Make, machine: Machine) -> None:
    queue = make("[limits]\ntasks = 2\n")
    assert queue.over_limit(GPU, ALICE) is None
    machine.add(ALICE, 2)
    assert queue.over_limit(GPU, BOB) == "GPU GPU-1 has 2 tasks, and rules.toml:1 allows 2"
    assert queue.over_limit(OTHER, BOB) is None


def test_those_that_wait_take_no_room_and_those_that_start_do(make: Make, machine: Machine) -> None:
    queue = make("[limits]\ntasks = 2\n")
    machine.add(ALICE)
    machine.add(ALICE, 2, queued=True)
    assert queue.over_limit(GPU, ALICE) is None
    assert queue.over_limit(GPU, ALICE, [ALICE]) is not None


def test_nobody_goes_before_those_who_wait(make: Make, machine: Machine) -> None:
    queue = make("[limits]\ntasks = 2\n")
    assert queue.no_room(GPU, ALICE) is None
    assert queue.no_room(GPU, ALICE, [ALICE, BOB]) == "GPU GPU-1 has 2 tasks, and rules.toml:1 allows 2"
    machine.add(BOB)
    machine.add(ALICE, queued=True)
    assert queue.over_limit(GPU, ALICE) is None  # the one that waits may come in
    assert queue.no_room(GPU, ALICE) == queue.no_room(GPU, BOB) == "others wait for room on GPU GPU-1"
    assert queue.no_room(OTHER, ALICE) is None


def test_a_limit_of_memory_counts_what_everybody_holds(make: Make, machine: Machine) -> None:
    queue = make('[limits]\nmemory = "1 GiB"\nover = "refuse"\n')
    machine.memory[GPU] = {1: 512 << 20, 2: 512 << 20}
    assert queue.over_limit(GPU, ALICE) is None
    machine.memory[GPU][3] = 1
    assert queue.over_limit(GPU, ALICE) == "1024 MiB are used on GPU GPU-1, and rules.toml:1 allows 1024 MiB"
    assert queue.over_limit(OTHER, ALICE) is None


def test_a_limit_of_each_user_is_for_all_but_root(make: Make, machine: Machine) -> None:
    queue = make("[limits]\nuser_tasks = 2\n")
    for owner in (ALICE, POD, ROOT):
        machine.add(owner, 2)
    said = "has 2 tasks on GPU GPU-1, and rules.toml:1 allows a user 2"
    assert queue.over_limit(GPU, ALICE) == f"user 1000 {said}"
    assert queue.over_limit(GPU, POD) == f"user 0 in container c0ffee {said}"
    assert queue.over_limit(GPU, BOB, [ALICE]) is None
    assert queue.over_limit(GPU, BOB, [BOB, BOB]) is not None
    assert queue.over_limit(GPU, ROOT) is queue.over_limit(OTHER, ALICE) is None


def test_who_waits_for_its_own_tasks_keeps_nobody_waiting(make: Make, machine: Machine) -> None:
    queue = make("[limits]\ntasks = 4\nuser_tasks = 1\n")
    machine.add(ALICE)
    (hers,) = machine.add(ALICE, queued=True)
    assert queue.no_room(GPU, BOB) is None
    queue.commands = commands(ALICE, BOB)
    assert queue.next_command([GPU], ()) == 8
    assert queue.next_task(GPU, ()) is None
    machine.tasks[GPU].pop(0)
    assert queue.next_task(GPU, ()) is hers


def test_who_has_least_is_next(make: Make, machine: Machine) -> None:
    """Whoever has most of the tasks, and many that wait, keeps nobody from what becomes free next."""
    queue = make("[limits]\ntasks = 4\n")
    running = machine.add(ALICE, 3)
    machine.add(BOB)
    machine.add(ALICE, 5, queued=True)
    bobs = machine.add(BOB, 2, queued=True)
    assert queue.next_task(GPU, ()) is None
    running[0].queued = True
    assert queue.next_task(GPU, ()) is bobs[0]
    bobs[0].queued = False
    running[1].queued = True
    assert queue.next_task(GPU, ()) is running[0]  # of hers the one that waits longest


def test_a_command_of_who_has_less_goes_before_the_tasks_that_wait(make: Make, machine: Machine) -> None:
    queue = make("[limits]\ntasks = 3\n")
    machine.add(ALICE, 2)
    machine.add(ALICE, 5, queued=True)
    queue.commands = commands(ALICE, ALICE, BOB)
    assert queue.next_task(GPU, ()) is None
    assert queue.no_room(GPU, BOB) is None
    assert queue.next_command([GPU], ()) == 9
    # while that is starting there is no room for another one, and what it takes is no others'
    assert queue.next_command([GPU], [BOB]) is None
    del queue.commands[9]
    assert queue.next_command([GPU], ()) is None  # hers that wait have no more than she has
    assert queue.next_task(GPU, ()) is machine.tasks[GPU][2]


def test_what_is_starting_counts_for_whoever_starts_it(make: Make, machine: Machine) -> None:
    queue = make("[limits]\ntasks = 3\n")
    queue.commands = commands(ALICE, BOB)
    assert queue.next_command([GPU], ()) == 7
    assert queue.next_command([GPU], [ALICE]) == 8
    assert queue.next_command([GPU, OTHER], [ALICE, BOB, BOB]) is None


def test_what_a_user_starts_takes_no_more_room_than_a_user_may_have(make: Make, machine: Machine) -> None:
    """One who had many sleeping processes attached kept the commands of all others waiting for ever."""
    queue = make("[limits]\ntasks = 4\nuser_tasks = 2\n")
    queue.commands = commands(BOB)
    machine.add(ALICE)
    assert queue.next_command([GPU], [ALICE] * 60) == 7
    assert queue.over_limit(GPU, BOB, [ALICE] * 60) is None
    assert queue.over_limit(GPU, ALICE, [ALICE] * 60) is not None
    assert queue.over_limit(GPU, BOB, [ROOT] * 4) is not None


def test_those_that_wait_do_not_wait_for_memory_that_only_they_hold(make: Make, machine: Machine) -> None:
    """One that waited, and allocated, kept itself and all others off a GPU on which nobody was any more."""
    queue = make('[limits]\nmemory = "1 GiB"\n')
    machine.add(BOB)
    first, _ = machine.add(ALICE, 2, queued=True)
    machine.memory[GPU] = {0: 1 << 20, 1: 1 << 30, 2: 1 << 20}
    assert queue.next_task(GPU, ()) is None
    del machine.tasks[GPU][0]
    machine.memory[GPU][0] = 2 << 30  # a process that is not managed has it
    assert queue.next_task(GPU, ()) is None
    machine.memory[GPU][0] = 1 << 20
    assert queue.next_task(GPU, ()) is first
    first.queued = False
    assert queue.next_task(GPU, ()) is None
    assert queue.over_limit(GPU, BOB) is not None


def reserving(pid: int, owner: Owner, percent: int, gpu: str = GPU) -> Task:
    deadline = Deadline(100 * percent, 10_000)
    who = (owner.uid, owner.container)
    return Task(TaskKey(pid, gpu), TaskClass.DEADLINE, "x", owner.uid, 0.0, deadline=deadline, owned_by=who)


@pytest.mark.parametrize(("text", "most"), [("", 50), ("tasks = 9", 50), ("user_deadlines = 30", 30)])
def test_one_user_reserves_a_part_of_a_gpu_alone(make: Make, machine: Machine, text: str, most: int) -> None:
    """Who came first reserved all of it, and nobody else had a deadline as long as that one lived."""
    queue = make(f"[limits]\n{text}\n")
    for task in (reserving(1, ALICE, most - 10), reserving(2, BOB, 20), reserving(3, ALICE, 90, OTHER)):
        machine.tasks[task.key.gpu][task.key.pid] = SimpleNamespace(task=task)
    assert queue.no_deadline(reserving(4, ALICE, 10)) is None
    assert queue.no_deadline(reserving(1, ALICE, most)) is None  # in place of what it has
    assert queue.no_deadline(reserving(4, ALICE, 11)) == (
        f"a deadline of 11 % of the GPU, beside {most - 10} % that user 1000 has, is more than the {most} % that one "
        "user may reserve (user_deadlines in the daemon's rules)"
    )
    assert queue.no_deadline(reserving(4, POD, most + 1)) is not None
    assert queue.no_deadline(reserving(4, ROOT, 100)) is None
    assert queue.no_deadline(replace(reserving(4, ALICE, 100), task_class=TaskClass.BATCH)) is None


@pytest.mark.parametrize("value", ["-1", "101", "true", '"half"', '"٣%"', "inf"])
def test_mistakes_in_what_a_user_may_reserve(make: Make, value: str) -> None:
    with pytest.raises(UsageError, match=r"rules\.toml:2: user_deadlines"):
        make(f"[limits]\nuser_deadlines = {value}\n")


@pytest.mark.parametrize(("text", "most"), [("", 100), ("tasks = 9", 100), ("user_weight = 250", 250)])
def test_what_the_tasks_of_one_user_weigh_together(make: Make, text: str, most: int) -> None:
    queue = make(f"[limits]\n{text}\n")
    weighed = [queue.most_weight(reserving(1, owner, 1)) for owner in (ALICE, POD, ROOT)]
    assert weighed == [most, most, None]


@pytest.mark.parametrize("highest", ["deadline", "latency", "normal", ""])
def test_the_most_important_class_that_a_user_may_ask_for(make: Make, highest: str) -> None:
    queue = make(f"[limits]\nuser_class = '{highest}'\n" if highest else "")
    refused = [each for each in TaskClass if queue.no_class(ALICE, each) is not None]
    assert refused == list(TaskClass)[: list(TaskClass).index(TaskClass(highest or "deadline"))]
    assert queue.no_class(POD, TaskClass.DEADLINE) == queue.no_class(ALICE, TaskClass.DEADLINE)
    assert not any(queue.no_class(ROOT, each) for each in TaskClass)
    if refused:
        assert queue.no_class(ALICE, refused[0]) == (
            f"class {refused[0]} is more than {highest}, the most that users may have "
            "(user_class in the daemon's rules)"
        )


@pytest.mark.parametrize("value", ["'batch'", "'emperor'", "1", "[]"])
def test_mistakes_in_what_class_a_user_may_have(make: Make, value: str) -> None:
    with pytest.raises(UsageError, match=r"rules\.toml:2: .*take deadline, latency, normal"):
        make(f"[limits]\nuser_class = {value}\n")


@pytest.mark.parametrize("value", ["0", "-1", "1000001", "true", '"100"', "1.5"])
def test_mistakes_in_what_a_user_may_weigh(make: Make, value: str) -> None:
    with pytest.raises(UsageError, match=r"rules\.toml:2: user_weight"):
        make(f"[limits]\nuser_weight = {value}\n")


@pytest.mark.parametrize("text", ["user_tasks = 0", "user_tasks = true", 'user_tasks = "2"', "users_tasks = 2"])
def test_mistakes_in_limits(make: Make, text: str) -> None:
    with pytest.raises(UsageError, match=r"rules\.toml"):
        make(f"[limits]\n{text}\n")


def test_what_is_over_a_limit_of_each_user(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text('[limits]\nuser_tasks = 2\nover = "refuse"\n')
    limits = Rules.load(tmp_path / "rules.toml").limits
    assert (limits.tasks, limits.user_tasks, limits.over) == (None, 2, Over.REFUSE)
