"""Savings: what each owner may still take of something that is for all, however many tasks it has."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from runlist.model import Owner
from runlist.policies.parts.pace import LATEST_S, SLACK_S, reached

REMEMBERED_S = 10.0
"""So long an owner who wants nothing any more has a part of what is saved: others may come between two of its own."""


class Account(msgspec.Struct):
    """What an owner may take: `saved_s` seconds. It takes them `until` then, and was last `seen` to want some. Who has
    used all up is `empty` until enough is saved again; who has used half comes `behind` the others until all is.
    """

    saved_s: float
    seen: float
    until: float = 0.0
    empty: bool = False
    behind: bool = False


class Savings:
    """The accounts of those who want something, or did lately. They save in equal parts, `rate` seconds for each second
    in which nobody takes any: all together up to `burst_s`, each at least `least_s`. Who was empty has enough with
    `enough_s`.
    """

    def __init__(self, burst_s: float, least_s: float, enough_s: float, rate: float) -> None:
        self._burst_s = burst_s
        self._least_s = least_s
        self._enough_s = enough_s
        self._rate = rate
        self._accounts: dict[Owner, Account] = {}
        self._at = 0.0

    def __getitem__(self, owner: Owner) -> Account:
        """That of one who wants something."""
        return self._accounts[owner]

    @property
    def most_s(self) -> float:
        """What an owner may save up."""
        return max(self._least_s, self._burst_s / max(1, len(self._accounts)))

    def pass_time(self, wanting: Iterable[Owner], now: float) -> None:
        """Spend what is taken, which ends by that; and save while nobody takes anything."""
        for owner in wanting:
            self._accounts.setdefault(owner, Account(self._burst_s, now)).seen = now
        spent = {owner: self._spent(account, now) for owner, account in self._accounts.items()}
        free_s = max(0.0, now - self._at - max(spent.values(), default=0.0))
        saved_s, most_s = free_s * self._rate / max(1, len(self._accounts)), self.most_s
        for owner, account in self._accounts.items():
            account.saved_s -= spent[owner]
            account.empty |= account.saved_s <= SLACK_S
            account.behind |= reached(account.saved_s, most_s / 2)
            account.saved_s = min(most_s, account.saved_s + saved_s)
            account.empty &= account.saved_s < self._enough_s
            account.behind &= not reached(most_s, account.saved_s)
            account.until = now
        self._at = now
        self._accounts = {
            owner: account
            for owner, account in self._accounts.items()
            if account.saved_s < most_s or not reached(account.seen + REMEMBERED_S, now)
        }

    def enough_at(self, account: Account, now: float) -> float:
        """When one that is empty has enough, if nobody takes anything until then."""
        return now + (self._least_s - account.saved_s) * len(self._accounts) / self._rate

    def _spent(self, account: Account, now: float) -> float:
        return max(0.0, min(now, account.until + LATEST_S) - self._at) if account.until > self._at else 0.0
