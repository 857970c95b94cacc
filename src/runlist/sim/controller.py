"""The daemon's side of a machine: one thread that reads usage, asks the policies and sends controls, one at a time."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import TypeVar

from runlist.model import (
    DEFAULT_SHARE,
    Appear,
    Event,
    Hint,
    Report,
    Segment,
    Share,
    Task,
    TaskKey,
    Tick,
    Usage,
    Used,
    Vanish,
)
from runlist.policies import Decision, Policy, PolicySpec
from runlist.scheduling.apply import apply_shares
from runlist.scheduling.guard import safe_shares
from runlist.sim.driver import make_policy
from runlist.sim.engine import Engine, Handler
from runlist.sim.gpu import Context, Gpu
from runlist.sim.tenant import Tenant
from runlist.sim.timing import (
    DEFAULT_SLICE,
    MICROSECOND,
    MIN_TIMER,
    PREEMPT,
    PREEMPT_EFFECT,
    READ_USAGE,
    RESUME,
    RESUME_EFFECT,
    SECOND,
    SET_SLICE,
    SLICES,
    SOON,
    SUSPEND,
    SUSPEND_EFFECT,
)

_Result = TypeVar("_Result")


class Controller:
    """The thread. Schedulers that want to run wait for each other; `calls` counts the controls that were sent."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine = engine
        self.calls: Counter[str] = Counter()
        self._random = Random(f"{seed}/controls")  # noqa: S311 (a simulation must repeat itself)
        self._waiting: deque[Scheduler] = deque()
        self._busy = False
        self._clock = 0  # up to when the thread is occupied

    def wants(self, scheduler: Scheduler) -> None:
        """Let a scheduler run as soon as the thread is free."""
        if scheduler not in self._waiting:
            self._waiting.append(scheduler)
            if not self._busy:
                self._take_next(None)

    def send(self, name: str, takes: int, effect: tuple[int, int], handler: Handler, argument: object) -> None:
        """Send a control behind those that were sent: it takes so long, and is felt within `effect` of its start."""
        self.calls[name] += 1
        self.engine.at(self._clock + self._random.randint(*effect), handler, argument)
        self._clock += takes

    def _take_next(self, _: None) -> None:
        self._busy = bool(self._waiting)
        if self._busy:
            self.engine.at(self.engine.now + READ_USAGE, self._run, self._waiting.popleft())

    def _run(self, scheduler: Scheduler) -> None:
        self._clock = self.engine.now
        scheduler.run()
        self.engine.at(self._clock, self._finished, scheduler)

    def _finished(self, scheduler: Scheduler) -> None:
        scheduler.set_timer()
        self._take_next(None)


class Managed:
    """A tenant under control: the share in force, and the policy's view of its use."""

    __slots__ = ("_controller", "published", "share", "tenant")

    def __init__(self, tenant: Tenant, controller: Controller) -> None:
        self.tenant = tenant
        self.share = DEFAULT_SHARE
        self.published = (0, 0, 0)  # held, turns and idle time of `task.usage`
        self._controller = controller

    def slice_us(self, share: Share) -> int:
        return DEFAULT_SLICE // MICROSECOND if share.timeslice_us is None else share.timeslice_us

    def set_timeslice(self, microseconds: int | None) -> None:
        self.share = replace(self.share, timeslice_us=microseconds)
        self._controller.send(
            "set_slice", SET_SLICE, (SET_SLICE, SET_SLICE), self._slice_set, self.slice_us(self.share)
        )

    def set_enabled(self, enabled: bool) -> None:
        self.share = replace(self.share, enabled=enabled)
        if enabled:
            self._controller.send("resume", RESUME, RESUME_EFFECT, self._enabled_set, True)
        else:
            self._controller.send("suspend", SUSPEND, SUSPEND_EFFECT, self._enabled_set, False)

    def preempt(self) -> None:
        """Take it off the GPU once."""
        self._controller.send(
            "preempt", PREEMPT, (PREEMPT_EFFECT, PREEMPT_EFFECT), self.tenant.gpu.preempt, self._context
        )

    @property
    def _context(self) -> Context:
        return self.tenant.context

    def _slice_set(self, microseconds: int) -> None:
        self.tenant.gpu.set_slice(self._context, microseconds * MICROSECOND)

    def _enabled_set(self, enabled: bool) -> None:
        self.tenant.gpu.set_enabled(self._context, enabled)


