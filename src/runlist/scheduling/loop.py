"""The scheduling of one GPU: a policy hears what happens, decides shares, and they are applied.

It is asked when something changed and when its own timer ran out. It may be anybody's code: a policy that raises, takes
too long or returns no valid decision is replaced by the default one at once; until then the shares in force stay.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from runlist.model import (
    Announce,
    Appear,
    Busy,
    Event,
    GivingWay,
    Hint,
    Idle,
    Segment,
    Share,
    SliceLimits,
    Task,
    TaskKey,
    Tick,
    Used,
)
from runlist.plugins import line_of
from runlist.policies import Decision, Policy, PolicySpec, load_policy
from runlist.scheduling.apply import Controlled, Failures, apply_shares
from runlist.scheduling.guard import safe_off_at_once, safe_shares

SOON_S = 0.002
"""Events come in floods: after one has had the policy asked, the next waits this long. One of a task that is about to
work waits for others of that kind alone: in that time its work would have begun.
"""

BUSY_KEPT_S = 0.25
"""How old usage may be when a task begins to work, or announces some: others go off for it, and reading
takes as long as half of that.
"""

MOST_SAID = 256
"""So many things that are wrong with a policy are said: each may name another process, or another number."""

SHORTEST_TIMER_S, LONGEST_TIMER_S = 0.0005, 3600.0
"""The bounds of a policy's own timer."""

_Result = TypeVar("_Result")


class Host(Protocol):
    """Runs a loop in its one thread: the daemon, or the simulator. In the simulator time stands still during a call;
    the thread is busy afterwards, for as long as the sent controls take.
    """

    @property
    def tasks(self) -> Mapping[TaskKey, Controlled]:
        """The tasks of the GPU, in the order in which they came."""

    def now(self) -> float:
        """Seconds of the clock of `Task.since`."""

    def call(self, function: Callable[[], _Result]) -> _Result:
        """Call a policy's function; raises what it raises, and an exception when it takes too long."""

    def wake(self, usage_kept_s: float = 0.0) -> None:
        """Call `Loop.run` with usage that may be so old as soon as the thread is free, which may be at once."""

    def ring_in(self, seconds: float) -> None:
        """Call `Loop.ring` this long after the thread is free, unless an earlier call is due."""

    def stop_ringing(self) -> None:
        """Cancel the call of `Loop.ring`."""

    def read_usage(self, kept_s: float) -> Mapping[TaskKey, float]:
        """Renew usage that is older than `kept_s`; returns the new seconds on the GPU of the tasks that had some."""

    def watch(self, decision: Decision) -> None:
        """Call `Loop.tell` with Busy and Idle of the tasks that the decision has in `watch` from now on, and of no
        others: Idle after so many seconds without work. Busy of those in `unhurried` may come up to half of that late.
        Call it with Announce of those in `announcing`. Those that do not tell of their activity are passed over.

        The tasks in `off_on_work` may go off as soon as one that is idle, and not unhurried, begins to work, or one
        announces that it will, before the policy is asked; those in `off_on_arrival` as soon as a latency-critical task
        is about to come.
        """

    def may_have_tiny(self, wants: bool) -> bool:
        """Whether a task of the GPU may have a slice shorter than a switch, where one is to: not where somebody else's
        task there has one.
        """

    def note(self, text: str) -> None:
        """Tell the user what is wrong with the policy."""


