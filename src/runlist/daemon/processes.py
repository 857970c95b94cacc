"""Managed processes: found below the roots that users named, adopted, checked on, and forgotten.

All state is changed by the event loop's thread. Only discovery, which may try many handles, runs in another.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

import structlog

from runlist.daemon.gpus import Gpus
from runlist.daemon.keeping import Keeping
from runlist.daemon.managed import ManagedProcess, ManagedTask, Root, put_back
from runlist.daemon.placement import Placement
from runlist.daemon.rules import Over
from runlist.daemon.watch import descendants, descriptor_count, owner_of, parent_of
from runlist.errors import RunlistError
from runlist.model import TaskClass
from runlist.policies.guard import TINY_US
from runlist.rm import borrow
from runlist.rm.client import RmClient
from runlist.rm.context import GpuContext
from runlist.rm.discover import ANY_REACH, NEW_REACH, Borrower, Discoverer, Found, GpuObjects, OwnRight
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

    def __init__(self, driver: Driver, gpus: Gpus, keeping: Keeping, placement: Placement) -> None:
        self.roots: dict[int, Root] = {}
        self.managed: dict[int, ManagedProcess] = {}
        self._driver = driver
        self._discoverer = Discoverer(driver)
        self._gpus = gpus
        self._keeping = keeping
        self._placement = placement
        self._client_owner: dict[int, int] = {}  # pid by RM client: a forked child shares its parent's open files
        self._descriptors: dict[int, _Descriptors] = {}  # by pid
        self._adopting: dict[int, asyncio.Lock] = {}
        self._passed_over: set[int] = set()  # processes that the rules were asked about once
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

    def add_root(self, pid: int, settings: dict[str, str], borrower: Borrower) -> Root:
        pidfd = borrow.open_process(pid)
        root = Root(pid, pidfd, owner_of(pid) or 0, settings, borrower)
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
            reach = NEW_REACH if new_only and not root.old else ANY_REACH
            root.old = False
            pidfd = borrow.open_process(pid)
            try:
                found = await asyncio.to_thread(self._discoverer.discover, pid, pidfd, root.borrower, reach)
                discovery_ms = (time.perf_counter() - started) * 1e3
                process = self.managed.get(pid)
                if process is None and found and root.pid in self.roots:
                    process = ManagedProcess(pid, os.dup(pidfd), root)
                if process is None:
                    _close_all(found)
                    return
                self._merge(process, found, discovery_ms, time.monotonic() + SETTLE_S if new_only else 0.0)
                if not new_only:  # all of it was looked at just now
                    now = time.monotonic()
                    self._descriptors[pid] = _Descriptors(descriptor_count(pid), changed_at=now, unseen_since=None)
                for task in process.tasks.values():
                    task.attach_ms = task.attach_ms or (time.perf_counter() - started) * 1e3
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
            task = self._placement.new_task(process.pid, context.gpu, process.root)
            task.discovery_ms = discovery_ms
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
                self._keep_limits(task)
                if reason := scheduler.refusal(task.task):
                    raise RunlistError(f"process {process.pid} is not managed: {reason}")
                scheduler.add(task)
        if process.pid not in self.managed:
            self.managed[process.pid] = process
            self._loop.add_reader(process.pidfd, self._process_ended, process)

    def _keep_limits(self, task: ManagedTask) -> None:
        """What the rules say of a task for which there is no room. Raises RunlistError when it is refused."""
        reason = self._placement.no_room(task.task.key.gpu)
        if reason is None:
            return
        over = self._placement.rules.limits.over
        _log.info("a task is over the limit", pid=task.task.key.pid, reason=reason, so=over.value)
        match over:
            case Over.REFUSE:
                raise RunlistError(f"process {task.task.key.pid} is not managed: {reason}")
            case Over.BATCH:
                task.task = replace(task.task, task_class=TaskClass.BATCH, deadline=None)
            case Over.QUEUE:
                task.queued = True
                task.task = replace(task.task, suspended=True)

    def admit_queued(self) -> None:
        """Let tasks that wait for room run, the longest waiting first, as far as there is room."""
        waiting = [task for process in self.managed.values() for task in process.tasks.values() if task.queued]
        admitted = set()
        for task in sorted(waiting, key=lambda task: task.task.since):
            if self._placement.over_limit(task.task.key.gpu) is None:
                task.queued = False
                task.task = replace(task.task, suspended=task.stays_suspended)
                admitted.add(task.task.key.gpu)
        self._gpus.run(admitted, set())

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
        if self._placement.rules:
            self._name_by_rules()
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

    def _name_by_rules(self) -> None:
        """Make roots of the GPU's processes that nobody named and a rule matches."""
        there = self._placement.gpu_pids() - {os.getpid(), self._keeping.pid}
        self._passed_over &= there
        named = {pid for tree in descendants(self.roots).values() for pid in tree}
        for pid in there - named - self.managed.keys() - self._passed_over:
            self._passed_over.add(pid)
            try:
                if self._placement.place(pid, {}).rule:
                    self.add_root(pid, {}, OwnRight()).old = True
            except (RunlistError, OSError) as error:
                _log.warning("a process is left to the driver's own scheduling", pid=pid, reason=str(error))

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
        self.admit_queued()
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
