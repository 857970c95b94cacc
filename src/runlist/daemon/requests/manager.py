"""The requests of users that change something, checked against their rights.

The event loop's thread changes all state.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import structlog

from runlist.daemon.gpu.gpus import Gpus
from runlist.daemon.memory.census import MemoryCensus
from runlist.daemon.placement.placement import Placement
from runlist.daemon.placement.rules import Over
from runlist.daemon.requests.limit_notes import limit_notes
from runlist.daemon.requests.messages import Answer, Kind, TenantMessage
from runlist.daemon.requests.tenants import hear
from runlist.daemon.tasks.managed import ManagedProcess, ManagedTask, Root, SuspendedBy
from runlist.daemon.tree.adoption import Adoption
from runlist.daemon.tree.descriptors import Descriptors
from runlist.daemon.tree.memory_guard import MemoryGuard
from runlist.daemon.tree.processes import FULL, Processes
from runlist.daemon.tree.search import Search
from runlist.daemon.undo.link import KeeperLink
from runlist.errors import NoPermissionError, NoTargetError, NotSupportedError, RunlistError
from runlist.model import Appear, Task, TaskClass
from runlist.planes.interface import Borrower
from runlist.planes.process.region import Region, RegionError
from runlist.proc.borrow import OwnRight
from runlist.proc.process import descendants, owner_of
from runlist.settings.changes import Change, ControlChange, TaskChange
from runlist.settings.table import SETTINGS, Scope, memory_change, override, parse_request

_log = structlog.get_logger()

_QUEUE_LOOK_S = 0.2
_INIT = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a request: the tasks that it touched, and notes for the person who made it."""

    tasks: list[ManagedTask]
    notes: list[str] = field(default_factory=list)


