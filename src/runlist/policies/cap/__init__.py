"""Caps: at most so much GPU time in every period, as cgroup v2's cpu.max, whoever else wants the GPU or not.

Each group (or task by itself) that has a cap has an account. Every period pays the quota in, and the time that its
tasks held the GPU is taken out; the rest adds up to the burst. When nothing is left its tasks wait for the next period.
Suspending them takes a while, so they can use too much: the next periods pay that debt, and the cap is exact in the
long run. Idle time that was first taken for work is given back when it is known.

Good for: selling parts of a GPU, and background jobs that must leave it cool.
Fails: below about 10 % with short periods: each period costs a suspension and a resumption, together about 1 ms. In a
group of tasks the smallest cap counts for all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from runlist.model import Cap, Event, Task, TaskKey, Usage, Vanish
from runlist.policies.interface import Decision, Layer, Policy
from runlist.policies.parts.pace import Pace, periods_begun
from runlist.policies.parts.waiting import Waiting, earliest

SPENT_S = 0.0003
"""An account with this much left, or a quarter of a smaller quota, is empty: suspending a task takes longer."""
SHORTEST_LOOK_S = 0.001
WORTH_RESUMING_S = 0.001
LOOKS_PER_S = 90.0


class Account:
    """What a group may still use, in seconds of GPU time. Periods of equal length begin together."""

    def __init__(self, cap: Cap, now: float) -> None:
        self.cap = cap
        self.ends = _period_end(cap, now)
        self.balance = self._quota_s * (self.ends - now) / self._period_s
        self.empty = False
        self._busy: dict[TaskKey, float] = {}

    @property
    def _quota_s(self) -> float:
        return self.cap.quota_us / 1e6

    @property
    def _spent_s(self) -> float:
        return min(SPENT_S, self._quota_s / 4)

    @property
    def _period_s(self) -> float:
        return self.cap.period_us / 1e6

    @property
    def _most(self) -> float:
        return self._quota_s + self.cap.burst_us / 1e6

    @property
    def full(self) -> bool:
        """Whether it makes no difference to a new one."""
        return self.balance >= self._quota_s

    @property
    def until(self) -> float:
        """When there is something to use again: at the end of a period."""
        missing = max(1, 1 + math.floor((self._spent_s - self.balance) / self._quota_s))
        return self.ends + (missing - 1) * self._period_s

    def change(self, cap: Cap, now: float) -> None:
        """Another cap from now on. What was used stays used."""
        if cap.period_us != self.cap.period_us:
            self.ends = _period_end(cap, now)
        self.cap = cap
        self.balance = min(self.balance, self._most)

    def charge(self, key: TaskKey, usage: Usage) -> None:
        """Take out what a task used since it was last seen here."""
        if key in self._busy:
            self.balance -= usage.busy_s - self._busy[key]
            self._busy[key] = usage.busy_s

    def drop(self, key: TaskKey, usage: Usage) -> None:
        """The task is gone. Where it comes again its usage begins anew."""
        self.charge(key, usage)
        self._busy.pop(key, None)

    def settle(self, members: Sequence[Task], now: float) -> None:
        """Take the usage out, pay the quotas of new periods in, and see whether anything is left."""
        for task in members:
            self.charge(task.key, task.usage)
        self._busy = {task.key: task.usage.busy_s for task in members}
        begun = periods_begun(self.ends, self._period_s, now)
        self.balance = min(self._most, self.balance + begun * self._quota_s)
        self.ends += begun * self._period_s
        # Within a period only idle time that is given back fills it: resume only for enough of that.
        self.empty = self.balance <= (WORTH_RESUMING_S if self.empty and not begun else self._spent_s)


class CapLayer(Layer):
    """Caps over any policy."""

    summary = "layer, always there: caps (at most PERCENT of a GPU, or QUOTA per PERIOD)"

    def __init__(self, options: Mapping[str, str], below: Policy) -> None:
        super().__init__(options, below)
        self._accounts: dict[str, Account] = {}
        self._waiting = Waiting(below)
        self._pace = Pace(LOOKS_PER_S)
        self._names: dict[TaskKey, str] = {}
        self._now = 0.0

    def on_event(self, event: Event, now: float) -> bool | None:
        if isinstance(event, Vanish):
            self._leave(event.key, event.usage)
        return self.below.on_event(event, now)

    def decide(self, tasks: Sequence[Task], now: float) -> Decision:
        if not self._accounts and not any(task.cap for task in tasks):
            return self.below.decide(tasks, now)
        self._now = now
        for task in tasks:
            if self._names.get(task.key) != task.shares_as:
                self._leave(task.key, task.usage)
        members: dict[str, list[Task]] = {}
        for task in tasks:
            members.setdefault(task.shares_as, []).append(task)
        self._settle(members, now)
        self._names = {task.key: task.shares_as for task in tasks}
        off = {
            task.key: account.until
            for name, account in self._accounts.items()
            if account.empty
            for task in members.get(name, ())
            if not task.suspended
        }
        decision = self._waiting.decide(tasks, off, now)
        looks = []
        for name, account in self._accounts.items():
            if account.empty:
                looks.append(account.until if name in members else account.ends)
            elif any(_enabled(decision, task) for task in members.get(name, ())):
                looks.append(now + max(account.balance, SHORTEST_LOOK_S))
        if not looks:
            return decision
        return earliest(now, decision, now + self._pace.after(min(looks), now))

    def why(self, key: TaskKey) -> str:
        account = self._accounts.get(self._names.get(key, ""))
        if account is None or not account.empty:
            return self.below.why(key)
        wait_ms = 1e3 * max(0.0, account.until - self._now)
        return f"cap {100 * account.cap.fraction:.3g} %: waits {wait_ms:.0f} ms for its next period"

    def _leave(self, key: TaskKey, usage: Usage) -> None:
        """What a task used counts for the group that it was in, also when it has left."""
        if (account := self._accounts.get(self._names.pop(key, ""))) is not None:
            account.drop(key, usage)

    def _settle(self, members: Mapping[str, Sequence[Task]], now: float) -> None:
        """Bring all accounts up to date, open new ones, and close those that nobody needs."""
        for name, group in members.items():
            caps = [task.cap for task in group if task.cap]
            if caps:
                cap = min(caps, key=lambda each: each.fraction)
                self._accounts.setdefault(name, Account(cap, now)).change(cap, now)
            else:
                self._accounts.pop(name, None)
        for name, account in list(self._accounts.items()):
            account.settle(members.get(name, ()), now)
            if name not in members and account.full:  # a group whose tasks end does not start anew with the next ones
                del self._accounts[name]


def _period_end(cap: Cap, now: float) -> float:
    period_s = cap.period_us / 1e6
    return (math.floor(now / period_s) + 1) * period_s


def _enabled(decision: Decision, task: Task) -> bool:
    if task.suspended:
        return False
    share = decision.shares.get(task.key)
    return share is None or share.enabled


POLICY = CapLayer
