"""The settings of a process that appears: the rules', overlaid by its user's, within the limits."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from runlist.daemon.gpu.gpus import Gpus
from runlist.daemon.memory.census import MemoryCensus
from runlist.daemon.placement.book import RuleBook
from runlist.daemon.placement.drop_ins import DropIns
from runlist.daemon.placement.facts import MAX_COMMAND, comm_of, environment_of
from runlist.daemon.placement.queue import Queue
from runlist.daemon.placement.rule import Match, Rule
from runlist.daemon.placement.rules import Facts, Rules, facts_of
from runlist.daemon.tasks.managed import ManagedTask, Root
from runlist.errors import RunlistError
from runlist.model import Task, TaskClass, TaskKey
from runlist.proc.cgroup import cgroup_of
from runlist.proc.owners import Owner
from runlist.proc.process import owner_of, start_of
from runlist.proc.words import command_line, short_command
from runlist.settings.changes import Change
from runlist.settings.table import (
    GIVEN,
    NO_SETTINGS,
    apply_changes,
    control_words,
    memory_change,
    override,
    parse_settings,
)
from runlist.settings.values import is_none
from runlist.text import printable

_MOST_PROCESSES = 256  # of a tree, until those are forgotten that have ended

MOST_TROUBLES = 20
"""Lines of `troubles` about files of rules."""


class ProcessSettings(msgspec.Struct, frozen=True):
    """The settings of a process, their changes, the line of the rule that gave some of them, its labels, and what was
    lowered to a bound.
    """

    settings: dict[str, str]
    changes: list[Change]
    rule: str = ""
    labels: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()
    shared_memory: int | None = None
    """What the rule lets its group hold together on each GPU, in bytes: then its memory is no limit of the tree."""
    given_weight: int = 0
    """What the rule gives of its weight."""

    @property
    def controls(self) -> dict[str, str]:
        """The driver's controls that are not at their defaults."""
        return control_words(self.changes)


def some(lines: list[str]) -> list[str]:
    """The first lines, and how many there are more."""
    more = [f"and {len(lines) - MOST_TROUBLES} more: `runlist rules list`"] if len(lines) > MOST_TROUBLES else []
    return [*lines[:MOST_TROUBLES], *more]


def asked_for(managed: ManagedTask, root: Root) -> dict[str, str]:
    """The settings that somebody asked for a process: for its tree, for it alone, and what it asks for itself now."""
    return _asked_for(managed.task.key.pid, root, managed.asked)


def _asked_for(pid: int, root: Root, alone: Mapping[str, str]) -> dict[str, str]:
    asked = override(root.settings, alone)
    for own in root.owns_of(pid):
        asked = override(asked, own.settings)
    return asked


def _asked_before(pid: int, root: Root) -> dict[str, str]:
    """What somebody asked for a process before it had a task."""
    asked: dict[str, str] = {}
    for earlier in root.asked_for(pid):
        asked = override(asked, earlier.settings)
    return asked