class Scheduler:
    """One GPU's policy, told and asked as the daemon does it. `notes` says what was wrong with it, once each."""

    def __init__(self, gpu: Gpu, spec: PolicySpec, controller: Controller) -> None:
        self.gpu = gpu
        self.notes: list[str] = []
        self.decisions = 0
        self.policy_name = spec.name
        self._policy = make_policy(spec)
        self._controller = controller
        self._engine = controller.engine
        self._managed: dict[TaskKey, Managed] = {}
        self._timer = 0  # version: an older timer does not count
        self._due: int | None = None
        self._again: int | None = None
        self._asked_at = -SOON

    # -- what happens ------------------------------------------------------------------------------

    def admit(self, task: Task, others: Sequence[Task]) -> str | None:
        """Why the policy does not take this task beside the others, or None."""
        try:
            return self._policy.admit(task, others)
        except Exception as error:  # a user's policy may raise anything
            return f"the policy failed at admitting {task.command}: {error!r}"

    def appear(self, tenant: Tenant) -> None:
        """A tenant is managed from now on."""
        assert tenant.task is not None
        self._managed[tenant.key] = Managed(tenant, self._controller)
        self._tell(Appear(tenant.task))
        self._controller.wants(self)

    def vanish(self, tenant: Tenant) -> None:
        """A tenant is gone."""
        if self._managed.pop(tenant.key, None) is not None:
            self._tell(Vanish(tenant.key))
            self._controller.wants(self)

    def hinted(self, tenant: Tenant, ahead: int) -> None:
        """A tenant says when it will want the GPU."""
        if tenant.key in self._managed:
            self._tell(Hint(tenant.key, ahead / SECOND))
            self._soon()

    def segment(self, tenant: Tenant, priority: int | None) -> None:
        """A tenant begins or ends a segment."""
        if tenant.task is not None:
            tenant.task = replace(tenant.task, segment=priority)
            if tenant.key in self._managed:
                self._tell(Segment(tenant.key, priority))
                self._soon()

    def reported(self, tenant: Tenant, latency: int) -> None:
        """A tenant reports a request."""
        if tenant.key in self._managed:
            self._tell(Report(tenant.key, latency / SECOND))

    # -- what should be ----------------------------------------------------------------------------

    def run(self) -> None:
        """Ask the policy now, and send the controls for what it says."""
        self._timer += 1
        self._due = self._again = None
        self._asked_at = self._engine.now
        if not self._managed:
            return
        self._read_usage()
        now = self._now()
        tasks = [managed.tenant.task for managed in self._managed.values() if managed.tenant.task is not None]
        decision = self._guarded(lambda policy: _checked(policy.decide(tasks, now)))
        if decision is None:  # dropped just now: ask its successor
            decision = self._policy.decide(tasks, now)
        self.decisions += 1
        in_force = {key: managed.share for key, managed in self._managed.items()}
        shares, notes = safe_shares(tasks, decision.shares, in_force, now, SLICES)
        for note in notes:
            self._say_once(note)
        apply_shares(self._managed, shares, SLICES)
        for key in sorted(decision.preempt & self._managed.keys()):
            self._managed[key].preempt()
        waits = [share.until - now for share in shares.values() if share.until is not None and not share.enabled]
        if decision.again_after_s is not None:
            waits.append(decision.again_after_s)
        if waits:
            self._again = max(MIN_TIMER, round(min(waits) * SECOND))

    def set_timer(self) -> None:
        """The controls of the last run are sent: from now on its timer runs."""
        if self._again is not None:
            self._run_at(self._engine.now + self._again)

    # ----------------------------------------------------------------------------------------------

    def _now(self) -> float:
        return self._engine.now / SECOND

    def _soon(self) -> None:
        """Run now, or in a moment when the last time was just now."""
        earliest = self._asked_at + SOON
        if self._engine.now >= earliest:
            self._controller.wants(self)
        else:
            self._run_at(earliest)

    def _run_at(self, time: int) -> None:
        """Set the timer, unless it rings earlier anyway."""
        if self._due is None or time < self._due:
            self._due = time
            self._timer += 1
            self._engine.at(time, self._on_timer, self._timer)

    def _on_timer(self, version: int) -> None:
        if version != self._timer:
            self._engine.stale += 1
            return
        self._due = None
        self._tell(Tick())
        self._controller.wants(self)

    def _read_usage(self) -> None:
        """What the GPU's own log tells: exact times on the GPU and turns, and of idle times what is known by now."""
        self.gpu.settle()
        used = {}
        for key, managed in self._managed.items():
            tenant = managed.tenant
            context, before = tenant.context, managed.published
            after = (context.held, context.turns, context.known_idle)
            if after != before and tenant.task is not None:
                managed.published = after
                usage = Usage(after[0] / SECOND, after[1], after[2] / SECOND)
                tenant.task = replace(tenant.task, usage=usage)
                used[key] = (after[0] - before[0]) / SECOND
        if used:
            self._tell(Used(used))

    def _tell(self, event: Event) -> None:
        now = self._now()
        self._guarded(lambda policy: policy.on_event(event, now))

    def _guarded(self, call: Callable[[Policy], _Result]) -> _Result | None:
        """What the policy answers; None when it raised and was dropped for the default one."""
        try:
            return call(self._policy)
        except Exception as error:  # a user's policy may raise or return anything
            spec = PolicySpec()
            self._say_once(f"policy {self.policy_name} was dropped for {spec.name} at {self._now():.3f} s: {error!r}")
            self.policy_name = spec.name
            self._policy = make_policy(spec)
            for managed in self._managed.values():
                if managed.tenant.task is not None:
                    self._policy.on_event(Appear(managed.tenant.task), self._now())
            self._run_at(self._engine.now + MIN_TIMER)
            return None

    def _say_once(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)


def _checked(decision: Decision) -> Decision:
    """The decision in the types that it should have: what a user's policy returns may be anything."""
    again = decision.again_after_s
    return Decision(dict(decision.shares), None if again is None else float(again), frozenset(decision.preempt))
