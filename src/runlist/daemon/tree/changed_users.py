"""Processes that become another user's while they are managed, as a program with the rights of its file's owner does:
nobody else may act on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog

from runlist.daemon.gpu.gpus import Gpus
from runlist.daemon.tasks.in_turn import InTurn
from runlist.daemon.tasks.managed import ManagedProcess
from runlist.daemon.tree.processes import Processes
from runlist.proc.owners import may_answer_for, user_behind
from runlist.proc.process import owner_of

_log = structlog.get_logger()

MOST_ASKED = 64
"""Of so many processes of each user one asks at a time whose they are now: each takes 30 µs."""


class ChangedUsers:
    """Puts such processes back. `on_change` is called with the id of each."""

    def __init__(self, processes: Processes, gpus: Gpus) -> None:
        self.on_change: Callable[[int], None] = lambda _: None
        self._processes = processes
        self._gpus = gpus
        self._turns: InTurn[int] = InTurn(MOST_ASKED)

    def check(self) -> None:
        """Look at the next few processes of each user. Root answers for all of its own."""
        managed = self._processes.managed
        every = ((user_behind(process.root.uid), pid) for pid, process in managed.items() if process.root.uid)
        self.let_go([managed[pid] for pid in self._turns.choose(every)])

    def let_go(self, processes: Iterable[ManagedProcess]) -> None:
        """Put those of some processes back that are another user's now."""
        gone = False
        for process in processes:
            uid = owner_of(process.holder)
            if uid is not None and not may_answer_for(process.root.uid, uid):
                _log.info("a process is another user's now; released", pid=process.holder, user=uid)
                self._processes.forget(process, restore=True)
                if process.root.by_rule:  # which names each process as whose it is
                    self._processes.remove_root(process.root)
                self.on_change(process.pid)
                gone = True
        if gone:
            self._gpus.run_all()
