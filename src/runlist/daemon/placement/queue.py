"""Who finds room on a GPU within the limits. Nobody goes before those who wait already and have no more than they have:
else whoever has most of the tasks, and many that wait, would keep all others waiting.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable

import msgspec

from runlist.daemon.gpu.gpus import Gpus
from runlist.daemon.memory.census import MemoryCensus
from runlist.daemon.placement.book import RuleBook
from runlist.daemon.tasks.managed import ManagedTask
from runlist.model import ROUNDING, Task, TaskClass
from runlist.proc.owners import Owner
from runlist.text import counted
from runlist.units import percent


class Command(msgspec.Struct, frozen=True):
    """One that waits to be started: its owner, and which of the owner's numbers its launcher has."""

    owner: Owner
    uid: int


class Queue:
    """The room on all GPUs, and who waits for it. `starting` are the owners of commands without a context yet,
    which may get one anywhere.
    """

    def __init__(self, rules: RuleBook, gpus: Gpus, census: MemoryCensus) -> None:
        self._rules = rules
        self._gpus = gpus
        self._census = census
        self.commands: dict[int, Command] = {}
        """Those that wait to be started, by the process ids of their launchers, the longest waiting first."""

    def over_limit(self, gpu: str, owner: Owner, starting: Collection[Owner] = ()) -> str | None:
        """Why a GPU has no room for one task more of an owner, or None."""
        limits = self._rules.limits
        if limits.tasks is not None or limits.user_tasks is not None:
            there = self._there(gpu, starting)
            if limits.user_tasks is not None and self._has_all(there, owner):
                tasks = counted(there[owner], "task")
                return f"{owner} has {tasks} on GPU {gpu}, and {limits.where} allows a user {limits.user_tasks}"
            if limits.tasks is not None and there.total() >= limits.tasks:
                tasks = counted(there.total(), "task")
                return f"GPU {gpu} has {tasks}, and {limits.where} allows {limits.tasks}"
        if limits.memory is not None:
            used = sum(self._census.by_pid(gpu).values())
            if used > limits.memory:
                return f"{used >> 20} MiB are used on GPU {gpu}, and {limits.where} allows {limits.memory >> 20} MiB"
        return None

    def no_room(self, gpu: str, owner: Owner, starting: Collection[Owner] = ()) -> str | None:
        """Why a newcomer to a GPU has to wait, or None."""
        reason = self.over_limit(gpu, owner, starting)
        if reason is None and self._is_limited:
            there = self._there(gpu, starting)
            if any(there[each] <= there[owner] and not self._has_all(there, each) for each in self._waiting(gpu)):
                return f"others wait for room on GPU {gpu}"
        return reason

    def no_room_anywhere(self, gpus: Iterable[str], owner: Owner, starting: Collection[Owner]) -> str | None:
        """Why a command has to wait, when every GPU is full for its owner."""
        reason = None
        for gpu in gpus:
            reason = self.no_room(gpu, owner, starting)
            if reason is None:
                return None
        return reason

    def no_deadline(self, task: Task) -> str | None:
        """Why a user may have no such deadline beside those that they have, or None. What rules give is not asked."""
        owner = Owner(*task.owner)
        if task.deadline is None or task.task_class != TaskClass.DEADLINE or _is_ours(owner):
            return None
        others = (each.task for each in self._gpus.scheduler(task.key.gpu).tasks.values())
        theirs = [one.deadline for one in others if one.owner == task.owner and one.key != task.key]
        has = sum(one.fraction for one in theirs if one is not None)
        limits = self._rules.limits
        if has + task.deadline.fraction <= limits.user_deadlines + ROUNDING:
            return None
        return (
            f"a deadline of {percent(task.deadline.fraction)} of the GPU, beside {percent(has)} that {owner} has, is "
            f"more than the {percent(limits.user_deadlines)} that one user may reserve "
            "(user_deadlines in the daemon's rules)"
        )

    def no_class(self, owner: Owner, task_class: TaskClass) -> str | None:
        """Why a user may not have a class, or None. What rules give is not asked."""
        classes, highest = list(TaskClass), self._rules.limits.user_class
        if _is_ours(owner) or classes.index(task_class) >= classes.index(highest):
            return None
        said = f"class {task_class} is more than {highest}, the most that users may have"
        return f"{said} (user_class in the daemon's rules)"

    def most_weight(self, task: Task) -> int | None:
        """What the tasks of its owner may weigh together beyond what rules give them; None: any."""
        return None if _is_ours(Owner(*task.owner)) else self._rules.limits.user_weight

    def next_command(self, gpus: Iterable[str], starting: Collection[Owner]) -> int | None:
        """The launcher whose command is to start now, of those that wait: that of who has least."""
        if not self._is_limited:
            return next(iter(self.commands), None)
        gpus = list(gpus)
        free = {each for each in self._commanding() if self.no_room_anywhere(gpus, each, starting) is None}
        there = sum((self._there(gpu) for gpu in gpus), Counter(starting))
        candidates = [pid for pid, command in self.commands.items() if command.owner in free]
        return min(candidates, key=lambda pid: there[self.commands[pid].owner], default=None)

    def next_task(self, gpu: str, starting: Collection[Owner]) -> ManagedTask | None:
        """The task that waits for this GPU and is to run now: of those of who has least, the one that waits longest.
        A command of somebody who has less is started first.
        """
        waiting = self._waiting(gpu)
        if not waiting:
            return None
        there = self._there(gpu, starting)
        for owner in sorted(waiting, key=lambda each: (there[each], waiting[each].task.since)):
            first = {each for each in self._commanding() if there[each] < there[owner]}
            if any(self.over_limit(gpu, each, starting) is None for each in first):
                return None
            if self.over_limit(gpu, owner) is None or self._waits_for_itself(gpu):
                return waiting[owner]
        return None

    def _commanding(self) -> set[Owner]:
        return {command.owner for command in self.commands.values()}

    @property
    def _is_limited(self) -> bool:
        limits = self._rules.limits
        return limits.tasks is not None or limits.user_tasks is not None or limits.memory is not None

    def _there(self, gpu: str, starting: Iterable[Owner] = ()) -> Counter[Owner]:
        """How many tasks each owner has on a GPU, or is about to have: no more than a user may, however much starts."""
        tasks = self._gpus.scheduler(gpu).tasks.values()
        there = Counter(_owner(task) for task in tasks if not task.queued)
        for owner in starting:
            there[owner] += not self._has_all(there, owner)
        return there

    def _waiting(self, gpu: str) -> dict[Owner, ManagedTask]:
        """Of each owner the task that waits longest."""
        found: dict[Owner, ManagedTask] = {}
        for task in self._gpus.scheduler(gpu).tasks.values():
            if task.queued:
                first = found.setdefault(_owner(task), task)
                if task.task.since < first.task.since:
                    found[_owner(task)] = task
        return found

    def _waits_for_itself(self, gpu: str) -> bool:
        """Whether what is left of a GPU's memory would do if those that wait held none: then nobody else makes room."""
        limit, tasks = self._rules.limits.memory, self._gpus.scheduler(gpu).tasks.values()
        if limit is None or not all(task.queued for task in tasks):
            return False
        waiting = {task.task.key.pid for task in tasks}
        return sum(held for pid, held in self._census.by_pid(gpu).items() if pid not in waiting) <= limit

    def _has_all(self, there: Counter[Owner], owner: Owner) -> bool:
        """Whether an owner has as many as a user may. Root and the daemon's own user may have any number."""
        most = self._rules.limits.user_tasks
        return most is not None and not _is_ours(owner) and there[owner] >= most


def _is_ours(owner: Owner) -> bool:
    return owner.uid in (0, os.geteuid()) and not owner.container


def _owner(task: ManagedTask) -> Owner:
    return Owner(*task.task.owner)
