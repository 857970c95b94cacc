"""The settings of a process that appears: the rules', overlaid by its user's, within the limits."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from runlist.daemon.gpu.gpus import Gpus
from runlist.daemon.memory.census import MemoryCensus
from runlist.daemon.placement.rules import Rules, facts_of
from runlist.daemon.tasks.managed import ManagedTask, Root
from runlist.model import Task, TaskClass, TaskKey
from runlist.proc.cgroup import cgroup_of
from runlist.proc.process import command_line, short_command
from runlist.settings.changes import Change
from runlist.settings.table import apply_changes, control_words, memory_change, override, parse_settings
from runlist.text import printable


@dataclass(frozen=True)
class ProcessSettings:
    """The settings of a process, their changes, and the line of the rule that gave some of them."""

    settings: dict[str, str]
    changes: list[Change]
    rule: str = ""


class Placement:
    """The rules and limits of this daemon."""

    def __init__(self, rules_file: Path | None, gpus: Gpus, census: MemoryCensus) -> None:
        self.path = rules_file
        self.rules = Rules.load(rules_file) if rules_file is not None else Rules.none()
        self._gpus = gpus
        self._census = census

    def settings_of(self, pid: int, asked: dict[str, str]) -> ProcessSettings:
        """Settings of a process: the rules', overlaid by those `asked` for. Raises UsageError for bad ones."""
        facts = facts_of(pid) if self.rules else None
        match = self.rules.match(facts) if facts is not None else None
        if match is None:
            return ProcessSettings(asked, parse_settings(asked))
        settings = override(match.settings, asked)
        return ProcessSettings(settings, parse_settings(settings), match.where)

    def new_task(self, pid: int, gpu: str, root: Root) -> ManagedTask:
        """The task of a process that was just found on a GPU. Processes of one root share as one job."""
        found = self.settings_of(pid, root.settings)
        line = command_line(pid)
        task = Task(
            key=TaskKey(pid, gpu),
            task_class=TaskClass.NORMAL,
            command=short_command(line),
            uid=root.uid,
            since=time.monotonic(),
            group=f"job {root.pid}",
        )
        task = apply_changes(found.changes, task)
        if "group" not in root.settings:
            task = replace(task, group_of=None)  # the rule's group is one for all users
        if "memory" not in root.settings and (change := memory_change(found.changes)) is not None:
            root.quota.tighten(change.limit)
        cgroup, container = map(printable, cgroup_of(pid))
        return ManagedTask(
            task,
            root=root,
            rule=found.rule,
            controls=control_words(found.changes),
            command_line=line,
            cgroup=cgroup,
            container=container,
        )

    def gpu_pids(self) -> set[int]:
        """Processes with a compute context, managed or not."""
        return self._census.pids()

    def no_room(self, gpu: str, expected: int = 0) -> str | None:
        """Why a newcomer to a GPU has to wait, or None. Nobody goes before those who wait already."""
        reason = self.over_limit(gpu, expected)
        limits = self.rules.limits
        if reason is None and (limits.tasks is not None or limits.memory is not None):
            waiting = any(task.queued for task in self._gpus.scheduler(gpu).tasks.values())
            return f"others wait for room on GPU {gpu}" if waiting else None
        return reason

    def over_limit(self, gpu: str, expected: int = 0) -> str | None:
        """Why a GPU has no room for one task more than the present and the `expected` ones, or None."""
        limits = self.rules.limits
        if limits.tasks is not None:
            there = expected + sum(not task.queued for task in self._gpus.scheduler(gpu).tasks.values())
            if there >= limits.tasks:
                return f"GPU {gpu} has {there} tasks, and {limits.where} allows {limits.tasks}"
        if limits.memory is not None:
            used = sum(self._census.by_pid(gpu).values())
            if used > limits.memory:
                return f"{used >> 20} MiB are used on GPU {gpu}, and {limits.where} allows {limits.memory >> 20} MiB"
        return None
