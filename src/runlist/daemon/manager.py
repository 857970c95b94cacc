"""The daemon's heart: which processes are managed, their tasks, and every request that changes something.

All state is changed by the event loop's thread. Only discovery, which may try many handles, runs in another.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

import structlog

from runlist.daemon.apply import Failures
from runlist.daemon.keeping import Keeping
from runlist.daemon.managed import ManagedProcess, ManagedTask, Root, put_back
from runlist.daemon.scheduler import Scheduler
from runlist.daemon.settings import ContextChange, TaskChange, parse_class, parse_setting
from runlist.daemon.watch import command_of, descendants, descriptor_count, owner_of, parent_of
from runlist.errors import NoPermissionError, NoTargetError, RunlistError
from runlist.model import Task, TaskClass, TaskKey
from runlist.policies import PolicySpec, load_policy
from runlist.rm import borrow
from runlist.rm.client import RmClient
from runlist.rm.context import GpuContext
from runlist.rm.discover import ANY_REACH, NEW_REACH, Borrower, Discoverer, Found, GpuObjects, OwnRight
from runlist.rm.transport import Driver

_log = structlog.get_logger()

SETTLE_S = 1.5
"""A process that opens files may still be making a context: for so long it is looked at again and again."""


class Manager:
    """Managed processes and the schedulers of their GPUs.

    Methods that take `uid` act for a user: they raise NoPermissionError for another user's process, NoTargetError for
    one that is gone or not managed, and leave everything as it was when they raise.
    `on_hopeless` is called when nothing can be managed safely any more.
    """

    def __init__(self, driver: Driver, spec: PolicySpec, on_hopeless: Callable[[], None]) -> None:
        load_policy(spec)  # a bad policy is refused at start
        self.driver = driver
        self._discoverer = Discoverer(driver)
        self.spec = spec
        self.keeping = Keeping(driver, on_hopeless)
        self.roots: dict[int, Root] = {}
        self._processes: dict[int, ManagedProcess] = {}
        self._schedulers: dict[str, Scheduler] = {}
        self._client_owner: dict[int, int] = {}  # pid by RM client: a forked child shares its parent's open files
        self._descriptors: dict[int, tuple[int, float]] = {}  # count, and when it last changed, by pid
        self._adopting: dict[int, asyncio.Lock] = {}
        self._loop = asyncio.get_running_loop()

    # -- requests ----------------------------------------------------------------------------------

    async def attach(self, pid: int, class_name: str, wait: bool, uid: int) -> list[ManagedTask]:
        """Manage a process and its descendants. Without `wait` it must have GPU work now."""
        started = time.perf_counter()
        task_class = parse_class(class_name)
        self._check_owner(pid, uid)
        if pid in self.roots or pid in self._processes:
            return self.change(pid, {"class": class_name}, uid)
        root = self._add_root(pid, task_class, OwnRight(), launched=False)
        try:
            for member in descendants([pid])[pid]:
                await self._adopt(root, member, new_only=False)
            tasks = self._tasks(self._under(pid))
            if not tasks and not wait:
                raise NoTargetError(
                    f"process {pid} has no GPU context now: attach it once it has, or use --wait "
                    "(under MPS, attach the MPS server)"
                )
        except BaseException:
            self._remove_root(root)
            raise
        for task in tasks:
            task.attach_ms = (time.perf_counter() - started) * 1e3
        return tasks

    def launch(self, pid: int, class_name: str, borrower: Borrower, uid: int) -> None:
        """Manage all descendants of a `runlist run` process, as they come."""
        task_class = parse_class(class_name)
        self._check_owner(pid, uid)
        if pid in self.roots:
            raise RunlistError(f"process {pid} is managed already")
        self._add_root(pid, task_class, borrower, launched=True)

    def launcher_gone(self, pid: int) -> None:
        """`runlist run` hung up: from here on only our own right is left for its descendants."""
        if pid in self.roots:
            self.roots[pid].borrower = OwnRight()

    def detach(self, pid: int, uid: int) -> list[str]:
        """Put a process (a root's whole tree) back and stop managing it; returns what could not be put back."""
        processes = self._targets(pid, uid)
        troubles: list[str] = []
        for process in processes:
            process.root.excluded.add(process.pid)
            troubles += self._forget(process, restore=True)
        if pid in self.roots:
            self._remove_root(self.roots[pid])
        self._run_all()
        return troubles

    def release(self, uid: int) -> list[str]:
        """Detach everything of a user; root's release is everybody's."""
        mine = [root for root in self.roots.values() if uid in (0, root.uid)]
        troubles = [trouble for root in mine for trouble in self._remove_root(root)]
        self._run_all()
        return troubles

    def change(self, pid: int, settings: dict[str, str], uid: int) -> list[ManagedTask]:
        """Change settings of a process' tasks: all, or none when one is refused."""
        changes = [parse_setting(key, value) for key, value in settings.items()]
        tasks = self._tasks(self._targets(pid, uid))
        self._change(tasks, changes)
        if "class" in settings and pid in self.roots:
            self.roots[pid].task_class = parse_class(settings["class"])
        return tasks

    def suspend(self, pid: int, suspended: bool, uid: int) -> list[ManagedTask]:
        """Take a process' tasks off their GPUs until resumed, or resume them."""
        tasks = self._tasks(self._targets(pid, uid))
        self._change(tasks, [TaskChange(lambda task: replace(task, suspended=suspended))])
        return tasks

    def use_policy(self, spec: PolicySpec) -> None:
        """Switch every GPU to a policy, unless it refuses a task that is there."""
        load_policy(spec)
        fresh = {gpu: load_policy(spec) for gpu in self._schedulers}
        for gpu, scheduler in self._schedulers.items():
            for managed in scheduler.tasks.values():
                if reason := scheduler.refusal(managed.task, fresh[gpu]):
                    raise RunlistError(f"{reason} (nothing changed)")
        self.spec = spec
        for gpu, scheduler in self._schedulers.items():
            scheduler.use(spec, fresh[gpu])
            self._drop_failed(scheduler.run())

    def tasks(self, uid: int) -> list[ManagedTask]:
        """All tasks that a user may see: its own; root sees all."""
        return [
            task
            for process in self._processes.values()
            if uid in (0, process.root.uid)
            for task in process.tasks.values()
        ]

    def policy_of(self, gpu: str) -> str:
        """Name of the policy in force on a GPU."""
        return self._schedulers[gpu].policy_name if gpu in self._schedulers else self.spec.name

    def close(self) -> None:
        """Put everything back and end the keeper."""
        for root in list(self.roots.values()):
            self._remove_root(root)
        for scheduler in self._schedulers.values():
            scheduler.close()
        self.keeping.close()
        self._discoverer.close()

    # -- looking again -----------------------------------------------------------------------------

    async def scan(self) -> None:
        """Look for new processes and contexts under every root: in processes whose open files changed a moment ago."""
        roots = dict(self.roots)
        for root_pid, tree in descendants(roots).items():
            root = roots[root_pid]
            for pid in tree:
                if pid in root.excluded or self.roots.get(root_pid) is not root:
                    continue
                if pid in (os.getpid(), self.keeping.pid) or not self._changed_lately(pid):
                    continue
                try:
                    await self._adopt(root, pid, new_only=True)
                except (RunlistError, OSError) as error:
                    _log.warning("a process is left to the driver's own scheduling", pid=pid, reason=str(error))
        for gone in [pid for pid in self._descriptors if descriptor_count(pid) < 0]:
            del self._descriptors[gone]

    def _changed_lately(self, pid: int) -> bool:
        """Whether a process opened or closed something since, or shortly before, the last look."""
        count, now = descriptor_count(pid), time.monotonic()
        known, changed_at = self._descriptors.get(pid, (None, 0.0))
        if count != known:
            changed_at = now
            self._descriptors[pid] = (count, now)
        return count >= 0 and now - changed_at <= SETTLE_S

    def check(self, slices: bool) -> None:
        """Notice processes that closed or exec'ed away from their files, and (`slices`) tasks that changed their own
        slice.
        """
        for process in list(self._processes.values()):
            for fd in process.lost_files():
                self._drop_file(process, fd)
            if slices:
                for task in list(process.tasks.values()):
                    self._correct(process, task)

    def _correct(self, process: ManagedProcess, task: ManagedTask) -> None:
        wanted = task.share.timeslice_us
        try:
            wrong = any(context.wrong_timeslices(wanted) for context in task.contexts.values())
            if wrong:
                task.corrections += 1
                _log.info("a task had changed its own slice; put back", pid=process.pid, gpu=task.task.key.gpu)
                task.set_timeslice(wanted)
            self._drop_empty(process, task)
        except (RunlistError, OSError) as error:
            _log.warning("a task cannot be controlled any more; released", pid=process.pid, reason=str(error))
            self._forget(process, restore=True)

    def _drop_empty(self, process: ManagedProcess, task: ManagedTask) -> None:
        """Forget the contexts that a process closed, and its task when none is left."""
        for key in task.drop_empty():
            self.keeping.unguard(key)
        if not task.contexts:
            del process.tasks[task.task.key.gpu]
            self._remove_task(task)
            if not process.tasks:
                self._forget(process, restore=False)
            self._run_all()

    # -- processes ---------------------------------------------------------------------------------

    def _add_root(self, pid: int, task_class: TaskClass, borrower: Borrower, *, launched: bool) -> Root:
        pidfd = borrow.open_process(pid)
        root = Root(pid, pidfd, owner_of(pid) or 0, task_class, borrower, launched)
        self.roots[pid] = root
        self._loop.add_reader(pidfd, self._root_ended, root)
        return root

    def _root_ended(self, root: Root) -> None:
        """Its descendants stay managed as long as they live; new ones are no longer found."""
        self._loop.remove_reader(root.pidfd)
        root.ended = True
        if not any(process.root is root for process in self._processes.values()):
            self._remove_root(root)

    def _remove_root(self, root: Root) -> list[str]:
        troubles: list[str] = []
        if self.roots.get(root.pid) is root:
            del self.roots[root.pid]
            for process in [process for process in self._processes.values() if process.root is root]:
                troubles += self._forget(process, restore=True)
            self._loop.remove_reader(root.pidfd)
            os.close(root.pidfd)
        return troubles

    async def _adopt(self, root: Root, pid: int, *, new_only: bool) -> None:
        """Find what a process has on the GPU, and manage what is new. All or nothing."""
        async with self._adopting.setdefault(pid, asyncio.Lock()):
            if new_only and pid not in self._processes and not any(True for _ in self._control_files(pid)):
                return
            if root.uid not in (0, owner_of(pid)):  # a descendant that runs as another user
                return
            started = time.perf_counter()
            pidfd = borrow.open_process(pid)
            try:
                found = await asyncio.to_thread(
                    self._discoverer.discover, pid, pidfd, root.borrower, NEW_REACH if new_only else ANY_REACH
                )
                discovery_ms = (time.perf_counter() - started) * 1e3
                process = self._processes.get(pid)
                if process is None and found and root.pid in self.roots:
                    process = ManagedProcess(pid, os.dup(pidfd), root)
                if process is None:
                    _close_all(found)
                    return
                self._merge(process, found, discovery_ms)
            finally:
                os.close(pidfd)
        self._adopting.pop(pid, None)

    def _control_files(self, pid: int) -> Iterable[int]:
        with contextlib.suppress(OSError):
            yield from self.driver.control_files(pid)

    def _merge(self, process: ManagedProcess, found: list[Found], discovery_ms: float) -> None:
        """Manage the groups that are new. On failure they are put back, and a process without others is forgotten."""
        added: list[tuple[ManagedTask, int]] = []
        taken: set[int] = set()
        try:
            for client in found:
                if self._shared(process.pid, client):
                    continue
                known = process.groups_known(client.fd, client.client)
                file = process.files.setdefault(client.fd, client.file)
                taken.add(id(file))
                for gpu in client.gpus:
                    groups = tuple(group for group in gpu.groups if group.handle not in known)
                    if groups:
                        objects = GpuObjects(gpu.gpu, gpu.subdevice, groups)
                        added.append(
                            self._add_context(process, GpuContext(RmClient(file, client.client), objects), discovery_ms)
                        )
            if process.tasks:
                self._register(process)
            gpus = {task.task.key.gpu for task, _ in added}
            self._run(gpus, {task.task.key for task, _ in added})
        except BaseException:
            for task, key in added:
                put_back(task.contexts.pop(key))
                self.keeping.unguard(key)
            for empty in [gpu for gpu, task in process.tasks.items() if not task.contexts]:
                self._remove_task(process.tasks.pop(empty))
            if not process.tasks:
                self._forget(process, restore=False)
            raise
        finally:
            _close_all(client for client in found if id(client.file) not in taken)
            if not process.tasks and process.pid not in self._processes:
                process.close()

    def _shared(self, pid: int, client: Found) -> bool:
        """Whether a client came to a process through fork: its owner manages it, or would."""
        owner = self._client_owner.get(client.client)
        if owner is None:
            parent = parent_of(pid)
            if parent is not None and borrow.still_holds(parent, client.fd, client.file.fileno()):
                return True
            owner = self._client_owner[client.client] = pid
        return owner != pid

    def _add_context(
        self, process: ManagedProcess, context: GpuContext, discovery_ms: float
    ) -> tuple[ManagedTask, int]:
        """Guard a context, then bring it to the share of its task."""
        key = self.keeping.guard(process.pid, context)
        task = process.tasks.get(context.gpu)
        if task is None:
            task = ManagedTask(
                Task(
                    key=TaskKey(process.pid, context.gpu),
                    task_class=process.root.task_class,
                    command=command_of(process.pid),
                    uid=process.root.uid,
                    since=time.monotonic(),
                ),
                discovery_ms=discovery_ms,
                attach_ms=discovery_ms,
            )
            process.tasks[context.gpu] = task
        task.contexts[key] = context
        if task.share.timeslice_us is not None:
            context.set_timeslice(task.share.timeslice_us)
        if not task.share.enabled:
            context.suspend()
        return task, key

    def _register(self, process: ManagedProcess) -> None:
        """Enter a process and its tasks where they are looked up, unless a policy refuses one of them."""
        for gpu, task in process.tasks.items():
            scheduler = self._scheduler(gpu)
            if task.task.key not in scheduler.tasks:
                if reason := scheduler.refusal(task.task):
                    raise RunlistError(f"process {process.pid} is not managed: {reason}")
                scheduler.tasks[task.task.key] = task
        if process.pid not in self._processes:
            self._processes[process.pid] = process
            self._loop.add_reader(process.pidfd, self._process_ended, process)

    def _process_ended(self, process: ManagedProcess) -> None:
        self._forget(process, restore=False)
        self._run_all()

    def _forget(self, process: ManagedProcess, *, restore: bool) -> list[str]:
        """Stop managing a process. With `restore`, put back what was changed."""
        troubles = process.put_back() if restore else []
        for task in process.tasks.values():
            for key in task.contexts:
                self.keeping.unguard(key)
            self._remove_task(task)
        process.tasks.clear()
        self._client_owner = {client: pid for client, pid in self._client_owner.items() if pid != process.pid}
        if self._processes.pop(process.pid, None) is process:
            self._loop.remove_reader(process.pidfd)
            process.close()
            root = process.root
            if root.ended and not any(other.root is root for other in self._processes.values()):
                self._remove_root(root)
        return troubles

    def _drop_file(self, process: ManagedProcess, fd: int) -> None:
        tasks = dict(process.tasks)
        for key in process.drop_file(fd):
            self.keeping.unguard(key)
        for gpu, task in tasks.items():
            if gpu not in process.tasks:
                self._remove_task(task)
        if not process.tasks:
            self._forget(process, restore=False)
        self._run_all()

    def _remove_task(self, task: ManagedTask) -> None:
        scheduler = self._schedulers.get(task.task.key.gpu)
        if scheduler is not None:
            scheduler.tasks.pop(task.task.key, None)

    # -- targets and rights ------------------------------------------------------------------------

    def _check_owner(self, pid: int, uid: int) -> None:
        owner = owner_of(pid)
        if owner is None:
            raise NoTargetError(f"process {pid} does not exist")
        if uid not in (0, owner):
            raise NoPermissionError(f"process {pid} belongs to user {owner}: only that user and root may manage it")

    def _under(self, pid: int) -> list[ManagedProcess]:
        root = self.roots.get(pid)
        if root is not None:
            return [process for process in self._processes.values() if process.root is root]
        return [self._processes[pid]] if pid in self._processes else []

    def _targets(self, pid: int, uid: int) -> list[ManagedProcess]:
        processes = self._under(pid)
        root = self.roots.get(pid) or (processes[0].root if processes else None)
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
                if reason := self._scheduler(task.task.key.gpu).refusal(task.task):
                    raise RunlistError(reason)
            self._run({task.task.key.gpu for task in tasks}, {task.task.key for task in tasks})
        except BaseException:
            for task, old in before:
                task.task = old
            for task, change, value in reversed(undo):
                with contextlib.suppress(RunlistError, OSError):
                    self._set_context(task, change, value)
            self._run_all()
            raise

    def _set_context(self, task: ManagedTask, change: ContextChange, value: str) -> None:
        for key, context in task.contexts.items():
            if context.will_touch(change.setting):
                self.keeping.renew(key)
            change.act(context, value)
        task.settings[change.setting] = value

    def _scheduler(self, gpu: str) -> Scheduler:
        if gpu not in self._schedulers:
            self._schedulers[gpu] = Scheduler(gpu, self.spec, self._drop_failed)
        return self._schedulers[gpu]

    def _run(self, gpus: Iterable[str], asked_for: set[TaskKey]) -> None:
        """Reschedule GPUs. A failure of a task that the request is about is raised; other tasks that failed are
        released.
        """
        failures: Failures = {}
        for gpu in gpus:
            failures.update(self._scheduler(gpu).run())
        mine = [error for key, error in failures.items() if key in asked_for]
        self._drop_failed({key: error for key, error in failures.items() if key not in asked_for})
        if mine:
            raise mine[0]

    def _run_all(self) -> None:
        for scheduler in self._schedulers.values():
            self._drop_failed(scheduler.run())

    def _drop_failed(self, failures: Failures) -> None:
        for key, error in failures.items():
            process = self._processes.get(key.pid)
            if process is not None:
                _log.warning(
                    "a task cannot be controlled any more; released", pid=key.pid, gpu=key.gpu, reason=str(error)
                )
                self._forget(process, restore=True)
                self._run_all()  # without it, the others may get what was not safe beside it


def _close_all(found: Iterable[Found]) -> None:
    for file in {id(client.file): client.file for client in found}.values():
        file.close()
