"""What users ask of the daemon, with their rights: the requests that change something.

All state is changed by the event loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from runlist.daemon.gpus import Gpus
from runlist.daemon.hearing import hear
from runlist.daemon.keeping import Keeping
from runlist.daemon.managed import ManagedProcess, ManagedTask
from runlist.daemon.messages import TenantMessage
from runlist.daemon.placement import Placement, check_settings
from runlist.daemon.processes import Processes
from runlist.daemon.rules import Over
from runlist.daemon.settings import ContextChange, TaskChange, override, parse_settings
from runlist.daemon.view import Memory
from runlist.daemon.watch import descendants, owner_of
from runlist.errors import NoPermissionError, NoTargetError, RunlistError
from runlist.model import Appear, TaskClass
from runlist.policies import PolicySpec
from runlist.rm.context import Setting
from runlist.rm.discover import Borrower, OwnRight
from runlist.rm.transport import Driver

_QUEUE_LOOK_S = 0.2


class Manager:
    """The requests of users.

    Methods that take `uid` act for a user: they raise NoPermissionError for another user's process, NoTargetError for
    one that is gone or not managed, and leave everything as it was when they raise.
    `on_hopeless` is called when nothing can be managed safely any more.
    """

    def __init__(
        self, driver: Driver, spec: PolicySpec, rules_file: Path | None, on_hopeless: Callable[[], None]
    ) -> None:
        self.driver = driver
        self.gpus = Gpus(driver, spec, self._release_process)
        self.memory = Memory(driver)
        self.placement = Placement(rules_file, self.gpus, self.memory)  # bad rules are refused before anything starts
        self.keeping = Keeping(driver, on_hopeless)
        self.processes = Processes(driver, self.gpus, self.keeping, self.placement)
        self._launches: list[int] = []  # `runlist run` processes that wait for room, the longest waiting first

    # -- requests ----------------------------------------------------------------------------------

    async def attach(self, pid: int, settings: dict[str, str], wait: bool, uid: int) -> list[ManagedTask]:
        """Manage a process and its descendants. Without `wait` it must have GPU work now."""
        started = time.perf_counter()
        check_settings(settings)
        self._check_owner(pid, uid)
        if pid in self.processes.roots or pid in self.processes.managed:
            return self.change(pid, settings, uid)
        root = self.processes.add_root(pid, settings, OwnRight())
        try:
            for member in descendants([pid])[pid]:
                await self.processes.adopt(root, member, new_only=False)
            tasks = self._tasks(self.processes.under(pid))
            if not tasks and not wait:
                raise NoTargetError(
                    f"process {pid} has no GPU context now: attach it once it has, or use --wait "
                    "(under MPS, attach the MPS server)"
                )
        except BaseException:
            self.processes.remove_root(root)
            raise
        for task in tasks:
            task.attach_ms = (time.perf_counter() - started) * 1e3
        return tasks

    async def launch(self, pid: int, settings: dict[str, str], borrower: Borrower, uid: int) -> None:
        """Manage all descendants of a `runlist run` process, as they come. Returns when there is room for them."""
        check_settings(settings)
        self._check_owner(pid, uid)
        if pid in self.processes.roots:
            raise RunlistError(f"process {pid} is managed already")
        self._launches.append(pid)
        try:
            over = self.placement.rules.limits.over
            while (reason := self._no_room()) or (over is Over.QUEUE and self._launches[0] != pid):
                if over is Over.REFUSE:
                    raise RunlistError(f"the command is not started: {reason}")
                if over is Over.BATCH:
                    settings = {**settings, "class": TaskClass.BATCH}
                    break
                await asyncio.sleep(_QUEUE_LOOK_S)
                self._check_owner(pid, uid)  # it may have given up
            self.processes.add_root(pid, settings, borrower)
        finally:
            self._launches.remove(pid)

    def _no_room(self) -> str | None:
        """Why a command must not be started now: every GPU is full. Those just started count though they have no
        context yet.
        """
        busy = {process.root.pid for process in self.processes.managed.values()}
        starting = sum(not root.ended and root.pid not in busy for root in self.processes.roots.values())
        reason = None
        for gpu in dict.fromkeys([*(scheduler.gpu for scheduler in self.gpus.all()), *self.memory.gpus()]):
            reason = self.placement.no_room(gpu, starting)
            if reason is None:
                return None
        return reason

    def waiting(self) -> list[str]:
        """What waits until there is room, in words."""
        queued = [task.task for task in self.tasks(0) if task.queued]
        return [f"process {task.key.pid} ({task.command}) on GPU {task.key.gpu}" for task in queued] + [
            f"the command of process {pid}" for pid in self._launches
        ]

    def launcher_gone(self, pid: int) -> None:
        """`runlist run` hung up: from here on only our own right is left for its descendants."""
        if pid in self.processes.roots:
            self.processes.roots[pid].borrower = OwnRight()

    def detach(self, pid: int, uid: int) -> list[str]:
        """Put a process (a root's whole tree) back and stop managing it; returns what could not be put back."""
        processes = self._targets(pid, uid)
        troubles: list[str] = []
        for process in processes:
            process.root.excluded.add(process.pid)
            troubles += self.processes.forget(process, restore=True)
        if pid in self.processes.roots:
            self.processes.remove_root(self.processes.roots[pid])
        self.gpus.run_all()
        return troubles

    def release(self, uid: int) -> list[str]:
        """Detach everything of a user; root's release is everybody's."""
        mine = [root for root in self.processes.roots.values() if uid in (0, root.uid)]
        troubles = [trouble for root in mine for trouble in self.processes.remove_root(root)]
        self.gpus.run_all()
        return troubles

    def change(self, pid: int, settings: dict[str, str], uid: int) -> list[ManagedTask]:
        """Change settings of a process' tasks: all, or none when one is refused."""
        tasks = self._tasks(self._targets(pid, uid))
        changes = parse_settings(settings, *(task.task for task in tasks[:1]))
        if uid not in (0, os.geteuid()) and any(
            isinstance(change, ContextChange) and change.privileged for change in changes
        ):
            raise NoPermissionError("only root may change the interleave level (the driver asks for CAP_SYS_NICE)")
        self._change(tasks, changes)
        if pid in self.processes.roots:
            lasting = {key: value for key, value in settings.items() if key != Setting.INTERLEAVE}
            root = self.processes.roots[pid]
            root.settings = override(root.settings, lasting)
        return tasks

    def suspend(self, pid: int, suspended: bool, uid: int) -> list[ManagedTask]:
        """Take a process' tasks off their GPUs until resumed, or resume them."""
        tasks = self._tasks(self._targets(pid, uid))
        waiting = [task for task in tasks if task.queued]
        if not suspended and uid != 0 and any(not task.stays_suspended for task in waiting):
            raise RunlistError(f"process {pid} waits for room (`runlist policy show`): only root may resume it now")
        for task in waiting:
            task.queued = suspended or uid != 0
            task.stays_suspended = suspended
        running = [task for task in tasks if not task.queued]
        self._change(running, [TaskChange(lambda task: replace(task, suspended=suspended))])
        return tasks

    def hear(self, pid: int, uid: int, message: TenantMessage, in_force: Callable[[], None]) -> bool:
        """Take what a tenant says of itself; False for a process that is not managed. `in_force` is called when what
        it asks for has been applied.
        """
        process = self.processes.managed.get(pid)
        if process is None or uid not in (0, process.root.uid):
            return False
        for managed in process.tasks.values():
            hear(managed, self.gpus.scheduler(managed.task.key.gpu), message, in_force)
        return True

    def tasks(self, uid: int) -> list[ManagedTask]:
        """All tasks that a user may see: its own; root sees all."""
        return [
            task
            for process in self.processes.managed.values()
            if uid in (0, process.root.uid)
            for task in process.tasks.values()
        ]

    def close(self) -> None:
        """Put everything back and end the keeper."""
        self.processes.close()
        self.gpus.close()
        self.keeping.close()
        self.memory.close()

    # -- targets and rights ------------------------------------------------------------------------

    def _check_owner(self, pid: int, uid: int) -> None:
        owner = owner_of(pid)
        if owner is None:
            raise NoTargetError(f"process {pid} does not exist")
        if uid not in (0, owner):
            raise NoPermissionError(f"process {pid} belongs to user {owner}: only that user and root may manage it")

    def _targets(self, pid: int, uid: int) -> list[ManagedProcess]:
        processes = self.processes.under(pid)
        root = self.processes.roots.get(pid) or (processes[0].root if processes else None)
        if root is None:
            self._check_owner(pid, uid)
            raise NoTargetError(f"process {pid} is not managed: attach it first (`runlist ps` lists those that are)")
        if uid not in (0, root.uid):
            raise NoPermissionError(f"process {pid} belongs to user {root.uid}: only that user and root may manage it")
        return processes

    @staticmethod
    def _tasks(processes: Iterable[ManagedProcess]) -> list[ManagedTask]:
        return [task for process in processes for task in process.tasks.values()]

    # -- changing and scheduling -------------------------------------------------------------------

    def _change(self, tasks: list[ManagedTask], changes: list[TaskChange | ContextChange]) -> None:
        before = [(task, task.task) for task in tasks]
        undo: list[tuple[ManagedTask, ContextChange, str]] = []
        try:
            for task in tasks:
                for change in changes:
                    if isinstance(change, TaskChange):
                        task.task = change.change(task.task)
                    else:
                        undo.append((task, change, task.settings.get(change.setting, change.default)))
                        self._set_context(task, change, change.value)
                if reason := self.gpus.scheduler(task.task.key.gpu).refusal(task.task):
                    raise RunlistError(reason)
                self.gpus.scheduler(task.task.key.gpu).tell(Appear(task.task))
            self.gpus.run({task.task.key.gpu for task in tasks}, {task.task.key for task in tasks})
        except BaseException:
            for task, old in before:
                task.task = replace(old, usage=task.task.usage)
                self.gpus.scheduler(old.key.gpu).tell(Appear(task.task))
            for task, change, value in reversed(undo):
                with contextlib.suppress(RunlistError, OSError):
                    self._set_context(task, change, value)
            self.gpus.run_all()
            raise

    def _set_context(self, task: ManagedTask, change: ContextChange, value: str) -> None:
        for key, context in task.contexts.items():
            if context.will_touch(change.setting):
                self.keeping.renew(key)
            change.act(context, value)
        task.settings[change.setting] = value

    def _release_process(self, pid: int) -> None:
        process = self.processes.managed.get(pid)
        if process is not None:
            self.processes.forget(process, restore=True)
