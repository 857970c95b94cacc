"""Tasks that wait for a GPU which has forgotten them, or from which a stranger has taken them.

Seen twice in 41 starts of a PyTorch program on an H100 (driver 580.159.04): a process that had been suspended and
resumed while it made its context waited for a GPU that stood idle, enabled, until `release` sent the same controls once
more. And any program on the GPU can disable the channels of any other: the driver asks only for a client of the
caller's own. So whoever waits, and should run, and does not, is enabled once more, then ever more rarely.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from operator import itemgetter

import msgspec
import structlog

from runlist.daemon.gpu.accounting import Accounting
from runlist.daemon.gpu.gpus import Gpus
from runlist.daemon.tasks.managed import Count, ManagedTask
from runlist.daemon.tree.processes import Processes
from runlist.errors import RunlistError
from runlist.model import TaskKey
from runlist.proc.process import is_stopped

IDLE_S = 2.0
"""How long a task was not on the GPU when it is asked whether it waits, and how often it is asked until it does. After
it was roused it is twice as long each time.
"""
AGAIN_S = 1.0
"""After so long it waits still, and has not just begun to."""
BUSY = 0.9
"""A GPU that was at work for more of the last second has others to run."""
BUSY_S = 10.0
"""So long it need not turn to a task for that: slices of several latency-critical programs are a second each."""
UNKNOWN_S, LONGEST_S = 30.0, 60.0
"""One of which nobody knows whether it waits is enabled after `IDLE_S` if it ran before, then after the first of these,
then every time after the second; but for the first of these only where the kernel does not tell who stopped it.
"""
MOST_S = 0.005
"""In a look none is roused later: others wait meanwhile."""

_log = structlog.get_logger()


class _Still(msgspec.Struct):
    """A task that is not on the GPU: what it had used and how often it had been suspended when that began, and when
    that was, when it is asked next, whether it waited when it was asked, and how often it was roused.
    """

    used: tuple[float, int]
    suspended: int
    since: float
    due: float
    waited: bool = False
    roused: int = 0


class Rousing:
    """Looks at all tasks, about once a second. While `seen`, the kernel tells of what strangers do to others."""

    def __init__(self, processes: Processes, gpus: Gpus, seen: Callable[[], bool]) -> None:
        self._processes = processes
        self._gpus = gpus
        self._seen = seen
        self._still: dict[TaskKey, _Still] = {}

    def look(self, now: float | None = None) -> bool:
        """Rouse those that wait for too long. Returns whether anybody waits."""
        began = time.monotonic()
        now = began if now is None else now
        before, self._still = self._still, {}
        due: list[tuple[float, ManagedTask, Accounting]] = []
        for task in self._processes.tasks():
            if not task.share.enabled or task.carrier is not None or task.outside:
                continue
            accounting = self._gpus.scheduler(task.task.key.gpu).accounting
            still = self._still[task.task.key] = _now(task, accounting, before.get(task.task.key), now)
            if now >= still.due:
                due.append((still.due, task, accounting))
        unsettled, seen = set(), self._seen()
        for _, task, accounting in sorted(due, key=itemgetter(0)):  # whoever had no turn in the last look is first
            shares = accounting.all.shares
            armed = task.on_settle is not None
            if _ask(task, self._still[task.task.key], now, busy=bool(shares) and shares[-1] > BUSY, seen=seen):
                unsettled |= {task.task.key.gpu} if armed else set()
                if time.monotonic() - began >= MOST_S:
                    break
        self._gpus.run(unsettled, set())  # what was to go off at once is to do so again
        return any(still.waited for still in self._still.values())


def _ask(task: ManagedTask, still: _Still, now: float, *, busy: bool, seen: bool) -> bool:
    """Whether it waits; and rouse it if it did already, which is returned."""
    told = task.told()
    if told is None:
        return _enable_unasked(task, still, now, busy=busy, seen=seen)
    waits = told.waiting > 0 and not (busy and now < still.since + BUSY_S)
    waits = waits and not is_stopped(task.task.key.pid)  # it cannot see that its wait is over
    if waits and still.waited:
        still.roused += 1
        still.due = now + IDLE_S * 2**still.roused
        _rouse(task, first=still.roused == 1)
        return True
    still.due = now + (AGAIN_S if waits else IDLE_S)
    still.waited = waits
    return False


def _enable_unasked(task: ManagedTask, still: _Still, now: float, *, busy: bool, seen: bool) -> bool:
    """Without a library nobody knows whether it waits: a look that was too much costs one control."""
    after_suspension = still.roused == 0 and task.counts[Count.SUSPENSIONS] > still.suspended
    if after_suspension and not still.waited:
        still.waited, still.due = True, now + AGAIN_S
        return False
    if seen and not after_suspension:
        still.due = now + LONGEST_S
        return False
    still.roused += 1
    still.due = now + (UNKNOWN_S if still.roused == 1 else LONGEST_S)
    if after_suspension and not busy:
        _rouse(task, first=True)
    elif still.roused > 1 or after_suspension or still.used != (0.0, 0):
        _enable(task)
    else:  # it has not run yet
        return False
    return True


def _enable(task: ManagedTask) -> None:
    with contextlib.suppress(RunlistError, OSError):  # it is lost where it is controlled next
        task.set_right()


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
    if before is not None and before.used == used:
        return before
    return _Still(used, task.counts[Count.SUSPENSIONS], now, now + IDLE_S)
