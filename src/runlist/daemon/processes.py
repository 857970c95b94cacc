"""Managed processes: found below the roots that users named, adopted, checked on, and forgotten.

All state is changed by the event loop's thread. Only discovery, which may try many handles, runs in another.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import replace

import structlog

from runlist.daemon.descriptors import Sent
from runlist.daemon.driver_limits import CgroupLimit, DriverLimits
from runlist.daemon.gpus import Gpus
from runlist.daemon.keeping import Keeping
from runlist.daemon.lending import Lending
from runlist.daemon.managed import Hold, ManagedProcess, ManagedTask, Root, put_back
from runlist.daemon.placement import Placement
from runlist.daemon.quiet import QUIET_S, SETTLE_S, Quiet
from runlist.daemon.quota import Quota
from runlist.daemon.rules import Over
from runlist.daemon.watch import descendants, descriptor_count, owner_of, parent_of
from runlist.errors import NoPermissionError, RunlistError
from runlist.model import TaskClass
from runlist.policies.guard import TINY_US
from runlist.region import Region
from runlist.rm import borrow
from runlist.rm.client import RmClient
from runlist.rm.context import GpuContext
from runlist.rm.discover import ANY_REACH, NEW_REACH, Borrower, Discoverer, Found, GpuObjects, OwnRight
from runlist.rm.transport import Driver, OpenFile

_log = structlog.get_logger()


class Processes:
    """Roots, and the processes below them that have GPU work."""

    def __init__(
        self, driver: Driver, gpus: Gpus, keeping: Keeping, placement: Placement, driver_limits: DriverLimits
    ) -> None:
        self.roots: dict[int, Root] = {}
        self.managed: dict[int, ManagedProcess] = {}
        self._driver = driver
        self._discoverer = Discoverer(driver)
        self._gpus = gpus
        self._keeping = keeping
        self._placement = placement
        self._driver_limits = driver_limits
        self._client_owner: dict[int, int] = {}  # pid by RM client: a forked child shares its parent's open files
        self._quiet = Quiet()
        self._adopting: dict[int, asyncio.Lock] = {}
        self._lending = Lending(driver)
        self.left: dict[int, str] = {}  # why processes below roots are not managed
        self._passed_over: set[int] = set()  # processes that the rules were asked about once
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        """Put everything back."""
        for root in list(self.roots.values()):
            self.remove_root(root)
        self._lending.close()
        self._discoverer.close()

    def under(self, pid: int) -> list[ManagedProcess]:
        """A root's processes, or the one process of that id, or none."""
        root = self.roots.get(pid)
        if root is not None:
            return [process for process in self.managed.values() if process.root is root]
        return [self.managed[pid]] if pid in self.managed else []

    # -- roots and processes -----------------------------------------------------------------------

    def add_root(
        self,
        pid: int,
        settings: dict[str, str],
        borrowers: tuple[Borrower, ...] = (OwnRight(),),
        region: Region | None = None,
    ) -> Root:
        """Manage a process and its descendants. The root takes the region over."""
        pidfd = borrow.open_process(pid)
        root = Root(pid, pidfd, owner_of(pid) or 0, settings, borrowers, Quota(region, lambda: self._driver_group(pid)))
        self.roots[pid] = root
        self._loop.add_reader(pidfd, self._root_ended, root)
        return root

    def _driver_group(self, pid: int) -> CgroupLimit | None:
        return self._driver_limits.enter(pid) if self._driver_limits.work else None

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
            root.quota.close()
        return troubles

    def root_of(self, pid: int) -> Root | None:
        """The root that a process is managed under, is, or is below."""
        if pid in self.managed:
            return self.managed[pid].root
        seen: int | None = pid
        while seen and seen not in self.roots:
            seen = parent_of(seen)
        return self.roots.get(seen) if seen else None

    def wants(self, pid: int, uid: int) -> bool:
        """Whether there is a use for what a process of user `uid` sends of itself: it is below a root of that user,
        or a rule names it.
        """
        if self._placement.rules and self.root_of(pid) is None:
            self._name_by_rule(pid)
        root = self.root_of(pid)
        return root is not None and pid not in root.excluded and root.uid in (0, uid)

    def join(self, pid: int, uid: int, client: int, sent: Sent) -> None:
        """A process sent its control file, and perhaps its region: take over what there is a use for, and close the
        rest.
        """
        file, region = sent.file, sent.region
        try:
            root = self.root_of(pid)
            if root is None or not self.wants(pid, uid):
                return
            if region is not None and not root.quota.has_region:
                root.quota.take(region)
                region = None
            if file is not None and self._lend(pid, client, file):
                file = None
        finally:
            Sent(file, region).close()

    def _lend(self, pid: int, client: int, file: OpenFile) -> bool:
        process = self.managed.get(pid)
        if process is not None and any(context.client.handle == client for context in process.contexts()):
            return False
        with contextlib.suppress(RunlistError):
            return self._lending.take(pid, client, file)
        return False

    async def adopt(self, root: Root, pid: int, *, new_only: bool) -> None:
        """Find what a process has on the GPU, and manage what is new. All or nothing."""
        async with self._adopting.setdefault(pid, asyncio.Lock()):
            if new_only and not (pid in self.managed or pid in self._lending or any(self._control_files(pid))):
                return
            if root.uid not in (0, owner_of(pid)):  # a descendant that runs as another user
                return
            started = time.perf_counter()
            reach = NEW_REACH if new_only and not root.old else ANY_REACH
            root.old = False
            pidfd = borrow.open_process(pid)
            try:
                found, way = await self._discover(root, pid, pidfd, reach)
                discovery_ms = (time.perf_counter() - started) * 1e3
                process = self.managed.get(pid)
                if process is None and found and root.pid in self.roots:
                    process = ManagedProcess(pid, os.dup(pidfd), root)
                if process is None:
                    _close_all(found)
                    return
                self._merge(process, found, discovery_ms, time.monotonic() + SETTLE_S if new_only else 0.0)
                if not new_only:
                    self._quiet.looked_at(pid)
                for task in process.tasks.values():
                    task.reached_by = task.reached_by or way
                    task.attach_ms = task.attach_ms or (time.perf_counter() - started) * 1e3
            finally:
                os.close(pidfd)
        self._adopting.pop(pid, None)

    async def _discover(self, root: Root, pid: int, pidfd: int, reach: int) -> tuple[list[Found], str]:
        """What a process has, and on which way that was seen: the first of those that are open. One that is reached by
        what it lent stays so: the same file must not be had twice.
        """
        denied: NoPermissionError | None = None
        process = self.managed.get(pid)
        if process is None or all(fd >= 0 for fd in process.files):
            for borrower in root.borrowers:
                try:
                    found = await asyncio.to_thread(self._discoverer.discover, pid, pidfd, borrower, reach)
                except NoPermissionError as error:
                    denied = denied or error
                else:
                    self._lending.drop(pid)
                    return found, borrower.way
        if denied is not None and pid not in self._lending:
            raise denied
        return await asyncio.to_thread(self._discoverer.examine, self._lending.copies(pid)), "lent"

    def _control_files(self, pid: int) -> Iterable[bool]:
        """True for each."""
        with contextlib.suppress(OSError):
            yield from (True for _ in self._driver.control_files(pid))

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
                task.hold(Hold.ROOM, reason)

    def admit_queued(self) -> None:
        """Let tasks that wait for room run, the longest waiting first, as far as there is room."""
        waiting = [task for process in self.managed.values() for task in process.tasks.values() if task.queued]
        admitted = set()
        for task in sorted(waiting, key=lambda task: task.task.since):
            if self._placement.over_limit(task.task.key.gpu) is None:
                task.release(Hold.ROOM)
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
                if pid in (os.getpid(), self._keeping.pid) or not self._worth_a_look(pid):
                    continue
                try:
                    await self.adopt(root, pid, new_only=True)
                    self._correct_all(pid)
                    self.left.pop(pid, None)
                except (RunlistError, OSError) as error:
                    self.left[pid] = str(error)
                    _log.warning("a process is left to the driver's own scheduling", pid=pid, reason=str(error))
        self._quiet.forget_gone()
        self.left = {pid: why for pid, why in self.left.items() if owner_of(pid) is not None}

    def _name_by_rules(self) -> None:
        """Make roots of the GPU's processes that nobody named and a rule matches."""
        there = self._placement.gpu_pids() - {os.getpid(), self._keeping.pid}
        self._passed_over &= there
        named = {pid for tree in descendants(self.roots).values() for pid in tree}
        for pid in there - named - self.managed.keys() - self._passed_over:
            self._passed_over.add(pid)
            self._name_by_rule(pid)

    def _name_by_rule(self, pid: int) -> None:
        try:
            if self._placement.place(pid, {}).rule:
                self.add_root(pid, {}).old = True
        except (RunlistError, OSError) as error:
            _log.warning("a process is left to the driver's own scheduling", pid=pid, reason=str(error))

    def _worth_a_look(self, pid: int) -> bool:
        """Whether something may be new in a process. Of one whose descriptors nobody may list, what it lent tells."""
        count = descriptor_count(pid)
        return self._quiet.ripe(pid, count) or (count < 0 and self._lending.lent_for(pid) >= QUIET_S)

    def check(self, slices: bool) -> None:
        """Notice processes that closed or exec'ed away from their files, and (`slices`) tasks that changed their own
        slice.
        """
        self.admit_queued()
        self._lending.check()
        for process in list(self.managed.values()):
            for fd in process.lost_files(self._lending):
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