class Placement:
    """The rules and limits of this daemon."""

    def __init__(self, rules_file: Path | None, gpus: Gpus, census: MemoryCensus) -> None:
        self.path = rules_file
        self.rules = RuleBook(Rules.load(rules_file) if rules_file is not None else Rules.none())
        self.wrong = ""
        """What is wrong with the main file, which was read again in vain."""
        self.drop_ins: DropIns | None = None
        self.foretold: dict[int, Match] = {}
        """What the rules give to processes that are looked at just now, where the kernel told which rule that is."""
        self.queue = Queue(self.rules, gpus, census)
        self._census = census

    def take_drop_ins(self, folder: Path, changed: Callable[[list[Rule]], None]) -> DropIns:
        """Take the rules of a folder, too. `changed` is called with those that come and go."""
        self.drop_ins = DropIns(folder, self.rules, changed)
        return self.drop_ins

    def use(self, path: Path | None, main: Rules) -> None:
        """Take another content of the main file."""
        self.path, self.wrong = path, ""
        self.rules.use(main)

    def troubles(self) -> list[str]:
        """What is wrong with files of rules."""
        drop_ins = [] if self.drop_ins is None else sorted(self.drop_ins.troubles.values())
        return [*([self.wrong] if self.wrong else []), *drop_ins]

    def settings_of(self, pid: int, asked: dict[str, str]) -> ProcessSettings:
        """Settings of a process: the rules', overlaid by those `asked` for. Raises UsageError for bad ones."""
        if (match := self.foretold.get(pid)) is not None:
            return self._given(match, asked)
        return self._settings(facts_of(pid, self.rules.variables) if self.rules else None, asked)

    def _settings(self, facts: Facts | None, asked: dict[str, str]) -> ProcessSettings:
        return self._given(self.rules.match(facts) if facts is not None else None, asked)

    @staticmethod
    def _given(match: Match | None, asked: dict[str, str]) -> ProcessSettings:
        if match is None:
            return ProcessSettings(asked, parse_settings(asked))
        given, shared = dict(match.settings), None
        if not is_none(given.get("group", "none")) and "group" not in asked:
            change = memory_change(parse_settings({"memory": given.pop("memory", "max")}))
            shared = None if change is None else change.limit
        settings = override(given, asked)
        weights = parse_settings({key: word for key, word in given.items() if key == "weight"})
        weight = apply_changes(weights).weight if weights else 0
        changes = parse_settings(settings)
        return ProcessSettings(settings, changes, match.where, match.labels, match.notes, shared, weight)

    def new_task(
        self, pid: int, gpu: str, root: Root, *, own: bool = True, asked: Mapping[str, str] | None = None
    ) -> ManagedTask:
        """The task of a process that was just found on a GPU. Processes of one root share as one job. `asked` is what
        somebody asked for it alone; without it that is what its tree knows. Without `own` it has nothing of what
        processes ask for themselves for a while.
        """
        match = self.foretold.get(pid)
        facts = facts_of(pid, self.rules.variables) if self.rules and match is None else None
        line = command_line(pid)
        cgroup, container = cgroup_of(pid)
        owner = Owner.within(container, root.uid)
        managed = ManagedTask(
            Task(
                TaskKey(pid, gpu),
                TaskClass.NORMAL,
                short_command(line),
                root.uid,
                time.monotonic(),
                owned_by=(owner.uid, owner.container),
            ),
            root=root,
            command_line=line,
            cgroup=printable(cgroup),
            container=printable(container),
        )
        if facts is not None:
            managed.variables, managed.environment = self.rules.variables, facts.environment
        managed.asked = _asked_before(pid, root) if asked is None else dict(asked)
        wanted = asked_for(managed, root) if own else override(root.settings, managed.asked)
        found = self._settings(facts, wanted) if match is None else self._given(match, wanted)
        managed.task = self._shaped(managed, found, wanted)
        managed.controls = found.controls
        managed.take_rule(found.rule, found.labels, found.notes, found.shared_memory)
        self.limit_memory(root, pid, found)
        return managed

    def class_of_new(self, pid: int, root: Root | None, match: Match | None = None) -> TaskClass:
        """The class that a process of a tree, or of none yet, will have on a GPU, by the rules' answer where that is
        known already. Raises UsageError for bad settings.
        """
        asked = {} if root is None else _asked_for(pid, root, _asked_before(pid, root))
        found = self.settings_of(pid, asked) if match is None else self._given(match, asked)
        return apply_changes(found.changes).task_class

    def revised(self, managed: ManagedTask) -> ProcessSettings | None:
        """What the rules say of a task now; None for one that is gone. A program may write over its command line and
        its environment: what was found at first counts.
        """
        assert managed.root is not None
        pid = managed.task.key.pid
        if (uid := owner_of(pid)) is None:
            return None
        if new := self.rules.variables - managed.variables:
            managed.environment = {**managed.environment, **(environment_of(pid, new) or {})}
            managed.variables |= new
        command = managed.command_line[:MAX_COMMAND]
        facts = Facts(uid, command, *cgroup_of(pid), managed.environment, comm_of(pid))
        return self._settings(facts, asked_for(managed, managed.root))

    def shaped(self, managed: ManagedTask, found: ProcessSettings) -> Task:
        """A task with other settings. Raises UsageError where they do not go together."""
        assert managed.root is not None
        return self._shaped(managed, found, asked_for(managed, managed.root))

    def _shaped(self, managed: ManagedTask, found: ProcessSettings, asked: Mapping[str, str]) -> Task:
        assert managed.root is not None
        bare = replace(managed.task, **{name: getattr(NO_SETTINGS, name) for name in GIVEN})
        task = apply_changes(found.changes, replace(bare, group=f"job {managed.root.pid}"))
        if "group" not in asked:
            task = replace(task, group_of=None)  # the rule's group is one for all users
        return replace(task, given_weight=found.given_weight, most_weight=self.queue.most_weight(task))

    def limit_memory(self, root: Root, pid: int, found: ProcessSettings, *, keeps: bool = False) -> None:
        """Limit a tree to the smallest memory that rules give to one of its processes, unless its user asked for some.
        With `keeps` the tree keeps what it holds beyond it.
        """
        change = memory_change(found.changes)
        root.rule_memory.pop(pid, None)
        if change is not None and "memory" not in root.settings:
            if len(root.rule_memory) >= _MOST_PROCESSES:
                root.rule_memory = {each: limit for each, limit in root.rule_memory.items() if start_of(each)}
            root.rule_memory[pid] = change.limit
        if "memory" not in root.settings:
            limits = [limit for limit in root.rule_memory.values() if limit is not None]
            root.quota.follow(min(limits, default=None), keeps=keeps)

    def beyond_ration(self, task: Task) -> str | None:
        """Why a user may not have the class, or the deadline, of a task, or None."""
        reason = self.no_class(task.key.pid, Owner(*task.owner), task) or self.queue.no_deadline(task)
        return None if reason is None or self._gives(task.key.pid, task) else reason

    def no_class(self, pid: int, owner: Owner, asked: Task) -> str | None:
        """Why a user may not have such a class for a process, or None."""
        reason = self.queue.no_class(owner, asked.task_class)
        return None if reason is None or self._gives(pid, asked) else reason

    def _gives(self, pid: int, asked: Task) -> bool:
        """Whether rules give a process this class and deadline: that is no word of a user's."""
        if self.rules:
            with contextlib.suppress(RunlistError):
                given = apply_changes(self.settings_of(pid, {}).changes)
                return (given.task_class, given.deadline) == (asked.task_class, asked.deadline)
        return False

    def group_changed(self, tasks: Iterable[ManagedTask]) -> None:
        """What rules let a group hold together is for a tree that left it a limit of its own, and the other way round
        for one that comes back.
        """
        for managed in tasks:
            with contextlib.suppress(RunlistError):
                root, found = managed.root, self.revised(managed)
                if root is None or found is None:
                    continue
                managed.take_rule(found.rule, found.labels, found.notes, found.shared_memory)
                if "memory" not in asked_for(managed, root):
                    self.limit_memory(root, managed.task.key.pid, found, keeps=True)

    def gpu_pids(self) -> set[int]:
        """Processes with a compute context, managed or not."""
        return self._census.pids()
