"""Managed processes: found below the roots that users named, adopted, checked on, and forgotten.

All state is changed by the event loop's thread. Only discovery, which may try many handles, runs in another.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass

import structlog

from runlist.daemon.gpus import Gpus
from runlist.daemon.guard import TINY_US
from runlist.daemon.keeping import Keeping
from runlist.daemon.managed import ManagedProcess, ManagedTask, Root, put_back
from runlist.daemon.watch import command_of, descendants, descriptor_count, owner_of, parent_of
from runlist.errors import RunlistError
from runlist.model import Task, TaskClass, TaskKey
from runlist.rm import borrow
from runlist.rm.client import RmClient
from runlist.rm.context import GpuContext
from runlist.rm.discover import ANY_REACH, NEW_REACH, Borrower, Discoverer, Found, GpuObjects
from runlist.rm.transport import Driver

_log = structlog.get_logger()

QUIET_S = 0.05
"""A process whose number of open files has not changed for so long is not making a context now."""

SETTLE_S = 1.5
"""How long to go on looking after the GPU was opened, and how long to wait for a process that never is quiet."""


@dataclass
class _Descriptors:
    """How many descriptors a process has, since when, and since when that is news."""

    count: int
    changed_at: float
    unseen_since: float | None


class Processes:
    """Roots, and the processes below them that have GPU work."""

    def __init__(self, driver: Driver, gpus: Gpus, keeping: Keeping) -> None:
        self.roots: dict[int, Root] = {}
        self.managed: dict[int, ManagedProcess] = {}
        self._driver = driver
        self._discoverer = Discoverer(driver)
        self._gpus = gpus
        self._keeping = keeping
        self._client_owner: dict[int, int] = {}  # pid by RM client: a forked child shares its parent's open files
        self._descriptors: dict[int, _Descriptors] = {}  # by pid
        self._adopting: dict[int, asyncio.Lock] = {}
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        """Put everything back."""
        for root in list(self.roots.values()):
            self.remove_root(root)
        self._discoverer.close()

    def under(self, pid: int) -> list[ManagedProcess]:
        """A root's processes, or the one process of that id, or none."""
        root = self.roots.get(pid)
        if root is not None:
            return [process for process in self.managed.values() if process.root is root]
        return [self.managed[pid]] if pid in self.managed else []

    # -- roots and processes -----------------------------------------------------------------------

    def add_root(self, pid: int, task_class: TaskClass, borrower: Borrower, *, launched: bool) -> Root:
        pidfd = borrow.open_process(pid)
        root = Root(pid, pidfd, owner_of(pid) or 0, task_class, borrower, launched)
        self.roots[pid] = root
        self._loop.add_reader(pidfd, self._root_ended, root)
        return root

    def _root_ended(self, root: Root) -> None:
        """Its descendants stay managed as long as they live; new ones are no longer found."""
        self._loop.remove_reader(root.pidfd)
        root.ended = True
        if not any(process.root is root for process in self.managed.values()):
            self.remove_root(root)

    def remove_root(self, root: Root) -> list[str]:
        troubles: list[str] = []
        if self.roots.get(root.pid) is root:
            del self.roots[root.pid]
            for process in [process for process in self.managed.values() if process.root is root]:
                troubles += self.forget(process, restore=True)
            self._loop.remove_reader(root.pidfd)
            os.close(root.pidfd)
        return troubles

    async def adopt(self, root: Root, pid: int, *, new_only: bool) -> None:
        """Find what a process has on the GPU, and manage what is new. All or nothing."""
        async with self._adopting.setdefault(pid, asyncio.Lock()):
            if new_only and pid not in self.managed and not any(True for _ in self._control_files(pid)):
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
                process = self.managed.get(pid)
                if process is None and found and root.pid in self.roots:
                    process = ManagedProcess(pid, os.dup(pidfd), root)
                if process is None:
                    _close_all(found)
                    return
                self._merge(process, found, discovery_ms, time.monotonic() + SETTLE_S if new_only else 0.0)
            finally:
                os.close(pidfd)
        self._adopting.pop(pid, None)

    def _control_files(self, pid: int) -> Iterable[int]:
        with contextlib.suppress(OSError):
            yield from self._driver.control_files(pid)

    def _merge(self, process: ManagedProcess, found: list[Found], discovery_ms: float, settles_at: float) -> None:
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
            for task, _ in added:
                task.settles_at = settles_at
            gpus = {task.task.key.gpu for task, _ in added}
            self._gpus.run(gpus, {task.task.key for task, _ in added})
        except BaseException:
            for task, key in added:
                put_back(task.contexts.pop(key))
                self._keeping.unguard(key)
            for empty in [gpu for gpu, task in process.tasks.items() if not task.contexts]:
                self._gpus.remove(process.tasks.pop(empty))
            if not process.tasks:
                self.forget(process, restore=False)
            raise
        finally:
            _close_all(client for client in found if id(client.file) not in taken)
            if not process.tasks and process.pid not in self.managed:
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
        key = self._keeping.guard(process.pid, context)
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
        task.recount()
        if task.task.compute_groups == 1 or task.slice_us(task.share) >= TINY_US:  # else the guard gives both another
            context.set_timeslice(task.share.timeslice_us)
        if not task.share.enabled:
            context.suspend()
        return task, key

    def _register(self, process: ManagedProcess) -> None:
        """Enter a process and its tasks where they are looked up, unless a policy refuses one of them."""
        for gpu, task in process.tasks.items():
            scheduler = self._gpus.scheduler(gpu)
            if task.task.key not in scheduler.tasks:
                if reason := scheduler.refusal(task.task):
                    raise RunlistError(f"process {process.pid} is not managed: {reason}")
                scheduler.tasks[task.task.key] = task
        if process.pid not in self.managed:
            self.managed[process.pid] = process
            self._loop.add_reader(process.pidfd, self._process_ended, process)

    def _process_ended(self, process: ManagedProcess) -> None:
        self.forget(process, restore=False)
        self._gpus.run_all()

    def forget(self, process: ManagedProcess, *, restore: bool) -> list[str]:
        """Stop managing a process. With `restore`, put back what was changed."""
        troubles = process.put_back() if restore else []
        for task in process.tasks.values():
            for key in task.contexts:
                self._keeping.unguard(key)
            self._gpus.remove(task)
        process.tasks.clear()
        self._client_owner = {client: pid for client, pid in self._client_owner.items() if pid != process.pid}
        if self.managed.pop(process.pid, None) is process:
            self._loop.remove_reader(process.pidfd)
            process.close()
            root = process.root
            if root.ended and not any(other.root is root for other in self.managed.values()):
                self.remove_root(root)
        return troubles

    def _drop_file(self, process: ManagedProcess, fd: int) -> None:
        tasks = dict(process.tasks)
        for key in process.drop_file(fd):
            self._keeping.unguard(key)
        for gpu, task in tasks.items():
            if gpu not in process.tasks:
                self._gpus.remove(task)
        if not process.tasks:
            self.forget(process, restore=False)
        self._gpus.run_all()

    # -- looking again -----------------------------------------------------------------------------

    async def scan(self) -> None:
        """Look for new processes and contexts under every root: in processes whose open files changed a moment ago."""
        roots = dict(self.roots)
        for root_pid, tree in descendants(roots).items():
            root = roots[root_pid]
            for pid in tree:
                if pid in root.excluded or self.roots.get(root_pid) is not root:
                    continue
                if pid in (os.getpid(), self._keeping.pid) or not self._ripe(pid):
                    continue
                try:
                    await self.adopt(root, pid, new_only=True)
                    self._correct_all(pid)
                except (RunlistError, OSError) as error:
                    _log.warning("a process is left to the driver's own scheduling", pid=pid, reason=str(error))
        for gone in [pid for pid in self._descriptors if descriptor_count(pid) < 0]:
            del self._descriptors[gone]

    def _ripe(self, pid: int) -> bool:
        """Whether to look at a process now: it opened or closed something since the last look, and not just now.

        A context that is half made has not all its groups yet, nor the slices that CUDA gives them.
        """
        count, now = descriptor_count(pid), time.monotonic()
        known = self._descriptors.get(pid)
        if known is None or known.count != count:
            since = known.unseen_since if known is not None and known.unseen_since is not None else now
            known = self._descriptors[pid] = _Descriptors(count, changed_at=now, unseen_since=since)
        if count < 0 or known.unseen_since is None:
            return False
        if now - known.changed_at < QUIET_S and now - known.unseen_since < SETTLE_S:
            return False
        known.unseen_since = None
        return True

    def check(self, slices: bool) -> None:
        """Notice processes that closed or exec'ed away from their files, and (`slices`) tasks that changed their own
        slice.
        """
        for process in list(self.managed.values()):
            for fd in process.lost_files():
                self._drop_file(process, fd)
            if slices:
                self._correct_all(process.pid)

    def _correct_all(self, pid: int) -> None:
        if (process := self.managed.get(pid)) is not None:
            for task in list(process.tasks.values()):
                self._correct(process, task)

    def _correct(self, process: ManagedProcess, task: ManagedTask) -> None:
        wanted = task.share.timeslice_us
        try:
            wrong = any(context.wrong_timeslices(wanted) for context in task.contexts.values())
            if wrong:
                if time.monotonic() > task.settles_at:
                    task.corrections += 1
                    _log.info("a task had changed its own slice; put back", pid=process.pid, gpu=task.task.key.gpu)
                else:  # CUDA itself sets slices while it makes a context: those are the original ones
                    for key, context in task.contexts.items():
                        if context.wrong_timeslices(wanted):  # an older context has ours, which is nobody's original
                            context.take_as_original()
                            self._keeping.renew(key)
                task.set_timeslice(wanted)
            self._drop_empty(process, task)
        except (RunlistError, OSError) as error:
            _log.warning("a task cannot be controlled any more; released", pid=process.pid, reason=str(error))
            self.forget(process, restore=True)

    def _drop_empty(self, process: ManagedProcess, task: ManagedTask) -> None:
        """Forget the contexts that a process closed, and its task when none is left."""
        for key in task.drop_empty():
            self._keeping.unguard(key)
        task.recount()
        if not task.contexts:
            del process.tasks[task.task.key.gpu]
            self._gpus.remove(task)
            if not process.tasks:
                self.forget(process, restore=False)
            self._gpus.run_all()


def _close_all(found: Iterable[Found]) -> None:
    for file in {id(client.file): client.file for client in found}.values():
        file.close()
