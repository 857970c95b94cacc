"""Which trees the processes on the GPUs are of: also those that left their tree, and those that ended while somebody
else keeps their memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from runlist.daemon.tasks.managed import Root
from runlist.daemon.tree.processes import Processes
from runlist.proc.process import start_of, walks


class _Member(msgspec.Struct):
    """A process by its start time, 0 for one that ended before anybody looked."""

    start: int
    root: Root | None
    ended: bool = False
    walk: int = 0  # over /proc, after which its tree was looked for


class Membership:
    """The trees of processes, as far as they were seen on a GPU."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._known: dict[int, _Member] = {}
        self._roots: set[int] = set()

    def update(self, pids: Iterable[int]) -> None:
        """These are the processes on the GPUs now; all others are forgotten."""
        roots = set(self._processes.roots)
        self._known = {pid: self._look(pid, self._known.get(pid), roots != self._roots) for pid in pids}
        self._roots = roots
        self._processes.forget_ended(self._known)

    @property
    def known(self) -> Collection[int]:
        """The processes on the GPUs, and those that are managed."""
        return self._known.keys() | self._processes.managed.keys()

    def trees_of(self, pid: int) -> list[Root]:
        """The roots above a process, the nearest first."""
        known = self._known.get(pid)
        return self._processes.chain(self._processes.root_of(pid) if known is None else known.root)

    def has_ended(self, pid: int) -> bool:
        """Whether a process on a GPU ended, so that its memory is kept by another, or by nobody."""
        return pid in self._known and self._known[pid].ended

    def adopt(self, pid: int, root: Root) -> None:
        """A process that ended was of this tree."""
        self._known[pid].root = root

    def _look(self, pid: int, known: _Member | None, changed: bool) -> _Member:
        start = start_of(pid)
        if start is None:
            return self._ended(pid, known)
        if known is None or known.start != start:
            return _Member(start, self._processes.root_of(pid), walk=walks())
        if changed or pid in self._processes.managed or (known.root is None and known.walk != walks()):
            known.walk = walks()
            found = self._processes.root_of(pid)
            chain = self._processes.chain(found)
            if known.root in chain or known.root not in self._processes.roots.values():
                known.root = found
        return known

    def _ended(self, pid: int, known: _Member | None) -> _Member:
        if known is None or (known.root is None and pid in self._processes.ended):
            known = _Member(0, self._processes.ended.get(pid))
        known.ended = True
        return known
