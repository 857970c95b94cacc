"""The managed processes and their roots: entered, looked up, and forgotten.

The event loop's thread changes all state.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import Callable, Container, Iterable
from weakref import WeakValueDictionary

import structlog

from runlist.daemon.gpu.gpus import Gpus
from runlist.daemon.memory.driver_limits import CgroupLimit, DriverLimits
from runlist.daemon.memory.quota import Quota
from runlist.daemon.tasks.in_turn import InTurn
from runlist.daemon.tasks.managed import Away, ManagedProcess, ManagedTask, Root
from runlist.daemon.undo.link import KeeperLink
from runlist.errors import NoPermissionError, NoTargetError, RunlistError
from runlist.model import TaskKey
from runlist.planes.interface import Borrower
from runlist.planes.process.region import Region
from runlist.proc import borrow
from runlist.proc.owners import Owner, may_answer_for, user_behind
from runlist.proc.process import ancestors, behind, descendants, descendants_then, is_deep, owner_of, start_of
from runlist.rate import Rate

_log = structlog.get_logger()

MAX_TREES = 128
"""How many trees of one user are managed, of users other than root and the daemon's own."""

FULL = f"{MAX_TREES} commands and attached processes of yours are managed, which is all for one user: end some first"

SLOTS_AT_ONCE, SLOTS_A_SECOND = 1024, 2048
"""How many slots of regions are read for one user: each takes 10 µs."""
MAX_HEIRS = 4096
"""How many processes of one user are remembered that live on after the root of their tree has ended. Each is looked at
every second.
"""
STARTS_S = 60.0
"""So long a command without a context takes the room that it will need: one that uses no GPU must not keep others off.
"""
MOST_LOSSES, FORGIVEN_S = 3, 600.0
"""So often a process is looked for again of which a control failed, and once more for each so long time."""

_MOST_ENDED = 4096

SEEKINGS = 3
"""So often one looks for who has what a process left, where it is handed on more quickly than one can look."""
SEEKING_REST = 10.0
"""Before one looks for the next who has it, so many times what a search took passes."""


