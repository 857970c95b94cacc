"""Adopting a process: what it has on the GPU is found, told to the keeper, and brought to its share."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from weakref import WeakValueDictionary

import structlog

from runlist.daemon.gpu.gpus import Gpus
from runlist.daemon.memory.census import MemoryCensus
from runlist.daemon.placement.placement import Placement
from runlist.daemon.placement.rules import Over
from runlist.daemon.tasks.in_turn import next_of
from runlist.daemon.tasks.lending import Lending
from runlist.daemon.tasks.managed import ManagedProcess, ManagedTask, Root, SuspendedBy
from runlist.daemon.tree.descriptors import Sent
from runlist.daemon.tree.look_schedule import SETTLE_S
from runlist.daemon.tree.processes import Processes
from runlist.daemon.tree.workers import Workers
from runlist.daemon.undo.link import KeeperLink
from runlist.errors import NoPermissionError, NotAdmitted, RunlistError
from runlist.model import TaskKey
from runlist.planes.interface import Borrower, Context, Finder, Found, Handle, Seen
from runlist.proc import borrow
from runlist.proc.aside import ask
from runlist.proc.owners import Owner, may_answer_for
from runlist.proc.process import owner_of, parent_of, start_of

_log = structlog.get_logger()

MOST_SHARED, SHARED_AT_ONCE = 4096, 64
"""Of so many processes that share a client of another one it is known, and of so many at a time one looks whether that
one has ended.
"""

MOST_S = 20.0
"""How long a process with many files is looked at in one go, piece by piece."""


class Adoption:
    """Starts to manage processes. `lending` has the files of those that nobody may borrow from.

    The event loop's thread changes all state. Only discovery, which may try many handles, runs in another.
    """

    def __init__(
        self,
        finder: Finder,
        lending: Lending,
        processes: Processes,
        gpus: Gpus,
        keeper: KeeperLink,
        placement: Placement,
        census: MemoryCensus,
    ) -> None:
        self.lending = lending
        self._finder = finder
        self._processes = processes
        self._gpus = gpus
        self._keeper = keeper
        self._placement = placement
        self._census = census
        self._workers = Workers()
        self._shared: dict[int, tuple[int, int | None]] = {}  # who has another's client: whose, and when that one began
        self._locks: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()  # by process id

    def close(self) -> None:
        """Close the lent files and the finder."""
        self.lending.close()
        self._finder.close()

    def take_sent(self, root: Root | None, pid: int, client: int, sent: Sent) -> bool:
        """Take the control file and the region that a process below `root` sent, as far as they are of use; close the
        rest. Returns whether the file was taken.
        """
        file, region = sent.file, sent.region
        try:
            if root is None:
                return False
            if region is not None and not root.quota.has_region:
                root.quota.take(region)
                region = None
            if file is not None and self._lend(root, pid, client, file):
                file = None
                return True
            return False
        finally:
            Sent(file, region).close()

    def _lend(self, root: Root, pid: int, client: int, file: Handle) -> bool:
        if self._processes.owners_of_clients().get(client) == pid:
            return False
        with contextlib.suppress(RunlistError):
            return self.lending.take(root.pid, pid, client, file)
        return False

    async def adopt(self, root: Root, pid: int, *, new_only: bool) -> None:
        """Find what a process has on the GPU, and manage what is new: all of it, or nothing."""
        lock = self._locks.setdefault(pid, asyncio.Lock())
        async with lock:
            if new_only and not await self.may_have_work(pid, root.pid):
                return
            started = time.perf_counter()
            new = new_only and not root.old
            root.old = False
            while await self._adopt(root, pid, started, new_only=new_only, new=new):
                if time.perf_counter() - started > MOST_S:
                    break

    async def adopt_seen(self, root: Root, pid: int, seen: Sequence[Seen], since: float) -> None:
        """The same for objects that the kernel saw a process make just now, which are not searched for. `since` is when
        the first was made; both of these clocks are the kernel's monotonic one.
        """
        lock = self._locks.setdefault(pid, asyncio.Lock())
        async with lock:
            await self._adopt(root, pid, since, new_only=True, new=True, seen=seen)

    async def _adopt(
        self, root: Root, pid: int, started: float, *, new_only: bool, new: bool, seen: Sequence[Seen] | None = None
    ) -> bool:
        """Look once, and manage what is new. True where the look was cut short, so that there may be more."""
        pidfd = borrow.open_process(pid)
        try:
            uid = owner_of(pid)
            if uid is None or not may_answer_for(root.uid, uid):  # a descendant that runs as another user
                return False
            found, way = await self._discover(root, pid, pidfd, uid, new, seen)
            discovery_ms = _ms_since(started)
            process = self._process(root, pid, pidfd, found)
            if process is None:
                return not found and self._is_unfinished(root, pid)
            self._manage(process, found, time.monotonic() + SETTLE_S if new_only else 0.0)
            for task in process.tasks.values():
                task.reached_by = task.reached_by or way
                task.discovery_ms = task.discovery_ms or discovery_ms
                task.attach_ms = task.attach_ms or _ms_since(started)
        finally:
            os.close(pidfd)
        return self._is_unfinished(root, pid)

    # -- finding -----------------------------------------------------------------------------------

    async def may_have_work(self, pid: int, root: int = 0) -> bool:
        """Whether a process has, or may have, GPU work; it is looked at as one below this root."""
        if pid in self._processes.managed or pid in self.lending:
            return True
        uid = owner_of(pid)
        return uid is not None and await self._workers.run(
            Owner.of(pid, uid), root or pid, lambda: lambda: self._finder.may_have_work(pid)
        )

    def _is_unfinished(self, root: Root, pid: int) -> bool:
        wanted = self._processes.roots.get(root.pid) is root and pid not in root.excluded
        return wanted and self._finder.is_unfinished(pid)

    async def _discover(
        self, root: Root, pid: int, pidfd: int, uid: int, new: bool, seen: Sequence[Seen] | None
    ) -> tuple[Sequence[Found], str]:
        """What a process has, and the first way that worked. A process that is reached by lent files stays so: no file
        may be managed twice.
        """
        denied: NoPermissionError | None = None
        owner = Owner.of(pid, uid)
        process = self._processes.of(pid)
        if process is None or all(fd >= 0 for fd in process.files):
            for borrower in root.borrowers:
                look = partial(self._look_by, borrower, pid, pidfd, new, seen)
                try:
                    found = await self._workers.run(owner, root.pid, look, _close)
                except NoPermissionError as error:
                    denied = denied or error
                else:
                    self.lending.drop(pid)
                    return found, borrower.way
        if denied is not None and pid not in self.lending:
            raise denied

        def prepare() -> Callable[[], Sequence[Found]]:
            return partial(self._finder.examine, self.lending.copies(pid))

        return await self._workers.run(owner, root.pid, prepare, _close), "lent"

    def _look_by(
        self, borrower: Borrower, pid: int, pidfd: int, new: bool, seen: Sequence[Seen] | None
    ) -> Callable[[], Sequence[Found]]:
        own = os.dup(pidfd)  # for as long as the look takes, whoever waits for it

        def look() -> Sequence[Found]:
            try:
                if seen is not None:
                    return self._finder.find_seen(pid, own, borrower, seen)
                return self._finder.find(pid, own, borrower, new=new)
            finally:
                os.close(own)

        return look

    def _process(self, root: Root, pid: int, pidfd: int, found: Sequence[Found]) -> ManagedProcess | None:
        """The managed process, a new one where something was found, or None where it was let go while we looked. Drops
        contexts first whose descriptor numbers have other files now.
        """
        if known := self._processes.of(pid):
            lost: list[int] = ask(pid, partial(known.on_lost_files, self.lending), [])
            self._processes.drop(known, lost, by_itself=True)
        process = self._processes.of(pid)
        wanted = self._processes.roots.get(root.pid) is root and pid not in root.excluded
        if process is None and found and wanted:
            try:
                return ManagedProcess(pid, os.dup(pidfd), root)
            except OSError:  # no descriptor is left
                _close(found)
                raise
        if process is None:
            _close(found)
        return process

    # -- managing ----------------------------------------------------------------------------------

    def _manage(self, process: ManagedProcess, found: Sequence[Found], settles_at: float) -> None:
        """Manage the new contexts. On failure they are put back, and a process without others is forgotten."""
        try:
            with contextlib.ExitStack() as undo:
                tasks = [self._add(process, context, undo) for context in self._new_contexts(process, found)]
                self._enter(process)
                for task in tasks:
                    task.settles_at = settles_at
                keys = {task.task.key for task in tasks}
                self._gpus.run({key.gpu for key in keys}, keys)
                undo.pop_all()
        finally:
            self._processes.drop(process, ())  # forgets it where it has no task now

    def _new_contexts(self, process: ManagedProcess, found: Sequence[Found]) -> list[Context]:
        """A context for each client and GPU with groups that are not managed yet. Their files go to the process; all
        others are closed.
        """
        known = process.groups()
        contexts: list[Context] = []
        try:
            for client in found:
                if (whose := self._whose(process.pid, client)) is not None:
                    self._note_shared(process.pid, whose)
                    continue
                handle = process.files.get(client.fd, client.handle)
                self._extend(process, client)
                for context in client.contexts(handle, known):
                    process.files[client.fd] = handle
                    known |= {(context.client, group) for group in context.groups}
                    contexts.append(context)
        finally:
            _close(found, process.files.values())
        return contexts

    def _extend(self, process: ManagedProcess, client: Found) -> None:
        """Enter the channels that groups have got since they were found."""
        for task in process.tasks.values():
            for key, context in list(task.contexts.items()):
                if context.client == client.client and client.extend(context):
                    task.settle()
                    self._keeper.renew(key)
                    task.recount()
                    task.take_in(context)

    def _whose(self, pid: int, client: Found) -> int | None:
        """The process from which a client came to another one through fork: then it is managed with its owner; None for
        one's own. A child may have given it to its parent, too, which the driver then does not name.
        """
        owner = self._processes.owners_of_clients().get(client.client)
        if owner is not None:
            return None if owner == pid else owner
        parent = parent_of(pid)
        if parent is None:
            return None
        has = partial(borrow.still_has, parent, client.fd, client.handle.fileno())
        if not ask(parent, has, False):
            return None
        working = self._census.pids()
        return parent if pid not in working or parent in working else None

    def _note_shared(self, pid: int, whose: int) -> None:
        """A process shares a client, which is its own once the owner has ended: nothing else tells of that."""
        if len(self._shared) >= MOST_SHARED:
            del self._shared[next(iter(self._shared))]
        self._shared[pid] = whose, start_of(whose)

    def left(self) -> list[int]:
        """Processes that share clients whose owners have ended since they were looked at, of the next few."""
        found = []
        for pid, (whose, started) in next_of(self._shared, SHARED_AT_ONCE):
            is_left = (started is None or start_of(whose) != started) and whose not in self._processes.managed
            if is_left:
                found.append(pid)
            if is_left or start_of(pid) is None:
                del self._shared[pid]
        return found

    def _add(self, process: ManagedProcess, context: Context, undo: contextlib.ExitStack) -> ManagedTask:
        """Tell the keeper of a context, then bring it to its task's share. `undo` gets the reverse."""
        key = self._keeper.guard(process.holder, context)
        undo.callback(self._processes.drop, process, (key,))
        undo.callback(context.put_back)
        task = process.tasks.get(context.gpu)
        if task is None:
            task = process.root.come_back(TaskKey(process.pid, context.gpu))
            task = task or self._placement.new_task(process.pid, context.gpu, process.root)
            process.tasks[context.gpu] = task
        task.settle()
        undo.callback(task.settle)  # before it is put back: it may be armed by then
        if not task.contexts:
            task.there_since = time.monotonic()
        task.contexts[key] = context
        task.recount()
        tiny = self._gpus.scheduler(context.gpu).slices.is_tiny(task.slice_us(task.share))
        if task.task.contexts == 1 or not tiny:  # else the guard gives both another
            context.set_timeslice(task.share.timeslice_us)
        task.take_in(context)
        for name, word in list(task.controls.items()):
            try:
                task.set_control(name, word, self._keeper.renew)
            except (RunlistError, OSError) as error:
                if process.root.awaited and name in process.root.settings:
                    raise
                self._do_without(task, process.root, name, error)
        return task

    def _do_without(self, task: ManagedTask, root: Root, name: str, error: Exception) -> None:
        """Manage a task without a control that the driver refuses, and say so once for its tree."""
        with contextlib.suppress(RunlistError, OSError):
            task.set_control(name, None, self._keeper.renew)
        task.controls.pop(name, None)
        if name not in root.refused:
            _log.warning("managed without a control", pid=task.task.key.pid, control=name, reason=str(error))
        root.refused.add(name)

    def _enter(self, process: ManagedProcess) -> None:
        """Enter a process and its tasks in the books. Raises NotAdmitted where a policy refuses a task."""
        for gpu, task in process.tasks.items():
            scheduler = self._gpus.scheduler(gpu)
            if task.task.key not in scheduler.tasks:
                self._keep_limits(task)
                if self._processes.is_over_memory(process.root, gpu):
                    task.suspend_for(SuspendedBy.MEMORY, "suspended: its tree holds more memory than its limit")
                if reason := scheduler.refusal(task.task) or self._placement.beyond_ration(task.task):
                    raise NotAdmitted(f"process {process.pid} is not managed: {reason}")
                scheduler.add(task)
            else:
                scheduler.bind()
        if process.tasks:
            self._processes.enter(process)

    def _keep_limits(self, task: ManagedTask) -> None:
        """Do what the limits say with a task that finds no room. Raises NotAdmitted when they refuse it."""
        reason = self._placement.queue.no_room(task.task.key.gpu, Owner(*task.task.owner))
        if reason is None:
            return
        over = self._placement.rules.limits.over
        _log.info("a task is over the limit", pid=task.task.key.pid, reason=reason, so=over.value)
        match over:
            case Over.REFUSE:
                raise NotAdmitted(f"process {task.task.key.pid} is not managed: {reason}")
            case Over.BATCH:
                task.take_as_batch()
            case Over.QUEUE:
                task.suspend_for(SuspendedBy.ROOM, reason)


def _close(found: Iterable[Found], kept: Iterable[Handle] = ()) -> None:
    """Close the files of the clients found, each once, but those that are kept."""
    files = {id(client.handle): client.handle for client in found}
    for key in files.keys() - {id(file) for file in kept}:
        files[key].close()


def _ms_since(started: float) -> float:
    return (time.perf_counter() - started) * 1e3
