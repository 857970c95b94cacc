"""What processes ask for themselves for a while, and what they had before."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from runlist.daemon.requests.manager import Manager, Outcome
from runlist.daemon.requests.memory_limits import limit_notes, sent_region, set_limit
from runlist.daemon.requests.rights import check_owner, check_right
from runlist.daemon.tasks.managed import ManagedTask, Own, Root
from runlist.errors import NoPermissionError, NoTargetError, NotSupportedError
from runlist.model import Task, TaskKey
from runlist.proc.process import Program, those_below
from runlist.settings.changes import Change, ControlChange, TaskChange
from runlist.settings.table import (
    ANY_TASK,
    GIVEN,
    SETTINGS,
    Scope,
    apply_changes,
    memory_change,
    parse_request,
    parse_settings,
)


class OwnSettings:
    """The requests of processes for themselves. Methods raise as those of `Manager` do: then nothing has changed."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    async def manage(self, pid: int, settings: dict[str, str], region_fd: int | None, uid: int) -> Outcome:
        """Give a process settings on top of those that it has, in place of the last ones. Takes the region over."""
        manager = self._manager
        region = None if region_fd is None else await sent_region(manager.descriptors, region_fd, uid)
        try:
            if not pid:
                raise NoTargetError("the daemon cannot see this process: run one in its container, or on its machine")
            _, notes = parse_request(settings, ANY_TASK)
            check_owner(pid, uid)
            check_right(settings, uid)
            await manager.processes.find_ancestors(pid)
            root = self._root(pid)
            alone = root is None
            if root is None:
                root = manager.processes.add_root(pid, {}, asked_by=uid)
            else:
                _check_user(root, pid, uid)
            if region is not None and not root.quota.has_region:
                root.quota.take(region)
                region = None
        finally:
            if region is not None:
                region.close()
        if alone:
            await self._begin(root, pid, settings)
        else:
            self._change(root, pid, settings)
        said = limit_notes(root, manager.census, manager.gpus) if "memory" in settings else []
        return Outcome(self._tasks(root, pid), notes + said)

    def leave(self, pid: int, uid: int) -> list[str]:
        """Put a process back to what it had before; returns what could not be put back."""
        manager = self._manager
        root = self._root(pid)
        own = None if root is None else root.own.get(pid)
        if root is None or own is None or not own.program.runs():
            raise NoTargetError(f"process {pid} has asked for nothing, or the daemon was started anew since")
        _check_user(root, pid, uid)  # who asked may have ended, and left its connection to others
        self._change(root, pid, {})
        del root.own[pid]
        if own.alone and not root.settings:  # else somebody asked for more meanwhile
            below = [process.pid for process in manager.processes.under(pid)]
            try:
                troubles = manager.detach(pid, uid)
            except NoPermissionError:  # rules keep it off: from here on it is theirs
                root.by_rule = True
                return []
            for each in (pid, *below):
                manager.search.look_anew(each)  # a rule may want it
            return troubles
        return []

    # -- changing ----------------------------------------------------------------------------------

    def _root(self, pid: int) -> Root | None:
        """The tree that a process is managed in; None also for one that was detached by name."""
        root = self._manager.processes.root_of(pid)
        return None if root is None or pid in root.excluded else root

    async def _begin(self, root: Root, pid: int, settings: Mapping[str, str]) -> None:
        """Manage a process that nobody managed, also where it has no context yet."""
        manager = self._manager
        root.awaited = True
        root.own[pid] = Own(Program.of(pid), settings, alone=True, limit=root.quota.limit)
        try:
            if (change := memory_change(parse_settings(settings))) is not None:
                set_limit(root, pid, change.limit)
            await manager.search.everything_of(root)
        except BaseException:
            manager.processes.remove_root(root)
            raise
        root.awaited = False

    def _change(self, root: Root, pid: int, settings: Mapping[str, str]) -> None:
        """Replace what a process asks for itself: all of it, or nothing where something is refused."""
        root.forget_some()
        tasks = self._tasks(root, pid)
        own = root.own.get(pid)
        if own is None or not own.program.runs():
            own = self._noted(root, pid, tasks)
        wanted = {task.task.key: self._wanted(root, own, task, settings) for task in tasks}
        changes: list[Change] = [TaskChange(lambda task: replace(task, **wanted[task.key]))] if tasks else []
        changes += self._controls(root, own, tasks, settings)
        old, limit, asked = own.settings, root.quota.limit, memory_change(parse_settings(settings))
        if asked is not None:
            own.limit = own.limit if "memory" in old else limit
            set_limit(root, pid, asked.limit)
        elif (was := memory_change(parse_settings(old))) is not None and limit == was.limit:
            with contextlib.suppress(NotSupportedError):
                root.quota.set_limit(own.limit)
        try:
            self._manager.apply(tasks, changes)
        except BaseException:
            if root.quota.limit != limit:
                root.quota.set_limit(limit)
            raise
        own.settings = settings
        root.own[pid] = own
        if "group" in {*old, *settings}:
            self._manager.placement.group_changed(tasks)

    def _tasks(self, root: Root, pid: int) -> list[ManagedTask]:
        """The tasks of a process, and of those of its tree that descend from it."""
        of_tree = {one.pid: one for one in self._manager.processes.managed.values() if one.root is root}
        own = root.own.get(pid)
        asks = own is not None and own.program.runs()
        below = those_below(pid, of_tree, root.pid) if asks else of_tree.keys() & {pid}
        return [task for each, process in of_tree.items() if each in below for task in process.tasks.values()]

    @staticmethod
    def _noted(root: Root, pid: int, tasks: Iterable[ManagedTask]) -> Own:
        before: dict[TaskKey, tuple[Task, Mapping[str, str]]] = {
            task.task.key: (task.task, dict(task.controls)) for task in tasks
        }
        return Own(Program.of(pid), {}, alone=False, before=before, limit=root.quota.limit)

    def _before(self, root: Root, own: Own, task: ManagedTask) -> tuple[Task, Mapping[str, str]]:
        """What a task had before, or would have where it came later, or rules changed."""
        if (key := task.task.key) not in own.before:
            made = self._manager.placement.new_task(key.pid, key.gpu, root, own=False, asked=task.asked)
            own.before[key] = (made.task, dict(made.controls))
        return own.before[key]

    def _wanted(self, root: Root, own: Own, task: ManagedTask, settings: Mapping[str, str]) -> dict[str, Any]:
        """What settings give of a task from here on: what it was before, unless somebody else changed it meanwhile, and
        then what these say.
        """
        before, _ = self._before(root, own, task)
        given = apply_changes(parse_settings(own.settings, before), before)
        now = task.task
        for name in GIVEN:
            if getattr(now, name) == getattr(given, name):
                now = replace(now, **{name: getattr(before, name)})  # class and deadline follow one another
        after = apply_changes(parse_request(settings, now)[0], now)
        return {name: getattr(after, name) for name in GIVEN}

    def _controls(self, root: Root, own: Own, tasks: list[ManagedTask], settings: Mapping[str, str]) -> list[Change]:
        """The driver's controls: those asked for, and those that go back, which the tasks share."""
        asked = [change for change in parse_settings(settings) if isinstance(change, ControlChange)]
        gone = {key for key in own.settings if SETTINGS[key].changes is Scope.DRIVER} - settings.keys()
        for name in sorted(gone if tasks else ()):
            _, words = self._before(root, own, tasks[0])
            asked.append(ControlChange(name, words.get(name)))
        return list(asked)


def _check_user(root: Root, pid: int, uid: int) -> None:
    if uid not in (0, root.uid):
        raise NoPermissionError(f"process {pid} is managed by user {root.uid}: only that user and root may do so")