class Loop:
    """Tells and asks the policy of one GPU. `trouble` says why a policy was dropped, or is empty; `segments` are the
    tasks whose segments are in force since the last run.
    """

    def __init__(self, host: Host, spec: PolicySpec, policy: Policy, slices: SliceLimits) -> None:
        self.policy_name = spec.name
        self.trouble = ""
        self.segments: frozenset[TaskKey] = frozenset()
        self._policy = policy
        self._host = host
        self._slices = slices
        self._ran_at = self._hurried_at = -math.inf
        self._hurries = False  # one that is in a hurry is decided for by the next run
        self._asks_next = False  # within a run that has yet to ask
        self._said: set[str] = set()

    # -- what happens ------------------------------------------------------------------------------

    def tell(self, event: Event) -> None:
        """Deliver an event to the policy. Ask it soon when it wants that, and after what a task says of itself."""
        hurries = isinstance(event, Hint | Announce)
        if self._heard(event) or hurries or isinstance(event, Segment | Busy | Idle):
            self._soon(BUSY_KEPT_S if isinstance(event, Announce | Busy) else 0.0, hurries=hurries)

    def read_usage(self, kept_s: float = 0.0) -> None:
        """Renew usage that is older than `kept_s`, and tell the policy."""
        if held := self._host.read_usage(kept_s):
            self.tell(Used(held))

    def catch_up(self, kept_s: float = 0.0) -> None:
        """The same without asking the policy: it is asked next."""
        self._asks_next = True
        try:
            if held := self._host.read_usage(kept_s):
                self._heard(Used(held))
        finally:
            self._asks_next = False

    def refusal(self, task: Task, others: Sequence[Task], policy: Policy | None = None) -> str | None:
        """Why the policy, or the one given, does not take a task beside others, or None."""

        def ask(policy: Policy) -> str | None:
            return str(policy.admit(task, others) or "") or None

        if policy is not None:
            reason, fault = self._attempt(lambda: ask(policy))
            return reason if fault is None else f"the policy failed at admitting process {task.key.pid}: {fault}"
        asked = self._policy
        reason = self._guarded(ask)
        return reason if self._policy is asked else ask(self._policy)

    def why(self, key: TaskKey) -> str:
        """The policy's reason for a task's share."""
        return self._guarded(lambda policy: str(policy.why(key) or "")) or ""

    def giving_way(self) -> GivingWay | None:
        """How the policy's background gives way at present."""
        return self._guarded(lambda policy: _checked_way(policy.giving_way()))

    def use(self, spec: PolicySpec, policy: Policy) -> None:
        """Switch to another policy; shares change at the next `run`."""
        self.policy_name, self._policy, self.trouble = spec.name, policy, ""
        self._said.clear()
        self._host.watch(Decision({}))  # it is told of whoever is busy when it asks
        for managed in self._host.tasks.values():
            self._heard(Appear(managed.task))

    # -- when it is asked --------------------------------------------------------------------------

    def _soon(self, usage_kept_s: float, *, hurries: bool) -> None:
        """Run now, or a moment later where it has just run. What shows when usage is read is decided for by the run
        that reads it.
        """
        self._hurries |= hurries
        if self._asks_next:
            return
        since = self._host.now() - (self._hurried_at if hurries else self._ran_at)
        if since < SOON_S:
            self._host.ring_in(SOON_S - since)
        else:
            self._host.wake(usage_kept_s)

    def ring(self) -> None:
        """The timer ran out."""
        self._heard(Tick())
        self._host.wake()

    def run(self, usage_kept_s: float = 0.0) -> Failures:
        """Ask the policy now, with usage no older than `usage_kept_s`, and apply its decision."""
        host = self._host
        host.stop_ringing()
        now = self._ran_at = host.now()
        tasks = host.tasks
        if not tasks:
            return {}
        self.catch_up(usage_kept_s)
        if self._hurries:
            self._hurried_at, self._hurries = now, False
        answer = self._guarded(lambda policy: self._ask(policy, now))
        if answer is None:  # dropped just now: ask its successor
            answer = self._ask(self._policy, now)
        decision, notes = answer
        for note in notes:
            self._say_once(note)
        failures = apply_shares(tasks, decision.shares, self._slices)
        self.segments = decision.segments
        host.watch(decision)
        for key, managed in tasks.items():
            if key in decision.preempt:
                managed.preempt()
        if decision.again_after_s is not None:
            again = min(decision.again_after_s, LONGEST_TIMER_S) - (host.now() - now)  # applying takes a while
            host.ring_in(max(SHORTEST_TIMER_S, again))
        return failures

    # -- its answers -------------------------------------------------------------------------------

    def _heard(self, event: Event) -> bool | None:
        now = self._host.now()
        return self._guarded(lambda policy: bool(policy.on_event(event, now)))

    def _ask(self, policy: Policy, now: float) -> tuple[Decision, list[str]]:
        """A policy's decision, checked, made safe, and with the earliest time to ask again; and what was wrong with it.
        Raises any exception where it is no decision.
        """
        tasks = [managed.task for managed in self._host.tasks.values()]
        decision = policy.decide(list(tasks), now)
        decided = {key: _checked(share) for key, share in dict(decision.shares).items()}
        in_force = {key: managed.share for key, managed in self._host.tasks.items()}
        shares, notes = safe_shares(tasks, decided, in_force, now, self._slices, self._host.may_have_tiny)
        waits = [share.until - now for share in shares.values() if share.until is not None and not share.enabled]
        if decision.again_after_s is not None:
            waits.append(float(decision.again_after_s))
        if any(map(math.isnan, waits)):
            raise ValueError(f"{decision.again_after_s!r} is no time to ask again after")
        preempt, segments, unhurried, announcing = (
            frozenset(in_force.keys() & each)
            for each in (decision.preempt, decision.segments, decision.unhurried, decision.announcing)
        )
        watch = {key: float(idle_s) for key, idle_s in dict(decision.watch).items() if key in in_force}
        if not all(SHORTEST_TIMER_S <= idle_s <= LONGEST_TIMER_S for idle_s in watch.values()):
            raise ValueError(f"{watch!r} has no times after which a task is idle")
        off_on_work = safe_off_at_once(tasks, decision.off_on_work, shares, watch)
        off_on_arrival = safe_off_at_once(tasks, decision.off_on_arrival, shares)
        again_after_s = min(waits, default=None)
        safe = Decision(
            shares, again_after_s, preempt, segments, watch, announcing, off_on_work, off_on_arrival, unhurried
        )
        return safe, notes

    def _guarded(self, call: Callable[[Policy], _Result]) -> _Result | None:
        """The policy's answer; None when it failed and was replaced by the default one."""
        result, fault = self._attempt(lambda: call(self._policy))
        if fault is not None:
            self.trouble = f"policy {self.policy_name} was dropped for the default one: {fault}"
            self._say_once(self.trouble)
            spec = PolicySpec()
            self.policy_name, self._policy = spec.name, load_policy(spec)
            self._host.watch(Decision({}))
            for managed in self._host.tasks.values():
                self._policy.on_event(Appear(managed.task), self._host.now())
            self._host.ring_in(SHORTEST_TIMER_S)
        return result

    def _attempt(self, function: Callable[[], _Result]) -> tuple[_Result | None, str | None]:
        """A policy's answer, or its exception in one line. The exception's own code writes that line, and may fail."""
        try:
            return self._host.call(function), None
        except KeyboardInterrupt:  # the user's
            raise
        except BaseException as error:
            raised = error
            line = line_of(sys.exc_info()[2])
        try:
            return None, line + self._host.call(lambda: " ".join(repr(raised).split()))
        except BaseException:
            return None, line + type(raised).__name__

    def _say_once(self, note: str) -> None:
        if note not in self._said and len(self._said) < MOST_SAID:
            self._said.add(note)
            self._host.note(note)


def _checked(share: object) -> Share:
    """A policy's share in the right types, but for the slice, which the guard checks. Raises TypeError."""
    if isinstance(share, Share):
        until: object = share.until
        if until is None or (isinstance(until, int | float) and math.isfinite(until)):
            return Share(share.timeslice_us, bool(share.enabled), until)
    raise TypeError(f"{share!r} is no share with a finite time or None for `until`")


def _checked_way(told: object) -> GivingWay | None:
    """What a policy tells, in the right types. Raises an exception where it is something else."""
    if told is None:
        return None
    if not isinstance(told, GivingWay):
        raise TypeError(f"{told!r} is no GivingWay")
    cost, budget, pauses = (float(each) for each in (told.cost, told.budget, told.pauses_per_s))
    requests_s = {key: float(seconds) for key, seconds in dict(told.requests_s).items()}
    if not all(map(math.isfinite, (cost, budget, pauses, *requests_s.values()))):
        raise ValueError(f"{told!r} has a number that is none")
    slice_us = None if told.slice_us is None else int(told.slice_us)
    return GivingWay(str(told.way), slice_us, cost, budget, pauses, requests_s)
