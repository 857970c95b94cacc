"""Once a second: limits that hold although a process is not what it should be.

- A process that dropped the library is suspended while its tree holds more than it may.
- A process that nobody has a descriptor of is shown as such, and has its cap kept by the library.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import structlog

from runlist.daemon.gpu.gpus import Gpus
from runlist.daemon.memory.census import Memory
from runlist.daemon.memory.enforcement import enforcement
from runlist.daemon.placement.placement import Placement
from runlist.daemon.tasks.managed import Hold, ManagedTask, Root
from runlist.daemon.tree.processes import Processes
from runlist.model import TaskKey
from runlist.planes.process.region import Enforced, Slot
from runlist.units import size

_log = structlog.get_logger()

PATIENCE_S = 2.0
"""How long a process may hold GPU memory without being managed until it counts as out of reach: finding a new context
takes up to that.
"""


SLACK = 64 << 20
"""How much more a process may hold than its library says: the two agree to the byte, but not at the same moment."""


class MemoryGuard:
    """Looks after the trees that have a limit or a cap, and after those whose processes have a region.

    `outside` are the tasks that are there and not managed.
    """

    def __init__(self, processes: Processes, gpus: Gpus, memory: Memory, placement: Placement) -> None:
        self.outside: dict[TaskKey, ManagedTask] = {}
        self._processes = processes
        self._gpus = gpus
        self._memory = memory
        self._placement = placement
        self._since: dict[TaskKey, float] = {}  # when each task outside was first seen
        self._told: set[int] = set()  # processes of which the log has that they are not limited from inside

    async def check(self) -> None:
        """Look once."""
        if any(_limited(root) for root in self._processes.roots.values()):
            await self._memory.refresh()
        self.look()

    def look(self) -> None:
        """Look once, at what NVML said last."""
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
            changed |= self._hold(root, held)
            self._cap_inside(root, mine)
        self.outside = outside
        self._gpus.run(changed, set())

    def _managed(self) -> set[TaskKey]:
        return {task.task.key for process in self._processes.managed.values() for task in process.tasks.values()}

    def _present(self, root: Root) -> dict[TaskKey, int]:
        """What each process of a tree holds on each GPU, in bytes: as NVML tells, or as it says itself, if that is
        more.
        """
        held: dict[TaskKey, int] = {}
        snapshot = root.quota.look()
        slots = {} if snapshot is None else snapshot.processes()
        for gpu in self._gpu_names():
            device = None if snapshot is None else snapshot.device(gpu)
            told = {} if device is None else {pid: slot.use[device.index].total for pid, slot in slots.items()}
            for pid, octets in [*self._memory.by_pid(gpu).items(), *told.items()]:
                key = TaskKey(pid, gpu)
                if octets > held.get(key, 0) and self._processes.root_of(pid) is root:
                    held[key] = octets
        return held

    def _gpu_names(self) -> list[str]:
        return list(dict.fromkeys([*self._memory.gpus(), *(scheduler.gpu for scheduler in self._gpus.all())]))

    def _outside(self, root: Root, key: TaskKey) -> ManagedTask:
        """A task that is not managed, as it is shown, with the settings that it would have now."""
        task = self._placement.new_task(key.pid, key.gpu, root)
        why = self._processes.left.get(key.pid, "nobody may borrow from it, and it lent nothing")
        task.outside = f"not managed: {why}"
        if key not in self.outside:
            _log.warning("a process is out of reach", pid=key.pid, gpu=key.gpu, reason=why)
        return task

    def _hold(self, root: Root, held: Mapping[TaskKey, int]) -> set[str]:
        """Suspend or resume the tasks that are not limited from inside; returns the GPUs where that changes
        something.
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
                unseen = self._memory.by_pid(gpu).get(process.pid, 0) - seen
                why = "" if limit is None or root.quota.by_driver else _why_not_inside(process.pid, slot, unseen)
                if why and process.pid not in self._told:
                    self._told.add(process.pid)
                    _log.warning("a process is not limited from inside", pid=process.pid, why=why)
                total = sum(octets for key, octets in held.items() if key.gpu == gpu)
                over = bool(why) and limit is not None and total > limit
                if over is not (Hold.MEMORY in task.holds):
                    changed.add(gpu)
                if over and limit is not None:
                    told = f"its tree holds {size(total)} and may hold {size(limit)}, and it would not see to that"
                    task.hold(Hold.MEMORY, f"suspended: {told} ({why})")
                else:
                    task.release(Hold.MEMORY)
        return changed

    def _cap_inside(self, root: Root, outside: list[ManagedTask]) -> None:
        """Have the library keep the cap of processes that only it can reach. Where a cap was asked for, those that the
        tree brought along give way to it.
        """
        snapshot = root.quota.look()
        fractions = [
            task.task.cap.fraction
            for task in outside
            if task.task.cap is not None and snapshot is not None and snapshot.slot_of(task.task.key.pid) is not None
        ]
        root.quota.set_cap(min(fractions, default=None), asked="cap" in root.settings)


def _why_not_inside(pid: int, slot: Slot | None, unseen: int) -> str:
    """Why the library does not see to the limit in a process, of whose memory it did not see so much; or nothing."""
    if slot is None or Enforced.MEMORY not in slot.enforced:
        return enforcement(pid, slot)
    return f"{size(unseen)} came past the library" if unseen > SLACK else ""


def _limited(root: Root) -> bool:
    return root.quota.has_region or root.quota.limit is not None