class Manager:
    """The requests of users.

    Methods that take `uid` act for a user: they raise NoPermissionError for another user's process, NoTargetError for
    one that is gone or not managed, and leave everything as it was when they raise.
    `opened` is set when it is worth looking for new processes and contexts.
    """

    def __init__(
        self,
        *,
        gpus: Gpus,
        census: MemoryCensus,
        placement: Placement,
        keeper: KeeperLink,
        processes: Processes,
        adoption: Adoption,
        search: Search,
        guard: MemoryGuard,
        descriptors: Descriptors,
        opened: asyncio.Event,
    ) -> None:
        self.gpus = gpus
        self.census = census
        self.placement = placement
        self.processes = processes
        self.keeper = keeper
        self._adoption = adoption
        self._search = search
        self._guard = guard
        self.descriptors = descriptors
        self._opened = opened
        self._joining: set[asyncio.Task[None]] = set()
        self._launches: dict[int, int] = {}  # users of `runlist run` processes that wait, the longest waiting first

    # -- requests ----------------------------------------------------------------------------------

    async def attach(self, pid: int, settings: dict[str, str], wait: bool, uid: int) -> Outcome:
        """Manage a process and its descendants. Without `wait` it must have GPU work now."""
        started = time.perf_counter()
        if self.processes.is_root(pid) or pid in self.processes.managed:
            return self.change(pid, settings, uid)
        _, notes = parse_request(settings)
        self._check_owner(pid, uid)
        _check_right(settings, uid)
        if pid == _INIT and not await self._adoption.may_have_work(pid):
            raise NoTargetError(
                "process 1 has no GPU context, and every process here descends from it: attach those that have one"
            )
        root = self.processes.add_root(pid, settings)
        root.awaited = True
        try:
            self._limit_memory(root)
            await self._search.everything_of(root)
            tasks = self._tasks(self.processes.under(pid))
            if self.processes.roots.get(pid) is not root:
                raise NoTargetError(f"process {pid} ended, or was detached, while it was attached")
            if not tasks and not wait:
                raise NoTargetError(
                    f"process {pid} has no GPU context now: attach it once it has, or use --wait "
                    "(under MPS, attach the MPS server)"
                )
        except BaseException:
            self.processes.remove_root(root)
            raise
        root.awaited = False
        for task in tasks:
            task.attach_ms = (time.perf_counter() - started) * 1e3
        return Outcome(tasks, notes)

    async def launch(
        self, pid: int, settings: dict[str, str], launcher: Borrower, region_fd: int | None, uid: int
    ) -> list[str]:
        """Manage all descendants of a `runlist run` process, as they come. Returns notes once there is room for them.
        Takes the region's descriptor over.
        """
        region = None if region_fd is None else await self._region(region_fd, uid)
        try:
            _, said = parse_request(settings)
            settings = await self._room_for(pid, settings, uid)
            outer = self.processes.root_of(pid)
            root = self.processes.add_root(pid, settings, (OwnRight(), launcher), region)
        except BaseException:
            if region is not None:
                region.close()
            raise
        try:
            notes = said + self._limit_memory(root, keeps=False)
        except BaseException:
            self.processes.remove_root(root)
            raise
        if outer is not None and settings:
            notes.append(
                f"this is below process {outer.pid}, which is managed: its settings count for all below it; "
                f"change them with `runlist set {outer.pid}`"
            )
        return notes

    async def _region(self, fd: int, uid: int) -> Region:
        try:
            return await self.descriptors.region(fd, uid)
        except RegionError as error:
            raise RunlistError(f"the memory region is refused: {error}") from None

    async def _room_for(self, pid: int, settings: dict[str, str], uid: int) -> dict[str, str]:
        """Wait until there is room for a launcher's command; returns the settings for it."""
        self._check_owner(pid, uid)
        _check_right(settings, uid)
        if self.processes.is_root(pid) or pid in self._launches:
            raise RunlistError(f"process {pid} is managed already")
        if self.processes.is_full(uid, list(self._launches.values()).count(uid)):
            raise RunlistError(FULL)
        self._launches[pid] = uid
        try:
            over = self.placement.rules.limits.over
            while (reason := self._no_room()) or (over is Over.QUEUE and next(iter(self._launches)) != pid):
                if over is Over.REFUSE:
                    raise RunlistError(f"the command is not started: {reason}")
                if over is Over.BATCH:
                    return override(settings, {"class": TaskClass.BATCH})
                await asyncio.sleep(_QUEUE_LOOK_S)
                self._check_owner(pid, uid)  # it may have given up
            return settings
        finally:
            del self._launches[pid]

    def _limit_memory(self, root: Root, *, keeps: bool = True) -> list[str]:
        """Set a new root's memory limit, from its user or else from the rules; returns notes. With `keeps` the tree may
        hold something already, which it keeps.
        """
        change = memory_change(self.placement.settings_of(root.pid, root.settings).changes)
        if change is not None and "memory" in root.settings:
            _set_limit(root, root.pid, change.limit, keeps=keeps)
        elif change is not None:
            root.quota.tighten(change.limit)
        return limit_notes(root, self.census, self.gpus)

    def _no_room(self) -> str | None:
        """Why a command must wait, when every GPU is full. Commands that have no context yet count, too."""
        busy = {process.root.pid for process in self.processes.managed.values()}
        starting = sum(not root.ended and root.pid not in busy for root in self.processes.roots.values())
        reason = None
        for gpu in dict.fromkeys([*(scheduler.gpu for scheduler in self.gpus.all()), *self.census.gpus()]):
            reason = self.placement.no_room(gpu, starting)
            if reason is None:
                return None
        return reason

    def waiting(self, uid: int) -> tuple[list[str], int]:
        """The tasks and commands of a user (root: of all) that wait for room, in words, and how many others wait."""
        queued = [task.task for task in self.tasks(0) if task.queued]
        everybody = [
            (task.uid, f"process {task.key.pid} ({task.command}) on GPU {task.key.gpu}") for task in queued
        ] + [(owner, f"the command of process {pid}") for pid, owner in self._launches.items()]
        mine = [words for owner, words in everybody if uid in (0, owner)]
        return mine, len(everybody) - len(mine)

    async def launcher_gone(self, pid: int) -> None:
        """`runlist run` hung up: only our own right is left for its descendants. Where some are left it waits for this
        to return, since they lose their parent with it.
        """
        root = self.processes.roots.get(pid)
        if root is None:
            return
        root.borrowers = (OwnRight(),)
        left = (await asyncio.to_thread(descendants, [pid]))[pid][1:]
        if left and self.processes.roots.get(root.pid) is root:
            self.processes.inherit(root, left)
            self._opened.set()

    def detach(self, pid: int, uid: int) -> list[str]:
        """Put a process (a root's whole tree) back and stop managing it; returns what could not be put back."""
        processes = self._targets(pid, uid)
        troubles: list[str] = []
        for process in processes:
            process.root.excluded.add(process.pid)
            troubles += self.processes.forget(process, restore=True)
        for task in self.processes.away(pid):
            assert task.root is not None
            task.root.excluded.add(task.task.key.pid)
            del task.root.away[task.task.key]
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

    def change(self, pid: int, settings: dict[str, str], uid: int) -> Outcome:
        """Change settings of a process' tasks, and of its tree: all, or none when one is refused."""
        processes = self._targets(pid, uid)
        tasks = self._tasks(processes)
        changes, notes = parse_request(settings, *(task.task for task in tasks[:1]))
        _check_right(settings, uid)
        root = self._root(pid, processes)
        assert root is not None
        away = [(task, _changed(task.task, changes)) for task in self.processes.away(pid)]
        before = root.quota.limit
        memory = memory_change(changes)
        if memory is not None:
            _set_limit(root, pid, memory.limit)
        try:
            self._change(tasks, changes)
        except BaseException:
            if memory is not None:
                root.quota.set_limit(before)
            raise
        for managed, task in away:
            managed.task = task
            for change in changes:
                if isinstance(change, ControlChange):
                    managed.set_control(change.control, change.word, self.keeper.renew)
        of_all = [row for row in SETTINGS.values() if row.lasting and (pid == root.pid or row.changes is Scope.TREE)]
        root.settings = override(root.settings, {row.key: settings[row.key] for row in of_all if row.key in settings})
        return Outcome(tasks, notes + (limit_notes(root, self.census, self.gpus) if memory is not None else []))

    def suspend(self, pid: int, suspended: bool, uid: int) -> list[ManagedTask]:
        """Take a process' tasks off their GPUs until resumed, or resume them."""
        tasks = self._tasks(self._targets(pid, uid))
        before = {task.task.key: dict(task.suspended_by) for task in tasks}
        if not suspended:
            for task in tasks:
                self._check_resumable(task, uid)
        let_go = {SuspendedBy.USER, SuspendedBy.ROOM} if uid == 0 else {SuspendedBy.USER}
        for task in tasks:
            others = {cause: why for cause, why in task.suspended_by.items() if cause not in let_go}
            task.suspended_by = {**task.suspended_by, SuspendedBy.USER: "by its user"} if suspended else others
        off = {task.task.key for task in tasks if task.suspended_by}
        try:
            self._change(tasks, [TaskChange(lambda task: replace(task, suspended=task.key in off))])
        except BaseException:
            for task in tasks:
                task.suspended_by = before[task.task.key]
            raise
        for task in self.processes.away(pid):
            if suspended:
                task.suspend_for(SuspendedBy.USER, "by its user")
            else:
                task.let_go(SuspendedBy.USER)
        return tasks

    @staticmethod
    def _check_resumable(task: ManagedTask, uid: int) -> None:
        """Raise RunlistError for a task that its user did not suspend and may not resume."""
        pid = task.task.key.pid
        if SuspendedBy.USER in task.suspended_by:
            return
        if SuspendedBy.MEMORY in task.suspended_by:
            raise RunlistError(
                f"process {pid} is {task.suspended_by[SuspendedBy.MEMORY]}: give its tree a larger limit"
            )
        if uid != 0 and SuspendedBy.ROOM in task.suspended_by:
            raise RunlistError(f"process {pid} waits for room (`runlist policy show`): only root may resume it now")

    def wants(self, pid: int, uid: int) -> bool:
        """Whether descriptors that a process of user `uid` sends are of use."""
        return self._search.root_for(pid, uid) is not None

    def hear(self, pid: int, uid: int, message: TenantMessage, answer: Answer) -> bool:
        """Take a tenant's message; False for a process that is not managed. `answer` is called with the effect of a
        segment that begins, and again whenever it changes.
        """
        if message.kind is Kind.JOIN:
            return self._join(pid, uid, message)
        process = self.processes.managed.get(pid)
        if process is None or not process.tasks or uid not in (0, process.root.uid):
            return False
        hear({self.gpus.scheduler(gpu): managed for gpu, managed in process.tasks.items()}, message, answer)
        return True

    def _join(self, pid: int, uid: int, message: TenantMessage) -> bool:
        """Take the files that a process sent, once they were checked."""
        if self._search.root_for(pid, uid) is None:
            return False

        async def take() -> None:
            sent = await self.descriptors.joined(message.descriptors, uid)
            if sent.trouble:
                _log.warning("a memory region is refused", pid=pid, reason=sent.trouble)
            if self._adoption.take_sent(self._search.root_for(pid, uid), pid, message.nanoseconds, sent):
                self._search.has_lent(pid)

        job = asyncio.get_running_loop().create_task(take())
        self._joining.add(job)
        job.add_done_callback(self._joining.discard)
        return True

    def tasks(self, uid: int) -> list[ManagedTask]:
        """All tasks that a user may see: its own; root sees all."""
        return [
            task
            for process in self.processes.managed.values()
            if uid in (0, process.root.uid)
            for task in process.tasks.values()
        ]

    def visible(self, uid: int) -> list[ManagedTask]:
        """The same, and tasks below a root that cannot be managed."""
        outside = self._guard.outside.values()
        return self.tasks(uid) + [task for task in outside if uid in (0, task.task.uid)]

    def close(self) -> None:
        """Cancel the joins under way."""
        for job in self._joining:
            job.cancel()

    # -- targets and rights ------------------------------------------------------------------------

    def _check_owner(self, pid: int, uid: int) -> None:
        owner = owner_of(pid)
        if owner is None:
            raise NoTargetError(f"process {pid} does not exist")
        if uid not in (0, owner):
            raise NoPermissionError(f"process {pid} belongs to user {owner}: only that user and root may manage it")

    def _targets(self, pid: int, uid: int) -> list[ManagedProcess]:
        processes = self.processes.under(pid)
        root = self._root(pid, processes)
        if root is None:
            self._check_owner(pid, uid)
            raise NoTargetError(f"process {pid} is not managed: attach it first (`runlist ps` lists those that are)")
        if uid not in (0, root.uid):
            raise NoPermissionError(f"process {pid} belongs to user {root.uid}: only that user and root may manage it")
        return processes

    def _root(self, pid: int, processes: Sequence[ManagedProcess]) -> Root | None:
        """The root of what a pid names: itself, or that of its processes or of its tasks without a context."""
        named = self.processes.roots.get(pid) or next((process.root for process in processes), None)
        return named or next((task.root for task in self.processes.away(pid)), None)

    @staticmethod
    def _tasks(processes: Iterable[ManagedProcess]) -> list[ManagedTask]:
        return [task for process in processes for task in process.tasks.values()]

    # -- changing and scheduling -------------------------------------------------------------------

    def _change(self, tasks: list[ManagedTask], changes: Sequence[Change]) -> None:
        """Apply changes to all tasks, or to none where one is refused."""
        before = [(task, task.task) for task in tasks]
        undo: list[tuple[ManagedTask, str, str | None]] = []
        try:
            for task in tasks:
                task.task = _changed(task.task, changes)
                for change in changes:
                    if isinstance(change, ControlChange):
                        undo.append((task, change.control, task.controls.get(change.control)))
                        task.set_control(change.control, change.word, self.keeper.renew)
                if reason := self.gpus.scheduler(task.task.key.gpu).refusal(task.task):
                    raise RunlistError(reason)
                self.gpus.scheduler(task.task.key.gpu).tell(Appear(task.task))
            self.gpus.run({task.task.key.gpu for task in tasks}, {task.task.key for task in tasks})
        except BaseException:
            for task, old in before:
                task.task = replace(old, usage=task.task.usage)
                self.gpus.scheduler(old.key.gpu).tell(Appear(task.task))
            for task, control, word in reversed(undo):
                with contextlib.suppress(RunlistError, OSError):
                    task.set_control(control, word, self.keeper.renew)
            self.gpus.run_all()
            raise


def _changed(task: Task, changes: Sequence[Change]) -> Task:
    """A task with all changes but those of controls."""
    for change in changes:
        if isinstance(change, TaskChange):
            task = change.change(task)
    return task


def _check_right(settings: Mapping[str, str], uid: int) -> None:
    """Raise NoPermissionError for privileged settings: the daemon may have rights that this user has not."""
    kept = [key for key in settings if SETTINGS[key].privileged]
    if kept and uid not in (0, os.geteuid()):
        raise NoPermissionError(f"only root and the daemon's own user may set {', '.join(kept)}")


def _set_limit(root: Root, pid: int, limit: int | None, *, keeps: bool = True) -> None:
    try:
        root.quota.set_limit(limit, keeps=keeps)
    except NotSupportedError as error:
        raise NotSupportedError(f"process {pid}: {error}") from None
