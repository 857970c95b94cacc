"""When rules change: every process that runs gets what they say now, below what its user asked for.

Only those are asked about again for which the rules that came and went may count.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import structlog

from runlist.daemon.gpu.gpus import Gpus
from runlist.daemon.placement.book import Concern
from runlist.daemon.placement.placement import Placement, ProcessSettings
from runlist.daemon.placement.rule import Rule
from runlist.daemon.placement.rules import Rules
from runlist.daemon.tasks.managed import ManagedTask, Root
from runlist.daemon.tree.processes import Processes
from runlist.daemon.tree.search import Search
from runlist.daemon.undo.link import KeeperLink
from runlist.errors import RunlistError
from runlist.model import Appear
from runlist.proc.cgroup import cgroup_of
from runlist.proc.process import owner_of

_log = structlog.get_logger()


class Revision:
    """Brings running processes to what the rules say. `rules_file` names the main file."""

    def __init__(
        self,
        processes: Processes,
        gpus: Gpus,
        keeper: KeeperLink,
        placement: Placement,
        search: Search,
        rules_file: Callable[[], Path | None] = lambda: None,
    ) -> None:
        self._rules_file = rules_file
        self._reading = asyncio.Lock()
        self._processes = processes
        self._gpus = gpus
        self._keeper = keeper
        self._placement = placement
        self._search = search
        self.after_change: Callable[[], None] = lambda: None
        """Called when rules came or went, before processes are brought to them."""

    async def reload(self) -> None:
        """Read the main file again. Raises UsageError for a bad one, and what it said before stays."""
        async with self._reading:
            path = self._rules_file()
            try:
                main = Rules.none() if path is None else await asyncio.to_thread(Rules.load, path)
            except RunlistError as error:
                self._placement.wrong = str(error)
                raise
            self._placement.use(path, main)
            _log.info("the rules were read again", rules=str(path or "none"))
            self.rules_changed(None)

    async def reload_or_say(self) -> None:
        """The same, for nobody who could be told: what is wrong goes to the log."""
        try:
            await self.reload()
        except RunlistError as error:
            _log.warning("the rules stay as they were", reason=str(error))

    def rules_changed(self, rules: Sequence[Rule] | None) -> None:
        """These rules came or went; with None any may have."""
        self.after_change()
        concerns = _anybody if rules is None else _concerned(Concern(rules))
        by_root: defaultdict[int, dict[int, ManagedTask]] = defaultdict(dict)
        for task in self._tasks():
            by_root[id(task.root)][task.task.key.pid] = task
        for root in list(self._processes.roots.values()):
            if root.by_rule and self._has_no_rule(root, by_root[id(root)], concerns):
                _log.info("no rule matches a process any more; released", pid=root.pid)
                self._processes.remove_root(root)
        self._search.rules_changed(concerns)
        tasks = [task for task in self._tasks() if concerns(task.task.key.pid)]
        self._limit_others(concerns)
        refused = [task for task in tasks if not self._revise(task, final=False)]
        for task in refused:  # another may have made room for it by now
            self._revise(task, final=True)
        if tasks or rules is None:
            self._gpus.run_all()

    def _limit_others(self, concerns: Callable[[int], bool]) -> None:
        """Bring the memory that rules give to processes without work, as that at the top of a tree, up to date."""
        for root in list(self._processes.roots.values()):
            for pid in root.rule_memory.keys() | {root.pid}:
                if pid in self._processes.managed or pid < 0 or not concerns(pid):
                    continue
                try:
                    found = self._placement.settings_of(pid, root.settings)
                except RunlistError:
                    continue
                self._placement.limit_memory(root, pid, found, keeps=True)

    def _tasks(self) -> list[ManagedTask]:
        away = [away.task for root in self._processes.roots.values() for away in root.away.values()]
        return [*self._processes.tasks(), *away]

    def _has_no_rule(self, root: Root, tasks: Mapping[int, ManagedTask], concerns: Callable[[int], bool]) -> bool:
        """Whether no rule matches a tree any more: the process at its top, or any that is left of it."""
        pids = list(tasks) if root.ended else [root.pid]
        if not pids or not all(concerns(pid) for pid in pids):
            return False
        return not any(self._may_have_rule(pid, tasks.get(pid)) for pid in pids)

    def _may_have_rule(self, pid: int, task: ManagedTask | None) -> bool:
        """Whether a rule matches, or nobody knows: the process cannot be looked at, or what was set does not go with
        the rule.
        """
        try:
            found = self._placement.settings_of(pid, {}) if task is None else self._placement.revised(task)
        except RunlistError:
            return True
        return found is None or bool(found.rule) or owner_of(pid) is None

    def _revise(self, managed: ManagedTask, *, final: bool) -> bool:
        """Bring a task to what the rules say; False where the policy does not take it so. Then it stays as it was."""
        key, before = managed.task.key, managed.task
        try:
            found = self._placement.revised(managed)
            if found is None or managed.root is None:
                return True
            managed.take_rule(found.rule, found.labels, found.notes, found.shared_memory)
            managed.task = self._placement.shaped(managed, found)
            if managed.task != before and (reason := self._refusal(managed)):
                raise RunlistError(reason)
        except RunlistError as error:  # or what the user asked for does not go with it
            managed.task = before
            if final:
                managed.unfit = f"{managed.rule}: not in force for process {key.pid}: {error}"
                _log.warning("a rule cannot be in force", pid=key.pid, rule=managed.rule, reason=str(error))
            return False
        self._placement.limit_memory(managed.root, key.pid, found, keeps=True)
        if managed.task != before and managed.contexts:
            self._gpus.scheduler(key.gpu).tell(Appear(managed.task))
        self._set_controls(managed, managed.root, found)
        for own in managed.root.owns_of(key.pid):
            own.before.pop(key, None)  # it goes back to what the rules say now
        return True

    def _refusal(self, managed: ManagedTask) -> str:
        return (managed.contexts and self._gpus.scheduler(managed.task.key.gpu).refusal(managed.task)) or ""

    def _set_controls(self, managed: ManagedTask, root: Root, found: ProcessSettings) -> None:
        words = found.controls
        for name in {*words, *managed.controls}:
            word = words.get(name)
            if word == managed.controls.get(name):
                continue
            try:
                managed.set_control(name, word, self._keeper.renew)
            except (RunlistError, OSError) as error:
                if name not in root.refused:
                    _log.warning("managed without a control", pid=managed.task.key.pid, control=name, reason=str(error))
                root.refused.add(name)


def _anybody(pid: int) -> bool:
    del pid
    return True


def _concerned(concern: Concern) -> Callable[[int], bool]:
    known: dict[int, bool] = {}

    def concerns(pid: int) -> bool:
        if pid not in known:
            known[pid] = concern.includes(*cgroup_of(pid))
        return known[pid]

    return concerns
