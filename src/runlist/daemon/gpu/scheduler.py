"""One GPU's scheduler: tells the policy what happens, asks it what should be, and applies the answer.

The policy is asked when something changed and when its own timer ran out. It may be anybody's code: one that raises or
stalls is dropped for the default policy at once, and the shares in force hold meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import structlog

from runlist.daemon.gpu.accounting import Accounting
from runlist.daemon.gpu.watchdog import Watchdog
from runlist.daemon.tasks.managed import ManagedTask
from runlist.errors import RunlistError
from runlist.model import NO_USAGE, Appear, Event, Share, SliceLimits, Task, TaskKey, Tick, Used, Vanish
from runlist.planes.nvidia.context import GpuContext
from runlist.policies import Decision, Policy, PolicySpec, load_policy
from runlist.scheduling.apply import Failures, apply_shares
from runlist.scheduling.guard import safe_shares

_log = structlog.get_logger()
_MIN_TIMER_S = 0.0005
_SOON_S = 0.002
_Result = TypeVar("_Result")


class Scheduler:
    """The tasks of one GPU and the policy that decides their shares.

    `on_failure` is told of tasks whose controls failed when the timer, not a request, asked; requests get failures
    returned. `trouble` says why a policy was dropped, or is empty.
    """

    def __init__(
        self,
        accounting: Accounting,
        spec: PolicySpec,
        policy: Policy,
        watchdog: Watchdog,
        on_failure: Callable[[Failures], None],
        slices: SliceLimits,
    ) -> None:
        self.gpu = accounting.gpu
        self.accounting = accounting
        self.slices = slices
        self.tasks: dict[TaskKey, ManagedTask] = {}
        self.policy_name = spec.name
        self.trouble = ""
        self._policy = policy
        self._watchdog = watchdog
        self._on_failure = on_failure
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._ran_at = 0.0
        self._running = False
        self._afterwards: list[Callable[[], None]] = []
        self._said: set[str] = set()

    # -- what happens ------------------------------------------------------------------------------

    def add(self, managed: ManagedTask) -> None:
        """Take a task in; it gets its share at the next `run`."""
        pid = managed.task.key.pid
        self.tasks[managed.task.key] = managed
        self.accounting.set_enabled(pid, managed.share.enabled)
        self.accounting.read(time.monotonic())
        if self.accounting.usage(pid) == NO_USAGE:
            self._preempt(managed)  # one that held the GPU since before the log was opened becomes known by this
        # What it used before it was managed is no surprise, and nothing that it has to pay for.
        managed.task = replace(managed.task, usage=self.accounting.usage(pid))
        self.tell(Appear(managed.task))

    def remove(self, key: TaskKey) -> None:
        """Forget a task; the others get its share at the next `run`."""
        if self.tasks.pop(key, None) is not None:
            self.accounting.forget(key.pid)
            self.tell(Vanish(key))

    def tell(self, event: Event) -> None:
        """Deliver an event to the policy, and ask it at once when it says so."""
        if self._guarded(lambda policy: policy.on_event(event, time.monotonic())) and not self._running:
            self.soon()

    def refusal(self, task: Task, policy: Policy | None = None) -> str | None:
        """Why the policy (or another one) does not take a task beside those that are there, or None. What other users
        run is not told.
        """
        others = [
            other if task.uid in (0, other.uid) else replace(other, command="of another user")
            for other in (managed.task for managed in self.tasks.values())
        ]
        if policy is None:
            asked = self._policy
            reason = self._guarded(lambda policy: policy.admit(task, others))
            return reason if self._policy is asked else self._policy.admit(task, others)
        try:
            return self._watchdog.call(lambda: policy.admit(task, others))
        except BaseException as error:  # a user's policy may raise anything
            return f"the policy failed at admitting process {task.key.pid}: {error!r}"

    def troubles(self) -> list[str]:
        """What its user should know of this GPU."""
        told = [self.trouble] if self.trouble else []
        if lost := self.accounting.dropped:
            told.append(f"{lost} records of who used GPU {self.gpu} were lost: nobody was charged for that time")
        return told

    def why(self, key: TaskKey) -> str:
        """What the policy says of a task's share."""
        return self._guarded(lambda policy: str(policy.why(key) or "")) or ""

    # -- what should be ----------------------------------------------------------------------------

    def use(self, spec: PolicySpec, policy: Policy) -> None:
        """Switch to another policy; shares change at the next `run`."""
        self.policy_name = spec.name
        self._policy = policy
        self.trouble = ""
        self._said.clear()
        for managed in self.tasks.values():
            self.tell(Appear(managed.task))

    def soon(self, then: Callable[[], None] | None = None) -> None:
        """Run now, or in a moment when the last time was just now: events come in floods. Calls `then` afterwards."""
        if then is not None:
            self._afterwards.append(then)
        since = time.monotonic() - self._ran_at
        if since >= _SOON_S:
            self._run_unasked()
        else:
            self._run_in(_SOON_S - since)

    def run(self, usage_kept_s: float = 0.0) -> Failures:
        """Ask the policy now, with usage no older than `usage_kept_s`, and apply what it says."""
        self._running = True
        try:
            return self._run(usage_kept_s)
        finally:
            self._running = False
            afterwards, self._afterwards = self._afterwards, []
            for then in afterwards:
                then()

    def _run(self, usage_kept_s: float) -> Failures:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self._ran_at = time.monotonic()
        if not self.tasks:
            return {}
        if now - self.accounting.read_at >= usage_kept_s:
            self.read_usage(now)
        tasks = [managed.task for managed in self.tasks.values()]
        decision = self._guarded(lambda policy: _checked(policy.decide(tasks, now)))
        if decision is None:  # dropped just now: ask its successor
            decision = _checked(self._policy.decide(tasks, now))
        in_force = {key: managed.share for key, managed in self.tasks.items()}
        shares, notes = safe_shares(tasks, decision.shares, in_force, now, self.slices)
        for note in notes:
            self._say_once(note)
        failures = apply_shares(self.tasks, shares, self.slices)
        for key, managed in self.tasks.items():
            self.accounting.set_enabled(key.pid, managed.share.enabled)
        for key in decision.preempt & self.tasks.keys():
            self._preempt(self.tasks[key])
        again = decision.again_after_s
        deadlines = [share.until - now for share in shares.values() if share.until is not None and not share.enabled]
        if deadlines:
            again = min([*deadlines, again] if again is not None else deadlines)
        if again is not None:
            self._run_in(now + again - time.monotonic())  # applying takes a while
        return failures

    def read_usage(self, now: float) -> None:
        """Bring the tasks' usage up to now, and tell the policy."""
        reading = self.accounting.read(now)
        if reading is None:
            return
        held = {}
        for key, managed in self.tasks.items():
            if (part := reading.held.get(key.pid)) is not None:
                managed.task = replace(managed.task, usage=self.accounting.usage(key.pid))
                held[key] = part.seconds
        if held:
            self.tell(Used(held))

    def close(self) -> None:
        """Stop the timer, and let go of the usage source."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.accounting.close()

    # ----------------------------------------------------------------------------------------------

    def _preempt(self, managed: ManagedTask) -> None:
        """Take a task off the GPU once. A failure does no harm: a lost task shows at the next control."""
        with contextlib.suppress(RunlistError, OSError):
            managed.each(GpuContext.preempt)

    def _guarded(self, call: Callable[[Policy], _Result]) -> _Result | None:
        """What the policy answers; None when it failed and was dropped for the default one."""
        try:
            return self._watchdog.call(lambda: call(self._policy))
        except BaseException as error:  # a user's policy may raise or return anything
            self.trouble = f"policy {self.policy_name} was dropped for the default one: {error!r}"
            _log.error("policy dropped for the default one", policy=self.policy_name, gpu=self.gpu, error=repr(error))
            spec = PolicySpec()
            self.policy_name = spec.name
            self._policy = load_policy(spec)
            for managed in self.tasks.values():
                self._policy.on_event(Appear(managed.task), time.monotonic())
            self._run_in(_MIN_TIMER_S)
            return None

    def _run_in(self, seconds: float) -> None:
        """Set the timer, unless it rings earlier anyway."""
        loop = asyncio.get_running_loop()
        due = loop.time() + max(_MIN_TIMER_S, seconds)
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._due = due
        self._timer = loop.call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.tell(Tick())
        self._run_unasked()

    def _run_unasked(self) -> None:
        failures = self.run()
        if failures:
            self._on_failure(failures)

    def _say_once(self, note: str) -> None:
        if note not in self._said:
            self._said.add(note)
            _log.warning(note, gpu=self.gpu, policy=self.policy_name)


def _checked(decision: Decision) -> Decision:
    """The decision in the types that it should have: what a user's policy returns may be anything."""
    again = decision.again_after_s
    for share in decision.shares.values():
        if not isinstance(share, Share) or not _is_time(share.until):
            raise TypeError(f"{share!r} is no share that can be")
    return Decision(dict(decision.shares), None if again is None else float(again), frozenset(decision.preempt))


def _is_time(until: object) -> bool:
    return until is None or (isinstance(until, int | float) and math.isfinite(until))
