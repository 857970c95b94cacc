"""The requests of users that change something, checked against their rights.

The event loop's thread changes all state.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from weakref import WeakValueDictionary

import msgspec
import structlog

from runlist.daemon.gpu.gpus import Gpus
from runlist.daemon.kernel.link import KernelLink
from runlist.daemon.memory.census import MemoryCensus
from runlist.daemon.placement.placement import Placement, some
from runlist.daemon.requests.joined import Joined
from runlist.daemon.requests.launches import Launches
from runlist.daemon.requests.memory_limits import limit_memory, limit_notes, set_limit
from runlist.daemon.requests.messages import Answer, Kind, TenantMessage
from runlist.daemon.requests.rights import check_owner, check_right
from runlist.daemon.requests.tenants import hear
from runlist.daemon.requests.together import by, check_alone, check_others, is_by_its_user
from runlist.daemon.tasks.managed import Asked, ManagedProcess, ManagedTask, Root, SuspendedBy
from runlist.daemon.tree.adoption import Adoption
from runlist.daemon.tree.changed_users import ChangedUsers
from runlist.daemon.tree.descriptors import Descriptors
from runlist.daemon.tree.memory_guard import MemoryGuard
from runlist.daemon.tree.processes import Processes
from runlist.daemon.tree.revision import Revision
from runlist.daemon.tree.search import Search
from runlist.daemon.undo.link import KeeperLink
from runlist.errors import NoPermissionError, NoTargetError, RunlistError
from runlist.model import Appear
from runlist.proc.owners import user_behind
from runlist.proc.process import Program, start_of
from runlist.settings.changes import Change, ControlChange, TaskChange
from runlist.settings.table import SETTINGS, Scope, apply_changes, memory_change, override, parse_request

_log = structlog.get_logger()

_INIT = 1
_NO_CONTEXT = (
    "process {pid} has no GPU context now: attach it once it has, or use --wait (under MPS, attach the MPS server)"
)


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of a request: the tasks that it touched, and notes for the person who made it."""

    tasks: list[ManagedTask]
    notes: list[str] = []


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
        revision: Revision,
        kernel: KernelLink,
        changed_users: ChangedUsers,
    ) -> None:
        self.kernel = kernel
        self.gpus = gpus
        self.census = census
        self.placement = placement
        self._changed_users = changed_users
        self.processes = processes
        self.keeper = keeper
        self._adoption = adoption
        self.search = search
        self._guard = guard
        self.descriptors = descriptors
        self.reload_rules = revision.reload
        self._attaching: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        self._joining: set[asyncio.Task[None]] = set()
        self._joined = Joined()
        self.launches = Launches(gpus, census, placement, processes, descriptors, opened, search.look_at_once)

    # -- requests ----------------------------------------------------------------------------------

    async def attach(self, pid: int, settings: dict[str, str], wait: bool, uid: int) -> Outcome:
        """Manage a process and its descendants. Without `wait` it must have GPU work now. Requests for the same process
        are met one after the other: each is told what became of the one before.
        """
        began = start_of(pid)
        async with self._attaching.setdefault(pid, asyncio.Lock()):
            return await self._attach(pid, settings, wait, uid, began)

    async def _attach(self, pid: int, settings: dict[str, str], wait: bool, uid: int, began: int | None) -> Outcome:
        started = time.perf_counter()
        if self.processes.is_root(pid) or pid in self.processes.managed:
            return self.change(pid, settings, uid)
        _, notes = parse_request(settings)
        check_owner(pid, uid)
        check_right(settings, uid)
        await self.processes.find_ancestors(pid)
        outer = self.processes.root_of(pid)
        if outer is not None and pid not in outer.excluded and uid in (0, outer.uid) and "memory" not in settings:
            return Outcome(await self._attach_within(outer, pid, settings, wait, uid), notes)
        if pid == _INIT and not await self._adoption.may_have_work(pid):
            raise NoTargetError(
                "process 1 has no GPU context, and every process here descends from it: attach those that have one"
            )
        root = self.processes.add_root(pid, settings, asked_by=uid, began=began)
        root.awaited = True
        try:
            limit_memory(root, self.placement)
            await self.search.everything_of(root)
            tasks = self._tasks(self.processes.under(pid))
            if self.processes.roots.get(pid) is not root:
                raise NoTargetError(f"process {pid} ended, or was detached, while it was attached")
            if not tasks and not wait:
                raise NoTargetError(_NO_CONTEXT.format(pid=pid))
        except BaseException:
            self.processes.remove_root(root)
            raise
        root.awaited = False
        for task in tasks:
            task.attach_ms = (time.perf_counter() - started) * 1e3
        return Outcome(tasks, notes)

    async def _attach_within(
        self, outer: Root, pid: int, settings: dict[str, str], wait: bool, uid: int
    ) -> list[ManagedTask]:
        """Give a process of a managed tree, and its descendants, settings of their own. It stays in that tree: its
        memory is limited, and its library heard, there.
        """
        before, mine = outer.asked_of.get(pid), Asked(Program.of(pid), settings)
        outer.forget_some()
        outer.asked_of[pid] = mine
        try:
            below = await self.search.everything_below(outer, pid)
            if not below and not wait:
                raise NoTargetError(_NO_CONTEXT.format(pid=pid))
            outcomes = [self.change(each, settings, uid) for each in below]
        except BaseException:
            if outer.asked_of.get(pid) is mine:  # else it was detached meanwhile
                del outer.asked_of[pid]
                if before is not None:
                    outer.asked_of[pid] = before
            raise
        return [task for one in outcomes for task in one.tasks]

    def rule_troubles(self) -> list[str]:
        """What is wrong with files of rules, and which are not in force. That a setting was lowered to a bound is none:
        whoever may write annotations asks for what they like.
        """
        unfit = dict.fromkeys(task.unfit for task in self.tasks(0) if task.unfit)
        return some([*self.placement.troubles(), *unfit])

    def detach(self, pid: int, uid: int) -> list[str]:
        """Put a process (a root's whole tree) back and stop managing it; returns what could not be put back."""
        processes, named = self._targets(pid, uid, acts=False), self.processes.named(pid)
        for task in (*self._tasks(processes), *self.processes.away(pid)):
            _check_may_go(task, uid)
        if (root := self.processes.asked(pid)) is not None:
            del root.asked_of[pid]
            if not processes and not self.processes.away(pid):
                return []
        self.search.leave_alone([pid, *(process.pid for process in processes)])
        troubles: list[str] = []
        for process in processes:
            process.root.excluded.add(process.pid)
            troubles += self.processes.forget(process, restore=True)
        for task in self.processes.away(pid):
            assert task.root is not None
            task.root.excluded.add(task.task.key.pid)
            del task.root.away[task.task.key]
        if named is not None:
            self.processes.remove_root(named)
        self.gpus.run_all()
        return troubles

    def release(self, uid: int) -> list[str]:
        """Detach everything of a user; root's release is everybody's."""
        mine, stay = [], []
        for root in self.processes.roots.values():
            if uid in (0, root.uid):
                try:
                    for task in (*self._tasks(self.processes.under(root.pid)), *self.processes.away(root.pid)):
                        _check_may_go(task, uid)
                    mine.append(root)
                except NoPermissionError as error:
                    stay.append(str(error))
        self.search.leave_alone([process.pid for root in mine for process in self.processes.under(root.pid)])
        troubles = [trouble for root in mine for trouble in self.processes.remove_root(root)]
        self.gpus.run_all()
        return troubles + stay

    def change(self, pid: int, settings: dict[str, str], uid: int) -> Outcome:
        """Change settings of a process' tasks, and of its tree: all, or none when one is refused."""
        processes = self._targets(pid, uid)
        tasks = self._tasks(processes)
        changes, notes = parse_request(settings, *(task.task for task in tasks[:1]))
        check_right(settings, uid)
        root = self._root(pid, processes)
        assert root is not None
        away = [(task, apply_changes(changes, task.task)) for task in self.processes.away(pid)]
        before = root.quota.limit
        memory = memory_change(changes)
        if memory is not None:
            set_limit(root, pid, memory.limit)
        try:
            self.apply(tasks, changes)
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
        root.by_rule = False  # from here on it is what its user asked for, too
        lasting = {key: value for key, value in settings.items() if SETTINGS[key].lasting}
        if (asked := root.asked_of.get(pid)) is not None:
            root.asked_of[pid] = msgspec.structs.replace(asked, settings=override(asked.settings, lasting))
        for managed in (*tasks, *(managed for managed, _ in away)):
            managed.asked = override(managed.asked, lasting)
            for own in root.owns_of(managed.task.key.pid):
                own.let_go(lasting)
        if "group" in settings:
            self.placement.group_changed([*tasks, *(managed for managed, _ in away)])
        notes += weight_notes(settings, tasks)
        return Outcome(tasks, notes + (limit_notes(root, self.census, self.gpus) if memory is not None else []))

    def suspend(self, pid: int, suspended: bool, uid: int) -> list[ManagedTask]:
        """Take a process' tasks off their GPUs until resumed, or resume them."""
        tasks = self._tasks(self._targets(pid, uid))
        before = {task.task.key: dict(task.suspended_by) for task in tasks}
        for task in tasks:
            if suspended:
                check_alone(task, self.gpus.scheduler(task.task.key.gpu), self.census, uid)
            else:
                self._check_resumable(task, uid)
        let_go = {SuspendedBy.USER, *({SuspendedBy.ROOM, SuspendedBy.POLICY} if uid == 0 else ())}
        for task in tasks:
            others = {cause: why for cause, why in task.suspended_by.items() if cause not in let_go}
            task.suspended_by = {**task.suspended_by, SuspendedBy.USER: by(task, uid)} if suspended else others
        off = {task.task.key for task in tasks if task.suspended_by}
        try:
            self.apply(tasks, [TaskChange(lambda task: replace(task, suspended=task.key in off))])
        except BaseException:
            for task in tasks:
                task.suspended_by = before[task.task.key]
            raise
        for task in self.processes.away(pid):
            if suspended:
                task.suspend_for(SuspendedBy.USER, by(task, uid))
            else:
                task.let_go(SuspendedBy.USER)
        return tasks

    def look_who_joined(self) -> None:
        """Resume the clients of MPS that their users suspended before another user's came to their server."""
        resumed = set()
        for task in filter(is_by_its_user, self.processes.tasks()):
            assert task.root is not None
            gpu = task.task.key.gpu
            try:
                check_others(task, self.gpus.scheduler(gpu).fellows(task.task), task.root.uid)
            except NoPermissionError as error:
                _log.info("a client of MPS is not suspended any more", pid=task.task.key.pid, reason=str(error))
                task.let_go(SuspendedBy.USER)
                resumed.add(gpu)
        self.gpus.run(resumed, set())

    def look_who_is_left(self) -> None:
        """Look at those who shared a client with a process that has ended."""
        for pid in self._adoption.left():
            self.search.look_anew(pid)

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
        if uid != 0 and (causes := task.suspended_by.keys() & {SuspendedBy.ROOM, SuspendedBy.POLICY}):
            why = "is suspended by rules" if SuspendedBy.POLICY in causes else "waits for room"
            raise RunlistError(f"process {pid} {why} (`runlist policy show`): only root may resume it now")

    def wants(self, pid: int, uid: int) -> bool:
        """Whether descriptors that a process of user `uid` sends are of use."""
        return self.search.root_for(pid, uid) is not None

    def hear(self, pid: int, uid: int, message: TenantMessage, answer: Answer) -> bool:
        """Take a tenant's message; False for a process that is not managed. `answer` is called with the effect of a
        segment that begins, and again whenever it changes.
        """
        if message.kind is Kind.JOIN:
            return self._join(pid, uid, message)
        process = self.processes.managed.get(pid)
        if process is None or not process.tasks or (process.root.uid not in (uid, user_behind(uid)) and uid != 0):
            return False
        hear({self.gpus.scheduler(gpu): managed for gpu, managed in process.tasks.items()}, message, answer)
        return True

    def _join(self, pid: int, uid: int, message: TenantMessage) -> bool:
        """Take the files that a process sent, once they were checked."""
        if self.search.root_for(pid, uid) is None:
            return False

        async def take() -> None:
            sent = await self.descriptors.joined(message.descriptors, uid)
            if sent.trouble:
                _log.warning("a memory region is refused", pid=pid, reason=sent.trouble)
            root = self.search.root_for(pid, uid)
            if self._adoption.take_sent(root, pid, message.nanoseconds, sent):
                self.search.look_anew(pid)
            computes = self._joined.computes(pid, message.nanoseconds)
            if root is not None and computes and not (self.kernel.works or pid in self.processes.managed):
                await self.search.look_at_once(root, [pid])

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

    def _targets(self, pid: int, uid: int, *, acts: bool = True) -> list[ManagedProcess]:
        """The processes that a pid names, which a user may manage; with `acts` one that is still that user's."""
        if uid:
            self._changed_users.let_go(self.processes.under(pid))
        processes = self.processes.under(pid)
        root = self._root(pid, processes)
        if root is None:
            check_owner(pid, uid)
            raise NoTargetError(f"process {pid} is not managed: attach it first (`runlist ps` lists those that are)")
        if uid not in (0, root.uid):
            raise NoPermissionError(f"process {pid} belongs to user {root.uid}: only that user and root may manage it")
        if acts and root.pid == pid and root.is_anothers:
            raise NoTargetError(f"process {pid} is another user's now: detach it")
        return processes

    def _root(self, pid: int, processes: Sequence[ManagedProcess]) -> Root | None:
        """The root of what a pid names: itself, or that of its processes, of its tasks without a context, or of what
        was asked for it before it had one.
        """
        named = self.processes.named(pid) or next((process.root for process in processes), None)
        return named or next((task.root for task in self.processes.away(pid)), None) or self.processes.asked(pid)

    @staticmethod
    def _tasks(processes: Iterable[ManagedProcess]) -> list[ManagedTask]:
        return [task for process in processes for task in process.tasks.values()]

    # -- changing and scheduling -------------------------------------------------------------------

    def apply(self, tasks: list[ManagedTask], changes: Sequence[Change]) -> None:
        """Apply changes to all tasks, or to none where one is refused."""
        before = [(task, task.task) for task in tasks]
        undo: list[tuple[ManagedTask, str, str | None]] = []
        try:
            for task, old in before:
                task.task = apply_changes(changes, task.task)
                for change in changes:
                    if isinstance(change, ControlChange):
                        undo.append((task, change.control, task.controls.get(change.control)))
                        task.set_control(change.control, change.word, self.keeper.renew)
                if reason := self.gpus.scheduler(task.task.key.gpu).refusal(task.task):
                    raise RunlistError(reason)
                asked = (task.task.task_class, task.task.deadline) != (old.task_class, old.deadline)
                if asked and (reason := self.placement.beyond_ration(task.task)):
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


def weight_notes(settings: dict[str, str], tasks: Sequence[ManagedTask]) -> list[str]:
    """What a weight comes to beside tasks of others, for who asked for more than that."""
    most = next((managed.task.most_weight for managed in tasks), None)
    if most is None or "weight" not in settings or tasks[0].task.weight <= most:
        return []
    return [f"beside tasks of other users, yours weigh {most} together beyond what rules give them"]


def _check_may_go(task: ManagedTask, uid: int) -> None:
    """Raise NoPermissionError for a task that rules keep off its GPU: else to be managed no more would be the way round
    them. Whoever named a process that no rule does may take that back.
    """
    if uid == 0:
        return
    forbidden, waits = (cause in task.suspended_by for cause in (SuspendedBy.POLICY, SuspendedBy.ROOM))
    if forbidden or (waits and task.rule):
        why = "is suspended by rules" if forbidden else f"waits for room, and has the rule {task.rule}"
        raise NoPermissionError(
            f"process {task.task.key.pid} {why} (`runlist policy show`): only root may detach it now"
        )