class Processes:
    """Roots, and the processes below them that have GPU work, by process id.

    `left` says why processes below roots are not managed. `ended` has the trees of processes that ended lately, where
    those have a memory limit: somebody else may keep the memory. A root that has ended has heirs, which were seen below
    it and live on: they and what they start are its tree.
    """

    def __init__(self, gpus: Gpus, keeper: KeeperLink, driver_limits: DriverLimits) -> None:
        self.roots: dict[int, Root] = {}
        self.managed: dict[int, ManagedProcess] = {}
        self.left: dict[int, str] = {}
        self.ended: dict[int, Root] = {}
        self.on_end: Callable[[], None] = lambda: None
        """Called when a managed process has ended: what it had may be others' now, which nobody was told of."""
        self.named_so_far = 0
        """How many roots there were."""
        self._heirs: dict[int, Root] = {}
        self._held: dict[int, ManagedProcess] = {}  # what others left to processes, by the ids of these
        self._seeking_s = 0.0  # how long the last search took for who has what one left
        self._losses: dict[tuple[int, int | None], Rate] = {}  # by process and its start: how many more there may be
        self._numbers = itertools.count(-1, -1)
        self._gpus = gpus
        self._keeper = keeper
        self._driver_limits = driver_limits
        self._reads: WeakValueDictionary[Owner, Rate] = WeakValueDictionary()
        self._away_turns: InTurn[tuple[TaskKey, int]] = InTurn()
        self._expected_turns: InTurn[int] = InTurn()
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        """Put everything back."""
        for root in list(self.roots.values()):
            self.remove_root(root)

    # -- looking up --------------------------------------------------------------------------------

    def under(self, pid: int) -> list[ManagedProcess]:
        """A root's processes, or the one process of that id, or none."""
        root = self.named(pid)
        if root is not None:
            return self._of(root)
        return [self.managed[pid]] if pid in self.managed else []

    def named(self, pid: int) -> Root | None:
        """The root of that id, unless it has ended and the id is another process' now, which is managed."""
        root = self.roots.get(pid)
        return None if root is not None and root.ended and pid in self.managed else root

    def tasks(self) -> list[ManagedTask]:
        """The tasks of all processes."""
        return [task for process in self.managed.values() for task in process.tasks.values()]

    def root_of(self, pid: int) -> Root | None:
        """The nearest root among a process and its ancestors, or that of the first that is managed or an heir."""
        for seen in ancestors(pid):
            if self.is_root(seen):
                return self.roots[seen]
            if seen in self.managed:
                return self.managed[seen].root
            if seen in self._heirs and self._heirs[seen].heirs[seen] == start_of(seen):
                return self._heirs[seen]
        return None

    @staticmethod
    async def find_ancestors(pid: int) -> None:
        """Have `root_of` know all above a process, however many they are."""
        if is_deep(pid):
            await asyncio.to_thread(descendants, ())

    def is_root(self, pid: int) -> bool:
        """Whether a process is a root. The id of one that has ended may be another's."""
        return pid in self.roots and not self.roots[pid].ended

    def is_ours(self, pid: int) -> bool:
        """Whether a process is the daemon, its keeper or its actuator."""
        return pid in (os.getpid(), self._keeper.pid, self._gpus.actuator_pid)

    def asked(self, pid: int) -> Root | None:
        """The tree of a process that somebody attached within it."""
        return next(
            (root for root in self.roots.values() if pid in root.asked_of and root.asked_of[pid].program.runs()), None
        )

    @staticmethod
    def tops(root: Root) -> list[int]:
        """The processes of which all of a root's tree descends. It may have heirs before it has ended."""
        return list(root.heirs) if root.ended else [root.pid, *root.heirs]

    def chain(self, root: Root | None) -> list[Root]:
        """A root and those that it was below when it was named, the nearest first, as far as they are still there."""
        found: list[Root] = []
        while root is not None:
            if self.roots.get(root.pid) is root:
                found.append(root)
            root = root.outer
        return found

    def is_over_memory(self, root: Root, gpu: str) -> bool:
        """Whether a tree, or one that it is in, holds more memory on a GPU than it may."""
        return any(each.quota.is_over(gpu) for each in self.chain(root))

    def forget_ended(self, but: Container[int]) -> None:
        """Forget the ended processes, but for some, and the trees that ended with them."""
        self.ended = {pid: root for pid, root in self.ended.items() if pid in but and root.pid in self.roots}
        for root in list(self.roots.values()):
            self._remove_if_gone(root)

    async def forget_heirs(self) -> None:
        """Forget the heirs that have ended, and the trees that ended with them."""
        starts = {pid: root.heirs[pid] for pid, root in self._heirs.items()}
        if not starts:
            return
        alive = await asyncio.to_thread(lambda: {pid for pid, started in starts.items() if start_of(pid) == started})
        for pid in starts.keys() - alive:
            if pid in self._heirs and self._heirs[pid].heirs[pid] == starts[pid]:
                del self._heirs.pop(pid).heirs[pid]
        for root in list(self.roots.values()):
            self._remove_if_gone(root)

    def _remove_if_gone(self, root: Root) -> None:
        """Forget a root that has ended, once nothing is left of its tree, nor of its memory."""
        if not root.ended or root.heirs or root.away or self._of(root):
            return
        if any(each is root for each in self.ended.values()) or any(each.outer is root for each in self.roots.values()):
            return
        self.remove_root(root)

    def owners_of_clients(self) -> dict[int, int]:
        """The processes for which clients are managed, by client; of several the first."""
        return {context.client: pid for pid in reversed(self.managed) for context in self.managed[pid].contexts()}

    def _of(self, root: Root) -> list[ManagedProcess]:
        return [process for process in self.managed.values() if process.root is root]

    # -- roots -------------------------------------------------------------------------------------

    def add_root(
        self,
        pid: int,
        settings: dict[str, str],
        borrowers: tuple[Borrower, ...] = (borrow.OwnRight(),),
        region: Region | None = None,
        *,
        asked_by: int = 0,
        began: int | None = None,
        by_rule: bool = False,
    ) -> Root:
        """Manage a process and its descendants, as its user or root asked: the one that `began` then, if that is known.
        The root takes the region over. What a rule names comes beside those that a user may have: nobody gets out of
        rules by having many.
        """
        if self.is_root(pid):
            raise RunlistError(f"process {pid} is managed already")
        pidfd = borrow.open_process(pid)
        try:
            uid = self._user_of_new(pid, asked_by, by_rule=by_rule)
            if began and start_of(pid) not in (began, 0):
                raise NoTargetError(f"process {pid} has ended, and another one has its number")
        except BaseException:
            os.close(pidfd)
            raise
        owner = Owner.of(pid, uid)
        reads = self._reads.setdefault(owner, Rate(SLOTS_A_SECOND, SLOTS_AT_ONCE))
        root = Root(
            pid, pidfd, uid, settings, borrowers, Quota(region, lambda: self._driver_group(root), reads, self._keeper)
        )
        root.by_rule, root.owner = by_rule, owner
        root.outer = self.root_of(pid)
        if pid in self.roots:  # of a process that has ended and left a tree
            number = next(self._numbers)
            self.roots[number] = self.roots.pop(pid)
            self.roots[number].pid = number
        self.roots[pid] = root
        self.named_so_far += 1
        self._loop.add_reader(pidfd, self._root_ended, root)
        return root

    def _user_of_new(self, pid: int, asked_by: int, *, by_rule: bool) -> int:
        """The user of a process that is to be a root. Its id may have become another's since somebody asked for it."""
        uid = owner_of(pid)
        if uid is None:
            raise NoTargetError(f"process {pid} does not exist")
        if asked_by not in (0, uid):
            raise NoPermissionError(f"process {pid} belongs to user {uid} now: yours has ended")
        if not by_rule and self.is_full(uid):
            raise RunlistError(FULL)
        return uid

    def is_full(self, uid: int, waiting: int = 0) -> bool:
        """Whether a user, with so many commands that wait, has as many trees as one may. Root and the daemon's own user
        may have any number.
        """
        if uid in (0, os.geteuid()):
            return False
        theirs = sum(self._is_same_user(root.uid, uid) and not root.by_rule for root in self.roots.values())
        return waiting + theirs >= MAX_TREES

    @staticmethod
    def _is_same_user(one: int, other: int) -> bool:
        return user_behind(one) == user_behind(other)

    def _driver_group(self, root: Root) -> CgroupLimit | None:
        """What a driver is to limit; nothing for a root that has ended, as its id may be another's."""
        lives = self._driver_limits.work and behind(root.pidfd) == root.pid
        return self._driver_limits.enter(root.pid) if lives and not root.is_anothers else None

    def _root_ended(self, root: Root) -> None:
        self._loop.remove_reader(root.pidfd)
        root.ended = True
        self.inherit(root, [process.pid for process in self._of(root)])
        self._remove_if_gone(root)

    def inherit(self, root: Root, pids: Iterable[int]) -> None:
        """These processes are of a root's tree, also after the end of all above them: as many as its user may have."""
        room = MAX_HEIRS - sum(
            len(each.heirs) for each in self.roots.values() if self._is_same_user(each.uid, root.uid)
        )
        left_out = 0
        for pid in pids:
            if pid == root.pid or pid in self._heirs or pid in root.excluded or self.is_ours(pid):
                continue
            if room <= 0:
                left_out += 1
            elif (started := start_of(pid)) is not None:
                root.heirs[pid] = started
                self._heirs[pid] = root
                room -= 1
        if left_out:
            _log.warning(
                "a command left more processes than one user may; the rest are not of its tree any more",
                root=root.pid, user=root.uid, left_out=left_out,
            )  # fmt: skip

    def forget_away(self) -> None:
        """Forget the tasks whose processes ended or became other programs meanwhile, of the next few of each user."""
        every = {(key, root.pid): root for root in self.roots.values() for key in root.away}
        users = {root.pid: user_behind(root.uid) for root in every.values()}
        for which in self._away_turns.choose((users[number], (key, number)) for key, number in every):
            key, root = which[0], every[which]
            if not root.away[key].program.runs():
                del root.away[key]
        for root in list(self.roots.values()):
            self._remove_if_gone(root)

    @property
    def starting(self) -> list[Owner]:
        """Whose the commands are that have no context yet, or again: they may have one at any moment, for a while."""
        busy, since = {process.root.pid for process in self.managed.values()}, time.monotonic() - STARTS_S
        idle = (root for root in self.roots.values() if not root.ended and root.pid not in busy)
        return [root.owner for root in idle if root.idle_since > since]

    @property
    def expected(self) -> set[int]:
        """The processes without a context that may have one again at any moment."""
        return {key.pid for root in self.roots.values() for key in root.away}

    def next_expected(self) -> set[int]:
        """The next few of them of each user."""
        roots = [root for root in self.roots.values() if root.away]
        users = [user_behind(root.uid) for root in roots]
        every = {(user, key.pid) for user, root in zip(users, roots, strict=True) for key in root.away}
        return set(self._expected_turns.choose(every))

    def away(self, pid: int) -> list[ManagedTask]:
        """The tasks without a context of a root's processes, or of the one process of that id."""
        named = self.named(pid)
        kept = [(root, key, away.task) for root in self.roots.values() for key, away in root.away.items()]
        return [task for root, key, task in kept if root is named or key.pid == pid]

    def remove_root(self, root: Root) -> list[str]:
        """Put back all below a root, and forget it; returns what could not be put back."""
        troubles: list[str] = []
        if self.roots.get(root.pid) is root:
            del self.roots[root.pid]
            for pid in root.heirs:
                del self._heirs[pid]
            for process in self._of(root):
                troubles += self.forget(process, restore=True)
            self._loop.remove_reader(root.pidfd)
            os.close(root.pidfd)
            root.quota.close()
            self._gpus.tree_ended(root)
        return troubles

    # -- processes ---------------------------------------------------------------------------------

    def enter(self, process: ManagedProcess) -> None:
        """Look after a process until it ends."""
        if process.pid not in self.managed:
            self.managed[process.pid] = process
            self._loop.add_reader(process.pidfd, self._process_ended, process)

    def _process_ended(self, process: ManagedProcess) -> None:
        """What a process has when it ends may be others' too: it is managed until the last of those has ended."""
        self._loop.remove_reader(process.pidfd)
        self._note_end(process)
        self._held.pop(process.holder, None)
        if any(fd >= 0 for fd in process.files):
            process.sought = self._loop.create_task(self._seek_holder(process))
        else:
            self._gone(process)

    async def _seek_holder(self, process: ManagedProcess) -> None:
        """Find who has the files now. Who hands them on and on is looked for a part of the time: meanwhile all stays as
        it is.
        """
        if process.holder != process.pid:
            await asyncio.sleep(min(1.0, SEEKING_REST * self._seeking_s))
        found = False
        with contextlib.suppress(RunlistError, OSError):  # there may be no descriptor to look with
            for _ in range(SEEKINGS):
                with contextlib.suppress(NoTargetError):
                    found = await self._find_holder(process)
                    break
        if not found:
            process.sought = None
            self._gone(process)

    async def _find_holder(self, process: ManagedProcess) -> bool:
        copies = {fd: file.fileno() for fd, file in process.files.items() if fd >= 0}
        tree = [pid for pids in descendants_then(self.tops(process.root)).values() for pid in pids]
        ours = (os.getpid(), self._keeper.pid, self._gpus.actuator_pid)
        began = time.monotonic()
        looking = asyncio.ensure_future(asyncio.to_thread(borrow.who_has, copies, tree, ours))
        try:
            found = await asyncio.shield(looking)
        except asyncio.CancelledError:
            looking.add_done_callback(_let_go)
            raise
        self._seeking_s = time.monotonic() - began
        return found is not None and self._take_holder(process, found)

    def _take_holder(self, process: ManagedProcess, holder: borrow.Holder) -> bool:
        """Have another process hold what one has left, if it may be of that one's tree. It may have ended by now."""
        pid, pidfd, copies = holder
        uid = owner_of(pid)
        if (uid is not None and not may_answer_for(process.root.uid, uid)) or pid in process.root.excluded:
            os.close(pidfd)
            return False
        os.close(process.pidfd)
        process.pidfd, process.holder, process.sought = pidfd, pid, None
        numbers = {copy: fd for fd, copy in copies.items()}
        process.files = {numbers.get(file.fileno(), fd): file for fd, file in process.files.items()}
        self._held[pid] = process
        for key in process.keys(lambda _: True):
            self._keeper.hand_on(key, pid)
        if self.root_of(pid) is not process.root:
            self.inherit(process.root, [pid])
        self._loop.add_reader(pidfd, self._process_ended, process)
        self.on_end()  # it may have more that is others' now
        return True

    def _gone(self, process: ManagedProcess) -> None:
        self.forget(process, restore=False)
        self._gpus.run_all()
        self.on_end()

    def of(self, pid: int) -> ManagedProcess | None:
        """What is managed of a process: its own, else what another one left it. The id of one that has ended may be
        another's by now.
        """
        process = self.managed.get(pid)
        if process is not None and process.holder != pid and start_of(pid) is not None:
            self.forget(process, restore=True)
            process = None
        return process or self._held.get(pid)

    def _note_end(self, process: ManagedProcess) -> None:
        if process.root.quota.limit is not None:
            while len(self.ended) >= _MOST_ENDED:
                del self.ended[next(iter(self.ended))]
            self.ended[process.pid] = process.root

    def forget(self, process: ManagedProcess, *, restore: bool) -> list[str]:
        """Stop managing a process. With `restore`, put back what was changed; returns what could not be."""
        troubles = process.put_back() if restore else []
        self.drop(process, process.keys())
        return troubles

    def lose(self, pid: int, error: Exception) -> None:
        """Put a process back of which a control failed so, if it is managed. What failed was free in that moment, most
        likely: it keeps its settings, and is looked for again, unless that happened often.
        """
        process = self.managed.get(pid)
        if process is None:
            return
        which = pid, process.program.started
        self._losses = {each: rate for each, rate in self._losses.items() if not rate.is_full}
        if not self._losses.setdefault(which, Rate(1 / FORGIVEN_S, MOST_LOSSES)).take():
            _log.warning("a control failed once more; the process is released", pid=pid, reason=str(error))
            self.forget(process, restore=True)
        else:
            _log.warning("a control failed; the process is put back, and looked for again", pid=pid, reason=str(error))
            self.drop(process, process.keys(), by_itself=True)

    def drop(self, process: ManagedProcess, keys: Iterable[int], *, by_itself: bool = False) -> None:
        """Forget contexts of a process, by the keeper's keys. With its last context a task goes, with its last task the
        process. The others get its share at the next run. A task that closed its contexts `by_itself` keeps its
        settings until it has others.
        """
        if keys := list(keys):
            process.settle()
        for key in keys:
            for task in process.tasks.values():
                if (context := task.contexts.pop(key, None)) is not None and by_itself:
                    context.put_back()  # it may have them where we don't see that, and nobody else puts them back
            self._keeper.unguard(key)
        for gpu, task in list(process.tasks.items()):
            task.recount()
            if keys and task.contexts:
                self._gpus.scheduler(gpu).bind()
            if not task.contexts:
                self._gpus.remove(process.tasks.pop(gpu))
                if by_itself and process.program.runs():
                    task.counts.clear()  # its GPU has them
                    process.root.away[task.task.key] = Away(process.program, task)
        process.close_unused()
        if not process.tasks:
            if by_itself and process.pid in self.managed:  # it may be ending: the kernel closes its files first
                self._note_end(process)
            self._leave(process)

    def _leave(self, process: ManagedProcess) -> None:
        if self.managed.get(process.pid) is process:
            del self.managed[process.pid]
            self._loop.remove_reader(process.pidfd)
        self._held.pop(process.holder, None)
        process.close()
        process.root.idle_since = time.monotonic()
        self._remove_if_gone(process.root)


def _let_go(looking: asyncio.Future[borrow.Holder | None]) -> None:
    """Of a holder that nobody waits for any more."""
    if not looking.cancelled() and looking.exception() is None and (holder := looking.result()) is not None:
        os.close(holder.pidfd)
