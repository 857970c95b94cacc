"""Memory limits of trees as they are kept from outside, and caps of processes out of reach.

- A tree that holds more memory than its limit, by what the driver says, is suspended until it holds no more than that:
  whatever its library says, and whatever is written in its region.
- A process in which nothing keeps the limit is suspended also where only its tree's new limit is below what it holds.
- What a tree holds past its library is charged to it: its library counts it from then on.
- A process of which nobody has a descriptor is shown as out of reach, and the library keeps its cap.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import structlog

from runlist.daemon.gpu.gpus import Gpus
from runlist.daemon.memory.ceiling import TOLERANCE
from runlist.daemon.memory.census import MemoryCensus
from runlist.daemon.memory.enforcement import enforcement
from runlist.daemon.memory.quota import Quota
from runlist.daemon.placement.placement import Placement
from runlist.daemon.tasks.managed import ManagedProcess, ManagedTask, Root, SuspendedBy
from runlist.daemon.tree.group_memory import Breaks, GroupMemory
from runlist.daemon.tree.membership import Membership
from runlist.daemon.tree.processes import Processes
from runlist.errors import RunlistError
from runlist.model import TaskKey
from runlist.planes.process.region import Enforced, Slot, Snapshot
from runlist.proc.process import peak_of
from runlist.units import size

_log = structlog.get_logger()

PATIENCE_S = 2.0
"""A process that holds GPU memory and is not managed counts as out of reach after this: finding it takes up to that."""

SLACK = 64 << 20
"""How many more bytes a process may hold than its library says: the two are not read at the same moment."""

LOOKS_AGAIN_S = (0.01, 0.03, 0.07, 0.13)
"""Pauses before a tree counts as over its limit. The driver's list is not of one moment: what one process gives and
another takes may be in it twice, and what a process held before its end, or before exec, goes when we let go of it."""

SEARCHES = 5
"""How often a tree is looked at for who keeps the memory of a process that ended, and a process that holds some for
what it has: a look may come before the kernel has let go of all that the process had, or before all is there.
"""

GONE_S = 0.02
"""How long the keeper and the driver take to let go of what we let go of."""

UNSEEN_LOOKS = 3
"""What came past a process' library is what was there at all of so many looks."""

_STRANGERS = 64  # processes of a region that no list names, and that are looked at: a tenant can name any
_UNOWNED = 64 << 20  # bytes that are worth a line in the log

PIECE_S = 0.002
"""So long regions are read in a row."""

Held = Mapping[TaskKey, int]
"""Bytes, by process and GPU."""

Stock = Mapping[int, Held]
"""What each tree's processes hold, by the pid of its root."""


