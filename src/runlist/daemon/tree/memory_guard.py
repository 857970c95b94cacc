"""Once a second: memory limits of processes without the library, and caps of processes out of reach.

- A process that dropped the library is suspended while its tree holds more memory than its limit.
- A process of which nobody has a descriptor is shown as out of reach, and the library keeps its cap.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import structlog

from runlist.daemon.gpu.gpus import Gpus
from runlist.daemon.memory.census import MemoryCensus
from runlist.daemon.memory.enforcement import enforcement
from runlist.daemon.placement.placement import Placement
from runlist.daemon.tasks.managed import ManagedTask, Root, SuspendedBy
from runlist.daemon.tree.processes import Processes
from runlist.model import TaskKey
from runlist.planes.process.region import Enforced, Slot
from runlist.units import size

_log = structlog.get_logger()

PATIENCE_S = 2.0
"""A process that holds GPU memory and is not managed counts as out of reach after this: finding it takes up to that."""

SLACK = 64 << 20
"""How many more bytes a process may hold than its library says: the two are not read at the same moment."""


class MemoryGuard:
    """Guards the trees that have a memory limit or a region. `outside` are their tasks that cannot be managed."""

    def __init__(self, processes: Processes, gpus: Gpus, census: MemoryCensus, placement: Placement) -> None:
        self.outside: dict[TaskKey, ManagedTask] = {}
        self._processes = processes
        self._gpus = gpus
        self._census = census
        self._placement = placement
        self._since: dict[TaskKey, float] = {}  # when each task outside was first seen
        self._told: set[int] = set()  # processes that the log named as not limited from inside

    async def check(self) -> None:
        """Ask NVML anew, and look once."""
        if any(_limited(root) for root in self._processes.roots.values()):
            await self._census.refresh()
        self.look()

    def look(self) -> None:
        """Look once, by what NVML said last."""
        present = {root.pid: self._present(root) for root in self._processes.roots.values() if _limited(root)}
        now = time.monotonic()
        seen = {key for held in present.values() for key in held} - self._managed()
        self._since = {key: self._since.get(key, now) for key in seen}
        self._told &= {key.pid for held in present.values() for key in held}
        outside: dict[TaskKey, ManagedTask] = {}
        changed: set[str] = set()
        for root in [self._processes.roots[pid] for pid in present]:
            held = present[root.pid]
            mine = [
                self._outside(root, key)
                for key in held
                if now - self._since.get(key, now) >= PATIENCE_S and key.pid not in root.excluded
            ]
            outside |= {task.task.key: task for task in mine}
            changed |= self._suspend_over_limit(root, held)
            self._cap_inside(root, mine)
        self.outside = outside
        self._gpus.run(changed, set())

    def _managed(self) -> set[TaskKey]:
        return {task.task.key for task in self._processes.tasks()}

    def _present(self, root: Root) -> dict[TaskKey, int]:
        """The bytes that each process of a tree holds on each GPU: the larger of NVML's number and its own."""
        held: dict[TaskKey, int] = {}
        snapshot = root.quota.look()
        slots = {} if snapshot is None else snapshot.processes()
        for gpu in self._gpu_names():
            device = None if snapshot is None else snapshot.device(gpu)
            told = {} if device is None else {pid: slot.use[device.index].total for pid, slot in slots.items()}
            for pid, octets in [*self._census.by_pid(gpu).items(), *told.items()]:
                key = TaskKey(pid, gpu)
                if octets > held.get(key, 0) and self._processes.root_of(pid) is root:
                    held[key] = octets
        return held

    def _gpu_names(self) -> list[str]:
        return list(dict.fromkeys([*self._census.gpus(), *(scheduler.gpu for scheduler in self._gpus.all())]))

    def _outside(self, root: Root, key: TaskKey) -> ManagedTask:
        """A task that cannot be managed, for views, with the settings that it would have."""
        task = self._placement.new_task(key.pid, key.gpu, root)
        why = self._processes.left.get(key.pid, "nobody may borrow from it, and it lent nothing")
        task.outside = f"not managed: {why}"
        if key not in self.outside:
            _log.warning("a process is out of reach", pid=key.pid, gpu=key.gpu, reason=why)
        return task

    def _suspend_over_limit(self, root: Root, held: Mapping[TaskKey, int]) -> set[str]:
        """Suspend tasks that are not limited from inside while their tree is over its limit, and let the others go;
        returns the GPUs with a change.
        """
        changed = set()
        root.quota.put_back()
        snapshot = root.quota.look()
        for process in self._processes.under(root.pid):
            slot = None if snapshot is None else snapshot.slot_of(process.pid)
            for gpu, task in process.tasks.items():
                limit = root.quota.limit_on(gpu)
                device = None if snapshot is None else snapshot.device(gpu)
                seen = slot.use[device.index].total if slot is not None and device is not None else 0
                unseen = self._census.by_pid(gpu).get(process.pid, 0) - seen
                why = "" if limit is None or root.quota.by_driver else _why_not_inside(process.pid, slot, unseen)
                if why and process.pid not in self._told:
                    self._told.add(process.pid)
                    _log.warning("a process is not limited from inside", pid=process.pid, why=why)
                total = sum(octets for key, octets in held.items() if key.gpu == gpu)
                over = bool(why) and limit is not None and total > limit
                if over is not (SuspendedBy.MEMORY in task.suspended_by):
                    changed.add(gpu)
                if over and limit is not None:
                    told = f"its tree holds {size(total)} with a limit of {size(limit)}"
                    task.suspend_for(
                        SuspendedBy.MEMORY, f"suspended: {told}, which nothing in this process keeps ({why})"
                    )
                else:
                    task.let_go(SuspendedBy.MEMORY)
        return changed

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


def _why_not_inside(pid: int, slot: Slot | None, unseen: int) -> str:
    """Why the library does not keep the limit in a process, or nothing. `unseen` are bytes that it does not count."""
    if slot is None or Enforced.MEMORY not in slot.enforced:
        return enforcement(pid, slot)
    return f"{size(unseen)} came past the library" if unseen > SLACK else ""


def _limited(root: Root) -> bool:
    return root.quota.has_region or root.quota.limit is not None
