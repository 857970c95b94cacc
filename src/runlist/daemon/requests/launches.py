"""The commands of `runlist run`: they wait for room, and what descends from them is managed as it comes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable

from runlist.daemon.gpu.gpus import Gpus
from runlist.daemon.memory.census import MemoryCensus
from runlist.daemon.placement.placement import Placement
from runlist.daemon.placement.queue import Command
from runlist.daemon.placement.rules import Over
from runlist.daemon.requests.memory_limits import limit_memory, limit_notes, sent_region
from runlist.daemon.requests.rights import check_owner, check_right
from runlist.daemon.tasks.managed import Root
from runlist.daemon.tree.descriptors import Descriptors
from runlist.daemon.tree.processes import FULL, Processes
from runlist.errors import RunlistError
from runlist.model import TaskClass
from runlist.planes.interface import Borrower
from runlist.proc.borrow import OwnRight
from runlist.proc.owners import Owner, user_behind
from runlist.proc.process import descendants, start_of, starts_of
from runlist.settings.table import apply_changes, override, parse_request

_QUEUE_LOOK_S = 0.2
_COUNTS_S = 0.02
_LOOKS_AT_LEFT, _MOST_LEFT = 20, 64
"""So often so many of those are looked at that a command left, while some end: they may hand on what they have on a
GPU, and only as long as the launcher lives they are below it.
"""


class Launches:
    """The launchers, which are `runlist run` processes. `opened` is set when it is worth looking for new processes, and
    `look_at` looks at some of a tree. Methods raise as those of `Manager` do: then nothing has changed.
    """

    def __init__(
        self,
        gpus: Gpus,
        census: MemoryCensus,
        placement: Placement,
        processes: Processes,
        descriptors: Descriptors,
        opened: asyncio.Event,
        look_at: Callable[[Root, Iterable[int]], Awaitable[None]],
    ) -> None:
        self._look_at = look_at
        self._gpus = gpus
        self._census = census
        self._placement = placement
        self._processes = processes
        self._descriptors = descriptors
        self._opened = opened
        self._next: tuple[float, int | None] | None = None  # when it was found out whose turn it is, and the launcher

    async def begin(
        self,
        pid: int,
        settings: dict[str, str],
        launcher: Borrower,
        region_fd: int | None,
        uid: int,
        tell: Callable[[str], None] | None = None,
    ) -> list[str]:
        """Manage all descendants of a `runlist run` process, as they come. Returns notes once there is room for them;
        what happens later it is told by `tell`. Takes the region's descriptor over.
        """
        began = start_of(pid)
        region = None if region_fd is None else await sent_region(self._descriptors, region_fd, uid)
        try:
            changes, said = parse_request(settings)
            asked = apply_changes(changes)
            if reason := self._placement.no_class(pid, Owner.of(pid, uid), asked):
                raise RunlistError(f"the command is not started: {reason}")
            settings = await self._room_for(pid, settings, uid)
            await self._processes.find_ancestors(pid)
            outer = self._processes.root_of(pid)
            borrowers = OwnRight(), launcher
            root = self._processes.add_root(pid, settings, borrowers, region, asked_by=uid, began=began)
            root.tell = tell
        except BaseException:
            if region is not None:
                region.close()
            raise
        try:
            limit_memory(root, self._placement, keeps=False)
            notes = said + limit_notes(root, self._census, self._gpus)
        except BaseException:
            self._processes.remove_root(root)
            raise
        if outer is not None and settings:
            notes.append(
                f"this is below process {outer.pid}, which is managed: its settings count for all below it; "
                f"change them with `runlist set {outer.pid}`"
            )
        return notes

    async def hung_up(self, pid: int, launcher: Borrower) -> None:
        """`runlist run` hung up: only our own right is left for its descendants. Where some are left it waits for this
        to return, since they lose their parent with it.
        """
        root = self._processes.roots.get(pid)
        if root is None or launcher not in root.borrowers:  # the id may be another's by now
            return
        root.borrowers, root.tell = (OwnRight(),), None
        looked_at: set[int] = set()
        for _ in range(_LOOKS_AT_LEFT):
            left = (await asyncio.to_thread(descendants, [pid]))[pid][1:]
            if self._processes.roots.get(root.pid) is not root or not left:
                return
            self._processes.inherit(root, left)
            self._opened.set()
            come = [each for each in left if each not in looked_at][-_MOST_LEFT:]
            await self._look_at(root, come)
            looked_at.update(come)
            if None not in starts_of(come).values():  # else one has ended, and may have left what it has to another
                return

    def waiting(self, uid: int) -> tuple[list[str], int]:
        """The tasks and commands of a user (root: of all) that wait for room, in words, and how many others wait."""
        managed = (task for process in self._processes.managed.values() for task in process.tasks.values())
        queued = [task.task for task in managed if task.queued]
        everybody = [
            (task.uid, f"process {task.key.pid} ({task.command}) on GPU {task.key.gpu}") for task in queued
        ] + [(each.uid, f"the command of process {pid}") for pid, each in self._placement.queue.commands.items()]
        mine = [words for owner, words in everybody if uid in (0, owner)]
        return mine, len(everybody) - len(mine)

    async def _room_for(self, pid: int, settings: dict[str, str], uid: int) -> dict[str, str]:
        """Wait until there is room for a launcher's command; returns the settings for it."""
        check_owner(pid, uid)
        check_right(settings, uid)
        rules, queue = self._placement.rules, self._placement.queue
        if self._processes.is_root(pid) or pid in queue.commands:
            raise RunlistError(f"process {pid} is managed already")
        if self._processes.is_full(uid, [each.owner.uid for each in queue.commands.values()].count(user_behind(uid))):
            raise RunlistError(FULL)
        owner = Owner.of(pid, uid)
        queue.commands[pid], self._next = Command(owner, uid), None
        try:
            while rules.limits.over is Over.QUEUE:
                if self._next_command() == pid:
                    return settings
                await asyncio.sleep(_QUEUE_LOOK_S)
                check_owner(pid, uid)  # it may have given up
        finally:
            del queue.commands[pid]
            self._next = None
        reason = queue.no_room_anywhere(self._all_gpus(), owner, self._processes.starting)
        if reason is not None and rules.limits.over is Over.REFUSE:
            raise RunlistError(f"the command is not started: {reason}")
        return settings if reason is None else override(settings, {"class": TaskClass.BATCH})

    def _next_command(self) -> int | None:
        """The launcher whose turn it is. All that wait ask for it, so what was found out counts for a moment."""
        now = time.monotonic()
        if self._next is None or now - self._next[0] > _COUNTS_S:
            self._next = now, self._placement.queue.next_command(self._all_gpus(), self._processes.starting)
        return self._next[1]

    def _all_gpus(self) -> list[str]:
        return self._gpus.with_listed(self._census.gpus())