class MemoryGuard:
    """Guards the trees that have a memory limit or a region.

    `let_go` closes what we hold of files that their processes closed. `look_again` looks for work in a tree's processes
    that had none when they were looked at, and `look_soon` in one of them.
    """

    def __init__(
        self,
        processes: Processes,
        gpus: Gpus,
        census: MemoryCensus,
        placement: Placement,
        let_go: Callable[[], None],
        look_again: Callable[[Root], None],
        look_soon: Callable[[int], None],
    ) -> None:
        self._seen_outside: dict[TaskKey, ManagedTask] = {}  # at the last look
        self._processes = processes
        self._gpus = gpus
        self._census = census
        self._placement = placement
        self._let_go = let_go
        self._look_again = look_again
        self._look_soon = look_soon
        self._members = Membership(processes)
        self._groups = GroupMemory()
        self._since: dict[TaskKey, float] = {}  # when each task outside was first seen
        self._looked_for: Counter[TaskKey] = Counter()  # how often one looked for it since
        self._told: set[int] = set()  # processes that the log named as not limited from inside
        self._unseen: dict[tuple[int, str], deque[int]] = {}  # bytes past the library at the last looks, by root, GPU
        self._past: dict[tuple[int, TaskKey], deque[int]] = {}  # the same of each process, by each of its trees
        self._snapshots: dict[int, Snapshot | None] = {}  # of regions, when the driver's list was new, by root
        self._sought: Counter[int] = Counter()  # looks for who keeps the memory of processes that ended
        self._guards = True  # at the last look: an earlier daemon may have left somebody held
        self._unowned: dict[str, int] = {}  # looks in a row at which there was much of it, by GPU

    @property
    def hurries(self) -> bool:
        """Whether there is a limit that the daemon keeps."""
        return bool(self._groups) or any(root.quota.firm is not None for root in self._processes.roots.values())

    async def check(self) -> None:
        """Ask NVML anew, and look; several times before a tree counts as over its limit."""
        self._processes.forget_ended(self._processes.ended)
        self._groups.update([*self._processes.tasks(), *self.outside.values()])
        watched, self._guards = self._guards, bool(self._watched())
        if not self._guards:
            if watched:
                self.look()  # who was held for memory is let go
            return
        stock = await self._fresh_stock()
        often = self._breaking(stock, Quota.breaks_often)
        sure = self._breaking(stock) | often
        for pause_s in LOOKS_AGAIN_S if sure - often else ():
            await asyncio.sleep(pause_s)
            self._let_go()
            await asyncio.sleep(GONE_S)
            stock = await self._fresh_stock()
            sure = sure & self._breaking(stock) | often
            if not sure - often:
                break
        self.look(sure, stock)

    async def _fresh_stock(self) -> Stock:
        """What trees hold now. Regions are read in pieces, since a user may have many: others come between."""
        await self._census.refresh()
        since = began = time.monotonic()
        for root in sorted(self._watched(), key=lambda root: root.quota.read_at):  # not all may be read at once
            if (snapshot := root.quota.look(kept_s=0.0)) is not None:
                snapshot.holders()
            if time.monotonic() - began >= PIECE_S:
                await asyncio.sleep(0)
                began = time.monotonic()
        return self._stock(since)

    def look(self, sure: set[tuple[int | str, str]] | None = None, stock: Stock | None = None) -> None:
        """Look once, by what NVML said last. No trees but those in `sure` (root, GPU) are found to be over now."""
        stock = self._stock() if stock is None else stock
        now = time.monotonic()
        seen = {key for held in stock.values() for key in held} - self._managed()
        self._since = {key: self._since.get(key, now) for key in seen}
        self._looked_for = Counter({key: times for key, times in self._looked_for.items() if key in seen})
        self._told &= {key.pid for held in stock.values() for key in held} | self._processes.managed.keys()
        outside: dict[TaskKey, ManagedTask] = {}
        for root in self._watched():
            held = stock[root.pid]
            mine = [
                self._outside(root, key)
                for key in held
                if now - self._since.get(key, now) >= PATIENCE_S and key.pid not in root.excluded
            ]
            outside |= {task.task.key: task for task in mine}
            root.quota.see_who_left({key.pid for key in held if not self._members.has_ended(key.pid)})
            root.quota.put_back()
            self._charge_unseen(root, held)
            self._take_note(root, held, sure)
            self._cap_inside(root, mine)
            self._look_for(root, [key for key in held if key in seen])
        self._seen_outside = outside
        self._groups.take_note(
            self._gpu_names(), lambda name, gpu: sure is None or (name, gpu) in sure, self._census.answers
        )
        self._unseen = {(root, gpu): past for (root, gpu), past in self._unseen.items() if root in stock}
        self._note_past(self._concerned(stock))
        changed = {gpu for process in self._concerned(stock) for gpu in self._hold(process, stock)}
        self._tell_unowned()
        self._gpus.run(changed, set())

    @property
    def outside(self) -> dict[TaskKey, ManagedTask]:
        """Tasks of the trees that cannot be managed."""
        managed = self._managed()  # some are since the last look
        return {key: task for key, task in self._seen_outside.items() if key not in managed}

    def _managed(self) -> set[TaskKey]:
        return {task.task.key for task in self._processes.tasks()}

    def _watched(self) -> list[Root]:
        shared = self._groups.roots
        return [root for root in self._processes.roots.values() if _limited(root) or root.pid in shared]

    # -- what trees hold ---------------------------------------------------------------------------

    def _stock(self, since: float | None = None) -> dict[int, dict[TaskKey, int]]:
        """The bytes that each process of each tree holds on each GPU, by the pid of the tree's root: the larger of
        NVML's number and its own, as of some time or now. A tree's processes are those of the trees in it, too.
        """
        stock: dict[int, dict[TaskKey, int]] = {root.pid: {} for root in self._watched()}
        self._snapshots = {}
        if not stock:
            return stock
        gpus = self._gpu_names()
        listed = {gpu: self._census.listed(gpu) for gpu in gpus}
        self._members.update({pid for held in listed.values() for pid in held})
        self._find_heirs(listed)
        for gpu, held in listed.items():
            for pid, octets in held.items():
                key = TaskKey(self._census.heirs.get(pid, pid), gpu)
                for root in self._members.trees_of(pid):
                    if root.pid in stock:
                        stock[root.pid][key] = stock[root.pid].get(key, 0) + octets
        for root in self._watched():
            mine = stock[root.pid]
            for key, octets in self._told_by(root, since).items():
                if octets > mine.get(key, 0) and root in self._members.trees_of(key.pid):
                    mine[key] = octets
        self._groups.take_stock(stock, self._processes.managed.__contains__)
        return stock

    def _told_by(self, root: Root, since: float | None) -> dict[TaskKey, int]:
        """The bytes that the library of each process of a tree tells."""
        snapshot = root.quota.look(kept_s=0.0 if since is None else time.monotonic() - since)
        self._snapshots[root.pid] = snapshot
        if snapshot is None:
            return {}
        devices = {gpu: device.index for gpu in self._gpu_names() if (device := snapshot.device(gpu)) is not None}
        return {
            TaskKey(pid, gpu): slot.use[index].total
            for pid, slot in snapshot.processes(self._members.known, _STRANGERS).items()
            for gpu, index in devices.items()
        }

    def _find_heirs(self, listed: Mapping[str, Mapping[int, int]]) -> None:
        """Find the processes that keep memory of others that ended: they are on the GPU, and it does not list them."""
        ended = {pid for held in listed.values() for pid in held if self._members.has_ended(pid)}
        ended -= self._processes.managed.keys()  # who holds what these left is known
        heirs: dict[int, int] = {}
        for pid in ended:
            guests = [
                process
                for process in self._processes.managed.values()
                if any(pid in held and gpu in process.tasks and process.pid not in held for gpu, held in listed.items())
            ]
            trees = self._members.trees_of(pid)
            if trees:
                guests = [process for process in guests if trees[0] in self._processes.chain(process.root)]
            else:
                guests = [process for process in guests if self._was_there(process)]
                if len({process.root.pid for process in guests}) == 1:
                    self._members.adopt(pid, guests[0].root)
                else:
                    guests = []
            if guests:
                heirs[pid] = guests[0].pid
            elif trees and self._sought[pid] < SEARCHES:
                self._sought[pid] += 1
                self._look_again(trees[0])
        self._sought = Counter({pid: times for pid, times in self._sought.items() if pid in ended})
        self._census.heirs = heirs

    def _was_there(self, process: ManagedProcess) -> bool:
        """Whether a process was on its GPUs when the census was asked. One that came later is in no list, whatever it
        holds.
        """
        return all(task.there_since < self._census.began(gpu) for gpu, task in process.tasks.items())

    def _breaking(self, stock: Stock, breaks: Breaks = Quota.breaks) -> set[tuple[int | str, str]]:
        """The trees that break their limit by this look, by root and GPU, and the groups by name and GPU."""
        return {
            (root.pid, gpu)
            for root in self._watched()
            for gpu in self._gpu_names()
            if root.pid in stock and breaks(root.quota, gpu, _total(stock[root.pid], gpu))
        } | self._groups.breaking(self._gpu_names(), breaks)

    def _gpu_names(self) -> list[str]:
        return self._gpus.with_listed(self._census.gpus())

    def _outside(self, root: Root, key: TaskKey) -> ManagedTask:
        """A task that cannot be managed, for views, with the settings that it would have."""
        task = self._placement.new_task(key.pid, key.gpu, root)
        why = self._processes.left.get(key.pid, "nobody may borrow from it, and it lent nothing")
        task.outside = f"not managed: {why.removeprefix(f'process {key.pid} is not managed: ')}"
        if key not in self.outside:
            _log.warning("a process is out of reach", pid=key.pid, gpu=key.gpu, reason=why)
        return task

    def _look_for(self, root: Root, keys: list[TaskKey]) -> None:
        """Have these found: nobody looks at a process whose number of open files stays as it was, whatever it does. A
        look may come before there is a channel group; who holds too much may wait with those.
        """
        for key in keys:
            first = self._looked_for[key] < SEARCHES and key.pid not in self._processes.left
            may_be_found = key.pid not in root.excluded and not self._members.has_ended(key.pid)
            if may_be_found and (first or root.quota.is_over(key.gpu)):
                self._looked_for[key] += 1
                self._look_soon(key.pid)

    # -- what is done about it ---------------------------------------------------------------------

    def _take_note(self, root: Root, held: Held, sure: set[tuple[int | str, str]] | None) -> None:
        """Tell the quota what its tree holds, and the log when that becomes too much, or no more."""
        for gpu in self._gpu_names():
            total, was = _total(held, gpu), root.quota.is_over(gpu)
            if was and not self._census.answers(gpu):  # nobody knows whether it still is
                continue
            is_over = root.quota.take_note(gpu, total, sure=sure is None or (root.pid, gpu) in sure)
            if is_over is not was:
                say = _log.warning if is_over else _log.info
                say(
                    "a tree holds more than its memory limit; suspended"
                    if is_over
                    else "a tree is within its limit again",
                    root=root.pid,
                    gpu=gpu,
                    held=size(total),
                    limit=None if root.quota.limit is None else size(root.quota.limit),
                    processes=sorted(key.pid for key in held if key.gpu == gpu),
                )

    def _concerned(self, stock: Stock) -> list[ManagedProcess]:
        """The processes that are to be held or let go: where nothing is limited, those that were held before."""
        managed = list(self._processes.managed.values())
        if stock or self._groups:
            return managed
        return [one for one in managed if any(SuspendedBy.MEMORY in task.suspended_by for task in one.tasks.values())]

    def _hold(self, process: ManagedProcess, stock: Stock) -> set[str]:
        """Suspend a process' tasks for their tree's memory, or let them go; returns the GPUs with a change."""
        changed = set()
        for gpu, task in process.tasks.items():
            why = next(filter(None, (self._why_off(process, gpu, root, stock) for root in self._trees(process))), "")
            why = why or self._groups.why_off(process.pid, gpu, partial(self._is_inside, process, gpu))
            if bool(why) is not (SuspendedBy.MEMORY in task.suspended_by):
                changed.add(gpu)
            elif why and not task.share.enabled:  # it may have enabled itself
                with contextlib.suppress(RunlistError, OSError):
                    task.suspend_again()
            if why:
                task.suspend_for(SuspendedBy.MEMORY, why)
            elif SuspendedBy.MEMORY in task.suspended_by:
                task.let_go(SuspendedBy.MEMORY)
        return changed

    def _trees(self, process: ManagedProcess) -> list[Root]:
        return [root for root in self._processes.chain(process.root) if _limited(root)]

    def _why_off(self, process: ManagedProcess, gpu: str, root: Root, stock: Stock) -> str:
        """Why a process is to be off a GPU for the memory of a tree that it is in, or nothing."""
        limit = root.quota.limit_on(gpu)
        if limit is None or root.quota.by_driver:
            return ""
        why = self._not_inside(process, gpu, root)
        if why and process.pid not in self._told and peak_of(process.pid):  # else it is ending
            self._told.add(process.pid)
            _log.warning("a process is not limited from inside", pid=process.pid, why=why)
        total = _total(stock[root.pid], gpu)
        if root.quota.is_over(gpu):
            limit = root.quota.limit or 0
        elif not why or total <= limit:
            return ""
        if total <= limit:
            return f"suspended for a while: its tree held more than its {size(limit)} again and again"
        nothing = f", which nothing in this process keeps ({why})" if why else ""
        return f"suspended: its tree holds {size(total)} with a limit of {size(limit)}{nothing}"

    def _not_inside(self, process: ManagedProcess, gpu: str, root: Root) -> str:
        """Why the library does not keep the limit of a tree in a process, or nothing."""
        snapshot = root.quota.look()
        slot = None if snapshot is None else snapshot.slot_of(process.pid)
        past = self._past.get((root.pid, TaskKey(process.pid, gpu)), ())
        return _why_not_inside(process.pid, slot, _each_time(past))

    def _note_past(self, processes: list[ManagedProcess]) -> None:
        """Take note of what each process holds beyond what its library told then."""
        before, self._past = self._past, {}
        for process in processes:
            for root in (process.root, *self._trees(process)):
                snapshot = self._snapshots.get(root.pid)
                slot = None if snapshot is None else snapshot.slot_of(process.pid)
                for gpu in process.tasks:
                    key = root.pid, TaskKey(process.pid, gpu)
                    if key in self._past:
                        continue
                    device = None if snapshot is None else snapshot.device(gpu)
                    told = slot.use[device.index].total if slot is not None and device is not None else 0
                    self._past[key] = before.get(key, deque(maxlen=UNSEEN_LOOKS))
                    self._past[key].append(self._census.by_pid(gpu).get(process.pid, 0) - told)

    def _is_inside(self, process: ManagedProcess, gpu: str) -> bool:
        return not self._not_inside(process, gpu, process.root)

    def _charge_unseen(self, root: Root, held: Held) -> None:
        """Have the library count what a tree holds beyond all that its region told then."""
        snapshot = self._snapshots.get(root.pid)
        if snapshot is None:
            return
        for gpu in self._gpu_names():
            by_pid = self._census.by_pid(gpu)
            listed = [by_pid.get(key.pid, 0) for key in held if key.gpu == gpu]
            past = self._unseen.setdefault((root.pid, gpu), deque(maxlen=UNSEEN_LOOKS))
            past.append(sum(listed) - snapshot.told(gpu))
            octets = _each_time(past)
            root.quota.charge_unseen(gpu, octets if octets > TOLERANCE * len(listed) else 0)

    def _tell_unowned(self) -> None:
        """Tell the log of memory that no process is known to hold, once for each time."""
        for gpu in self._gpu_names() if self.hurries else ():
            octets = self._census.unowned(gpu) or 0
            self._unowned[gpu] = self._unowned.get(gpu, 0) + 1 if octets >= _UNOWNED else 0
            if self._unowned[gpu] == UNSEEN_LOOKS:
                _log.warning("memory is in use that no process is known to hold", gpu=gpu, bytes=size(octets))

    def _cap_inside(self, root: Root, outside: list[ManagedTask]) -> None:
        """Have the library keep the cap of processes that only it can reach. A cap that was asked for replaces those
        that the tree brought along.
        """
        snapshot = root.quota.look()
        fractions = [
            task.task.cap.fraction
            for task in outside
            if task.task.cap is not None and snapshot is not None and snapshot.slot_of(task.task.key.pid) is not None
        ]
        root.quota.set_cap(min(fractions, default=None), asked="cap" in root.settings)


def _total(held: Held, gpu: str) -> int:
    return sum(octets for key, octets in held.items() if key.gpu == gpu)


def _each_time(past: Sequence[int]) -> int:
    """The bytes that each of the last looks found; 0 while there were too few."""
    return min(past) if len(past) == UNSEEN_LOOKS else 0


def _why_not_inside(pid: int, slot: Slot | None, unseen: int) -> str:
    """Why the library does not keep the limit in a process, or nothing. `unseen` are bytes that it does not count."""
    if slot is None or Enforced.MEMORY not in slot.enforced:
        return enforcement(pid, slot)
    return f"{size(unseen)} came past the library" if unseen > SLACK else ""


def _limited(root: Root) -> bool:
    return root.quota.has_region or root.quota.limit is not None
