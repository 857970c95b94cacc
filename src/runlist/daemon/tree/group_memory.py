"""Memory limits of groups: what a rule with a memory and a group lets all processes of the group hold together.

A group has no region: its processes may be of several trees. It is over when they hold more than its limit, by what the
driver says, and then all of them are suspended until they hold no more. The library of each tree refuses what goes
beyond what the trees beside it left at the last look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec
import structlog

from runlist.daemon.memory.quota import Quota
from runlist.daemon.tasks.managed import ManagedTask, Root
from runlist.model import TaskKey
from runlist.units import size

_log = structlog.get_logger()

Breaks = Callable[[Quota, str, int], bool]
"""Whether a limit is broken on a GPU by so many bytes: a method of `Quota`."""

Held = dict[TaskKey, int]


class _Group(msgspec.Struct):
    """One group: its limit, the trees of its processes by the pid of their root, and what these hold."""

    quota: Quota = msgspec.field(default_factory=Quota)
    roots: dict[int, Root] = {}
    held: dict[int, Held] = {}

    def total(self, gpu: str, but: int | None = None) -> int:
        """What is held on a GPU, without the tree of this root."""
        by_key = {key: octets for root, held in self.held.items() if root != but for key, octets in held.items()}
        return sum(octets for key, octets in by_key.items() if key.gpu == gpu)


class GroupMemory:
    """The groups with a limit, by name."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        self._of_pid: dict[int, str] = {}

    def __bool__(self) -> bool:
        return bool(self._groups)

    def update(self, tasks: Iterable[ManagedTask]) -> None:
        """These are all tasks now. The smallest limit that the rules give to one of a group's processes counts."""
        limits: dict[str, int] = {}
        roots: dict[str, dict[int, Root]] = {}
        self._of_pid = {}
        for task in tasks:
            name = task.task.group
            if task.shared_memory is None or not name or task.root is None:
                continue
            if task.task.group_of is not None:  # a user's own, which may have the same name
                continue
            limits[name] = min(task.shared_memory, limits.get(name, task.shared_memory))
            roots.setdefault(name, {})[task.root.pid] = task.root
            self._of_pid[task.task.key.pid] = name
        before = {id(root): root for group in self._groups.values() for root in group.roots.values()}
        self._groups = {name: self._groups.get(name, _Group()) for name in limits}
        for name, group in self._groups.items():
            group.roots = roots[name]
            group.quota.follow(limits[name], keeps=True)
        now = {id(root) for group in self._groups.values() for root in group.roots.values()}
        for key, root in before.items():
            if key not in now:
                root.quota.allow(None, {})

    @property
    def roots(self) -> set[int]:
        """The pids of the roots that have processes in such a group."""
        return {pid for group in self._groups.values() for pid in group.roots}

    def take_stock(self, stock: Mapping[int, Mapping[TaskKey, int]], managed: Callable[[int], bool]) -> None:
        """What the processes of each tree hold. One that nobody has reached yet is of its tree's group."""
        for name, group in self._groups.items():
            group.held = {
                root: {
                    key: octets
                    for key, octets in stock.get(root, {}).items()
                    if self._of_pid.get(key.pid, "" if managed(key.pid) else name) == name
                }
                for root in group.roots
            }

    def breaking(self, gpus: Iterable[str], breaks: Breaks = Quota.breaks) -> set[tuple[str, str]]:
        """The groups that break their limit by this stock, by name and GPU."""
        return {
            (name, gpu)
            for gpu in gpus
            for name, group in self._groups.items()
            if breaks(group.quota, gpu, group.total(gpu))
        }

    def take_note(self, gpus: Iterable[str], sure: Callable[[str, str], bool], answers: Callable[[str], bool]) -> None:
        """Find which groups are over their limit, and leave to each tree what the others do not hold."""
        gpus = list(gpus)
        for name, group in self._groups.items():
            for gpu in gpus:
                was, total = group.quota.is_over(gpu), group.total(gpu)
                if was and not answers(gpu):
                    continue
                is_over = group.quota.take_note(gpu, total, sure=sure(name, gpu))
                if is_over is not was:
                    said = "more than its memory limit; suspended" if is_over else "no more than its memory limit again"
                    _log.warning(f"a group holds {said}", group=name, gpu=gpu, held=size(total))
        for root in {id(root): root for group in self._groups.values() for root in group.roots.values()}.values():
            mine = [(group.quota.limit or 0, group) for group in self._groups.values() if root.pid in group.roots]
            left = {gpu: min(max(0, limit - group.total(gpu, root.pid)) for limit, group in mine) for gpu in gpus}
            root.quota.allow(min(limit for limit, _ in mine), left)

    def why_off(self, pid: int, gpu: str, kept_inside: Callable[[], bool]) -> str:
        """Why a process is to be off a GPU for its group's memory, or nothing. `kept_inside`: its library refuses what
        goes beyond.
        """
        group = self._groups.get(self._of_pid.get(pid, ""))
        if group is None or group.quota.limit is None:
            return ""
        total = group.total(gpu)
        if not group.quota.is_over(gpu) and (total <= group.quota.limit or kept_inside()):
            return ""
        if total <= group.quota.limit:
            return f"suspended for a while: its group held more than its {size(group.quota.limit)} again and again"
        return f"suspended: its group holds {size(total)} with a limit of {size(group.quota.limit)}"
