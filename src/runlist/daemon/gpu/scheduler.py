"""One GPU's scheduling in the daemon: its tasks, who used it, and the event loop's clock and timer."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import structlog

from runlist.daemon.actuator.link import ActuatorLink
from runlist.daemon.gpu.accounting import Accounting
from runlist.daemon.gpu.activity import ActivityWatch
from runlist.daemon.gpu.arms import Arms, Fired
from runlist.daemon.gpu.escapes import Escapes
from runlist.daemon.gpu.ledger import Ledger
from runlist.daemon.gpu.neighbours import Neighbours
from runlist.daemon.gpu.room import Room
from runlist.daemon.gpu.watchdog import Watchdog
from runlist.daemon.tasks.managed import Count, ManagedTask
from runlist.errors import RunlistError
from runlist.model import NO_USAGE, Appear, Owner, SliceLimits, Task, TaskKey, Vanish
from runlist.policies import Decision, Policy, PolicySpec
from runlist.scheduling.apply import Failures
from runlist.scheduling.loop import BUSY_KEPT_S, Loop

_log = structlog.get_logger()
_Result = TypeVar("_Result")


class Scheduler:
    """The tasks of one GPU, under a loop. `on_failure` gets the failures of runs that no request asked for. `ended` has
    the counts of tasks that are gone, `shared` are files that other daemons see.
    """

    def __init__(
        self,
        accounting: Accounting,
        spec: PolicySpec,
        policy: Policy,
        watchdog: Watchdog,
        on_failure: Callable[[Failures], None],
        slices: SliceLimits,
        actuator: ActuatorLink | None = None,
        shared: Sequence[Path] = (),
    ) -> None:
        self.gpu = accounting.gpu
        self.accounting = accounting
        accounting.on_renewed = self._preempt_all
        self.slices = slices
        self.tasks: dict[TaskKey, ManagedTask] = {}
        self.ended: Counter[Count] = Counter()
        self.ledger = Ledger(self.gpu)
        self._neighbours = Neighbours(shared, self.gpu)
        self.may_have_tiny = self._neighbours.may_have_tiny
        self.loop = Loop(self, spec, policy, slices)
        self.tell, self.why, self.giving_way = self.loop.tell, self.loop.why, self.loop.giving_way
        self._activity = ActivityWatch(self.tasks, self.tell, self.loop.read_usage)
        self.worked, self.announced = self._activity.worked, self._activity.announced
        self._arms = Arms(self.tasks, actuator, self._fired, self.wake)
        self._room = Room(self.tasks, self.wake)
        self._escapes = Escapes(self.tasks, lambda after_s, call: asyncio.get_running_loop().call_later(after_s, call))
        self._running = False
        self._carriers: set[TaskKey] = set()
        self._watchdog = watchdog
        self._on_failure = on_failure
        self._timer: asyncio.TimerHandle | None = None

    @property
    def policy_name(self) -> str:
        """What decides here."""
        return self.loop.policy_name

    def add(self, managed: ManagedTask) -> None:
        """Take a task in; it gets its share at the next `run`."""
        pid = managed.task.key.pid
        self.loop.read_usage()
        managed.task = replace(managed.task, usage=NO_USAGE)  # it may have been here before
        self.tasks[managed.task.key] = managed
        if self.accounting.of(pid).usage == NO_USAGE:
            managed.preempt()  # else one that was on the GPU when the log was opened stays unknown
        self.ledger.begin(managed, self.accounting.just_before(pid))
        self.accounting.begin(pid)  # it does not pay for usage of before
        self.bind()
        self.tell(Appear(managed.task))

    def remove(self, key: TaskKey) -> None:
        """Forget a task; the others get its share at the next `run`."""
        if key in self.tasks:
            self.tasks[key].settle()
            self.loop.catch_up()
        if (managed := self.tasks.pop(key, None)) is not None:
            managed.carrier = None
            self.ended.update(managed.counts)
            self.ledger.end(key)
            self._escapes.forget(key)
            self.accounting.forget(key.pid)
            self.bind()  # before the policy hears that it is gone, and may decide at once
            self.tell(Vanish(key, managed.task.usage))

    def bind(self) -> None:
        """See which tasks run together because they share a channel group, and tell the policy of changes."""
        owners: dict[int, list[ManagedTask]] = {}
        for managed in self.tasks.values():
            for number in managed.group_ids:
                owners.setdefault(number, []).append(managed)
        together: dict[TaskKey, int] = {}
        for number, members in sorted(owners.items(), reverse=True):
            together |= {managed.task.key: number for managed in members if len(members) > 1}
        changed = [managed for key, managed in self.tasks.items() if managed.task.together != together.get(key)]
        for managed in changed:
            managed.task = replace(managed.task, together=together.get(managed.task.key))
        self._choose_carriers()
        for managed in changed:  # last: whoever hears of it may decide at once
            self.tell(Appear(managed.task))

    def _choose_carriers(self) -> None:
        """Of tasks that run together one carries the others: each control holds up whoever is on the GPU."""
        units: dict[int, list[ManagedTask]] = {}
        for managed in self.tasks.values():
            if managed.task.together is not None:
                units.setdefault(managed.task.together, []).append(managed)
        carriers = {
            number: next((one for one in unit if one.task.key in self._carriers), unit[0])
            for number, unit in units.items()
        }
        self._carriers = {one.task.key for one in carriers.values()}
        for managed in self.tasks.values():
            carrier = carriers.get(managed.task.together or 0)
            if carrier is managed or (carrier is not None and not managed.group_ids <= carrier.group_ids):
                carrier = None
            if managed.carrier is not carrier:
                managed.be_carried(carrier)

    def fellows(self, task: Task) -> list[int]:
        """The other processes with which a task runs together."""
        if task.together is None:
            return []
        others = (managed.task for managed in self.tasks.values())
        return [other.key.pid for other in others if other.together == task.together and other.key != task.key]

    def refusal(self, task: Task, policy: Policy | None = None) -> str | None:
        """Why the policy, or the one given, does not take a task beside the present ones, or None. Does not name the
        commands of other users.
        """
        others = [
            other if task.uid in (0, other.uid) else replace(other, command="of another user")
            for other in (managed.task for managed in self.tasks.values())
        ]
        return self.loop.refusal(task, others, policy)

    def troubles(self) -> list[str]:
        """Troubles of this GPU that its users should know of."""
        told = [self.loop.trouble] if self.loop.trouble else []
        if lost := self.accounting.dropped:
            told.append(f"{lost} records of who used GPU {self.gpu} were lost: nobody was charged for that time")
        if not self._neighbours.alone:
            told.append(f"another daemon has tasks on GPU {self.gpu}: slices are {self.slices.safe_us} µs at least")
        return told

    def run(self, usage_kept_s: float = 0.0) -> Failures:
        """Ask the policy now, with usage no older than `usage_kept_s`, and apply its decision."""
        self._room.end()
        self._running = True
        try:
            failures = self.loop.run(usage_kept_s)
            if any(not self.tasks[key].group_ids for key in self._carriers):  # its client was freed meanwhile
                self.bind()
                failures |= self.loop.run(BUSY_KEPT_S)
        finally:
            self._running = False
        if not self.tasks:
            self.may_have_tiny(False)
        for key, managed in self.tasks.items():
            self.accounting.set_enabled(key.pid, managed.share.enabled)
            if managed.copies and managed.task.suspended and not managed.share.enabled:
                with contextlib.suppress(RunlistError, OSError):  # it is lost where it is controlled next
                    managed.suspend_again()
            if managed.on_segment is not None:
                managed.on_segment(key in self.loop.segments)
        self._escapes.note(self.now())
        return failures

    def look_beside(self) -> None:
        """Decide anew where another daemon has come to the GPU, or left it."""
        if self._neighbours.changed():
            self.wake()

    def close(self) -> None:
        """Stop the timer, and let go of the usage source."""
        self.stop_ringing()
        self._neighbours.close()
        self._room.end()
        self._escapes.close()
        self._arms.disarm()
        self._activity.close()
        self.accounting.close()

    def _preempt_all(self) -> None:
        """Who is on the GPU when a log is opened stays unknown."""
        for managed in self.tasks.values():
            managed.preempt()

    # -- what went off at once ---------------------------------------------------------------------

    @property
    def gives_room(self) -> bool:
        """Whether there is anybody to make room."""
        return bool(self._room.off)

    def make_room(self, owner: Owner) -> bool:
        """Have off who makes room for a latency-critical task of an owner that is about to come, until the next run
        that is no timer's. False where nobody is to, or may.
        """
        off = self._room.make(owner)
        for managed in off or ():
            self.accounting.set_enabled(managed.task.key.pid, managed.share.enabled)
        return off is not None

    def _fired(self, fired: Fired) -> None:
        for key in fired.off:
            self.accounting.set_enabled(key.pid, self.tasks[key].share.enabled)
        # In the middle of a run its decision is applied to what is in force now; else the policy has yet to decide.
        asyncio.get_running_loop().call_soon(self._after_fired, fired, not self._running)

    def _after_fired(self, fired: Fired, undecided: bool) -> None:
        if fired.failures:
            self._on_failure(fired.failures)
        if not self._activity.fired(fired.worker, fired.since) and undecided:
            self.wake(BUSY_KEPT_S)

    # -- for the loop: its host --------------------------------------------------------------------

    def now(self) -> float:
        return time.monotonic()

    def call(self, function: Callable[[], _Result]) -> _Result:
        try:
            return self._watchdog.call(function)
        except KeyboardInterrupt as error:  # the user's comes as a signal to the event loop: this is the policy's own
            raise RuntimeError(repr(error)) from None

    def wake(self, usage_kept_s: float = 0.0) -> None:
        if self._room.is_made:
            return  # who is decided about is not there yet, and comes soon
        if failures := self.run(usage_kept_s):
            self._on_failure(failures)

    def ring_in(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        if self._timer is None or due < self._timer.when():
            self.stop_ringing()
            self._timer = loop.call_at(due, self.loop.ring)

    def stop_ringing(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def read_usage(self, kept_s: float) -> Mapping[TaskKey, float]:
        self._activity.refresh()
        now, since = time.monotonic(), self.accounting.read_at
        reading = self.accounting.read(now) if now - since >= kept_s else None
        usage = {} if reading is None else reading.usage
        if reading is not None:
            self._escapes.look(reading, since, now)
        self.ledger.used(usage)
        there = {key: managed for key, managed in self.tasks.items() if key.pid in usage}
        for key, managed in there.items():
            managed.task = replace(managed.task, usage=self.accounting.of(key.pid).usage)
        return {key: usage[key.pid].held_s for key in there}

    def watch(self, decision: Decision) -> None:
        self._running = False  # the shares are applied: what goes off from here on is news
        for managed in self.tasks.values():
            managed.gave_way = False
        asked = (decision.watch.keys() - decision.unhurried) | decision.announcing
        self._arms.keep(asked)  # else we clear a word for which it acts
        self._activity.watch(decision.watch, decision.announcing, decision.unhurried)
        self._arms.set(self._activity.idle, decision.off_on_work)
        self._room.off = decision.off_on_arrival

    def note(self, text: str) -> None:
        _log.warning(text, gpu=self.gpu, policy=self.policy_name)
