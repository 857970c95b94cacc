"""Room on one GPU for a latency-critical task that is about to come: who goes off for it before it can be managed.

A program goes on making its context for tens of ms after its first channel group. To find what it has, and to decide
with it, takes some twenty requests, each of which waits for the driver's lock behind the program's own. So the others
go off first, by one request, and what is decided once the task is there says how they go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from runlist.daemon.tasks.managed import ManagedTask
from runlist.errors import RunlistError
from runlist.model import Owner, TaskKey
from runlist.planes.interface import Context
from runlist.policies.parts.pace import SLACK_S
from runlist.policies.parts.savings import Savings

LONGEST_S = 0.1
"""For who does not come they are off so long."""
REST = 10
"""They are off for a part of the time like this at most, however many processes come."""
ENOUGH_S = 0.025
"""Most are managed by then: nobody goes off for less."""


class Room:
    """`on_end` is called when it has lasted for the longest time. The owners for whom others go off have equal parts
    of the time that this may take.
    """

    def __init__(self, tasks: Mapping[TaskKey, ManagedTask], on_end: Callable[[], None]) -> None:
        self.off: Collection[TaskKey] = ()  # who is to go off
        self._tasks = tasks
        self._on_end = on_end
        self._savings = Savings(LONGEST_S, ENOUGH_S, ENOUGH_S, 1 / REST)
        self._ends_at: dict[Owner, float] = {}  # for whom they are off now
        self._spared_until: dict[Owner, float] = {}  # whose tasks the driver refused to have off
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_made(self) -> bool:
        """Whether they are off for it now."""
        return self._timer is not None

    def make(self, owner: Owner) -> list[ManagedTask] | None:
        """Have them off for one that comes, or for longer; returns who went off, None where nobody is off for it."""
        now = time.monotonic()
        self._savings.pass_time([owner], now)
        for each, until in self._ends_at.items():
            self._savings[each].until = until
        account = self._savings[owner]
        if account.saved_s < ENOUGH_S - SLACK_S:
            return None
        off = [] if self.is_made else self._have_off(now)
        if not off and not self.is_made:
            return None
        account.until = self._ends_at[owner] = now + account.saved_s
        if self._timer is not None:
            self._timer.cancel()
        lasts_s = max(self._ends_at.values()) - now
        self._timer = asyncio.get_running_loop().call_later(lasts_s, self._lasted)
        return off

    def end(self) -> None:
        """What is decided from now on is in force; nothing comes on by this."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._savings.pass_time((), time.monotonic())
            self._ends_at.clear()

    def _lasted(self) -> None:
        self.end()
        self._on_end()

    def _have_off(self, now: float) -> list[ManagedTask]:
        """All by one request. Where that is refused, by one for each owner: who frees channels all the time has
        nobody but its own stay.
        """
        self._spared_until = {owner: until for owner, until in self._spared_until.items() if until > now}
        tasks = [self._tasks[key] for key in sorted(self.off) if key in self._tasks]
        tasks = [managed for managed in tasks if _answers(managed) not in self._spared_until]
        for managed in tasks:
            managed.settle()  # first: some may be off by then
        tasks = [managed for managed in tasks if managed.share.enabled]
        if not _contexts(tasks):
            return []
        if _suspend(tasks):
            return tasks
        owners = dict.fromkeys(map(_answers, tasks))
        off = []
        for owner in owners:
            theirs = [managed for managed in tasks if _answers(managed) == owner]
            if len(owners) > 1 and _suspend(theirs):
                off += theirs
            else:
                self._spared_until[owner] = now + REST * LONGEST_S
                for managed in theirs:
                    with contextlib.suppress(RunlistError, OSError):  # it is lost where it is controlled next
                        managed.assert_enabled()
        return off


def _answers(managed: ManagedTask) -> Owner:
    """Whose channels are stopped where this one is to go off: of clients of one server, those of whom carries them."""
    return (managed.carrier or managed).task.owner


def _contexts(tasks: Sequence[ManagedTask]) -> list[Context]:
    return [each for managed in tasks if managed.carrier is None for each in managed.contexts.values()]


def _suspend(tasks: Sequence[ManagedTask]) -> bool:
    """Have tasks off by one request; False where the driver refuses it."""
    contexts = _contexts(tasks)
    try:
        if contexts:
            contexts[0].suspend_at_once(contexts[1:])
    except (RunlistError, OSError):
        return False
    for managed in tasks:
        managed.was_suspended()
    return True
