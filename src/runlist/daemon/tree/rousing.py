"""Tasks that wait for a GPU which has forgotten them.

Seen twice in 41 starts of a PyTorch program on an H100 (driver 580.159.04): a process that had been suspended and
resumed while it made its context waited for a GPU that stood idle, enabled, until `release` sent the same controls once
more. So whoever waits, and should run, and does not, has them sent to it after two seconds, and then ever more rarely.
"""

from __future__ import annotations

import time

import msgspec
import structlog

from runlist.daemon.gpu.accounting import Accounting
from runlist.daemon.gpu.gpus import Gpus
from runlist.daemon.tasks.managed import Count, ManagedTask
from runlist.daemon.tree.processes import Processes
from runlist.errors import RunlistError
from runlist.model import TaskKey

FIRST_S = 2.0
"""How long a task waits before it is roused; each further time it is twice as long."""
BUSY = 0.9
"""A GPU that was at work for more of the last second has others to run."""

_log = structlog.get_logger()


class _Still(msgspec.Struct):
    """Since when a task has not been on the GPU: what it had used by then, and how often it had been suspended; how
    often it was roused since.
    """

    used: tuple[float, int]
    suspended: int
    since: float
    roused: int = 0


class Rousing:
    """Looks at all tasks, about once a second."""

    def __init__(self, processes: Processes, gpus: Gpus) -> None:
        self._processes = processes
        self._gpus = gpus
        self._still: dict[TaskKey, _Still] = {}

    def look(self, now: float | None = None) -> None:
        """Rouse those that wait for too long."""
        now = time.monotonic() if now is None else now
        before, self._still = self._still, {}
        for task in self._processes.tasks():
            if not task.share.enabled or task.carrier is not None or task.outside:
                continue
            accounting = self._gpus.scheduler(task.task.key.gpu).accounting
            still = self._still[task.task.key] = _now(task, accounting, before.get(task.task.key), now)
            if now - still.since < FIRST_S * 2**still.roused or not _waits(task, still):
                continue
            if accounting.all.history[-1:] > [BUSY]:
                continue
            still.roused += 1
            _rouse(task, first=still.roused == 1)


def _rouse(task: ManagedTask, *, first: bool) -> None:
    key, trouble = task.task.key, ""
    try:
        task.rouse()
    except (RunlistError, OSError) as error:
        trouble = str(error)
    if trouble:
        _log.warning("a task that waits for its GPU could not be roused", pid=key.pid, gpu=key.gpu, reason=trouble)
    elif first:
        _log.warning("a task waited for a GPU that did not turn to it; enabled once more", pid=key.pid, gpu=key.gpu)


def _now(task: ManagedTask, accounting: Accounting, before: _Still | None, now: float) -> _Still:
    usage = accounting.of(task.task.key.pid).usage
    used = (usage.held_s, usage.turns)
    return before if before is not None and before.used == used else _Still(used, task.counts[Count.SUSPENSIONS], now)


def _waits(task: ManagedTask, still: _Still) -> bool:
    """Whether its library says that it does. Of one without, nobody knows: once after it was suspended it may."""
    told = task.told()
    if told is not None:
        return told.waiting > 0
    return still.roused == 0 and task.counts[Count.SUSPENSIONS] > still.suspended
