"""Reservations: a budget of GPU time in every period, as a hard constant-bandwidth server keeps it."""

from __future__ import annotations

import math

from runlist.model import Deadline, Owner, Usage
from runlist.policies.parts.pace import periods_begun

SPENT_S = 0.0003
"""A budget with this much left, or a quarter of a smaller budget, is spent: suspending a task takes longer."""


class Reservation:
    """The budget of one task of an owner, in seconds. Its periods begin when it does.

    An unused rest is lost. Suspending takes a while, so a task can use too much: the next budget pays for that.
    """

    def __init__(self, deadline: Deadline, usage: Usage, now: float, owner: Owner) -> None:
        self.deadline, self.owner = deadline, owner
        self.ends = now + deadline.period_us / 1e6
        self.left = deadline.budget_us / 1e6
        self._busy = usage.busy_s
        self._paid = now  # when the deadlines so far have paid for all that was used

    @property
    def spent(self) -> bool:
        return self.left <= self._spent_s

    @property
    def _spent_s(self) -> float:
        return min(SPENT_S, self.deadline.budget_us / 4e6)

    @property
    def until(self) -> float:
        """When there is a budget again."""
        budget_s, period_s = self.deadline.budget_us / 1e6, self.deadline.period_us / 1e6
        missing = max(1, 1 + math.floor((self._spent_s - self.left) / budget_s))
        return self.ends + (missing - 1) * period_s

    def change(self, deadline: Deadline, now: float) -> None:
        """Another deadline from the next period on, which is no farther than one of its own; at most the new budget is
        left. A longer period begins once all is paid: else who shortens it again and again would have its budget anew.
        """
        if deadline.period_us < self.deadline.period_us:
            self.ends = min(self.ends, now + deadline.period_us / 1e6)
        elif deadline.period_us > self.deadline.period_us:
            self.ends = min(max(self.ends, self._paid), now + deadline.period_us / 1e6)
        self.deadline = deadline
        self.left = min(self.left, deadline.budget_us / 1e6)

    def resume(self, usage: Usage) -> None:
        """The task has its deadline again, or another one of its owner takes its place: what was used without is no
        part of the budget.
        """
        self._busy = usage.busy_s

    def settle(self, usage: Usage, now: float) -> None:
        """Take the usage out, and begin new periods."""
        budget_s, period_s = self.deadline.budget_us / 1e6, self.deadline.period_us / 1e6
        used, self._busy = usage.busy_s - self._busy, usage.busy_s
        self.left -= used
        self._paid = max(self._paid, self.ends - period_s) + used * period_s / budget_s
        begun = periods_begun(self.ends, period_s, now)
        self.left += begun * budget_s
        self.ends += begun * period_s
        self.left = min(self.left, budget_s)
