"""Announcements: keeping the GPU free for a task that is about to work, by what the library in it has learnt or what it
says itself. Wrong ones cost the others little: each task has a budget for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from runlist.model import Announce, Task, TaskKey
from runlist.policies.parts.hints import AHEAD_S, GRACE_S, WAIT_S
from runlist.policies.parts.pace import NEVER, reached
from runlist.policies.parts.rest import Rest

AT_ONCE_S = 3e-3
"""Room is made at once for what is announced for no later than this, and AHEAD_S before what comes later. The library
goes by it, too.
"""
FARTHEST_S = 1.0
LOOK_S = 1e-3

BURST_S = 0.05
"""How much time wrong announcements may take at once; then a task is not listened to until all of it is saved again."""
WORTH_SAYING = 3

COST_S, MOST_COST = 1.6e-3, 0.2
"""What a right announcement costs the background, and which part of the time that may take: a service of 240 requests a
second left a batch job half of its rate by them, and was no quicker (H200).
"""
WINDOW_S, REST_S = 1.0, 10.0


_Owner = tuple[int, str]

NOBODY: _Owner = (-1, "")
"""The owner of a task that nobody said was there."""


class _Pending(msgspec.Struct):
    """Work that was announced for `at`. The others are off from `begins` on; `done` is when they come back, once it was
    right.
    """

    at: float
    begins: float
    cost_from: float | None = None
    done: float | None = None
    seen: tuple[float, ...] | None = None  # what the task had done when it was first looked at


class _Account(msgspec.Struct):
    """How much time a task may still take by wrong announcements; and how many there were."""

    balance: float = BURST_S
    ignored: bool = False
    told: int = 0
    wrong: int = 0
    work: int = 0  # of the task, when its last announcement was settled


class Announcements:
    """Whom the background has to be off for. `budget` is the part of the time that wrong announcements may take, of all
    tasks together in the long run. What a task owed when it went is owed by the next one of its owner: else whoever
    comes anew, again and again, would take all of the time.
    """

    def __init__(self, budget: float) -> None:
        self._budget = budget
        self._pending: dict[TaskKey, _Pending] = {}
        self._accounts: dict[TaskKey, _Account] = {}
        self._left: dict[_Owner, _Account] = {}  # of each owner, by those that are gone
        self._owners: dict[TaskKey, _Owner] = {}
        self._refilled_at = self._seen_at = 0.0
        self._counted_from, self._counts = -NEVER, Counter[_Owner]()  # of each owner
        self._rests: dict[_Owner, Rest] = {}

    def note(self, event: Announce, now: float) -> None:
        """A task announced work. What makes no sense is ignored, and what comes before the last one is settled."""
        if not 0 <= event.in_s <= FARTHEST_S or self._budget <= 0:
            return
        self._refill(now)
        account = self._accounts.get(event.key) or self._open_account(event.key)
        if account.ignored or event.key in self._pending or not self._rest_of(event.key).over(now):
            return
        account.told += 1
        self._count_one(event.key, now)
        ahead = event.in_s if event.in_s <= AT_ONCE_S else AHEAD_S
        self._pending[event.key] = _Pending(now + event.in_s, now + event.in_s - ahead)

    def expects(self, key: TaskKey) -> bool:
        """Whether room is made for a task, or will be."""
        return key in self._pending

    def worked(self, key: TaskKey) -> None:
        """A task began to work, and is given way to for that: what it announced is settled."""
        self._pending.pop(key, None)

    def appears(self, task: Task) -> None:
        """A task is there."""
        self._owners[task.key] = task.owner

    def drop(self, key: TaskKey, now: float) -> None:
        """The task is gone."""
        pending, account = self._pending.pop(key, None), self._accounts.pop(key, None)
        owner = self._owners.pop(key, None)
        if account is None or owner is None:
            return
        if pending is not None and pending.done is None:
            _charge(account, pending, now)
        if account.balance < BURST_S:
            left = self._left.setdefault(owner, _Account())
            left.balance -= BURST_S - account.balance
            left.ignored |= account.ignored

    def clear(self) -> None:
        """Nobody makes room for anybody now."""
        self._pending.clear()

    def heard(self, tasks: Iterable[TaskKey], now: float) -> frozenset[TaskKey]:
        """Those of the tasks whose announcements count."""
        self._seen_at = now
        if self._budget <= 0:
            return frozenset()
        self._refill(now)
        ignored = {key for key, account in self._accounts.items() if account.ignored}
        return frozenset(key for key in tasks if key not in ignored and self._rest_of(key).over(now))

    def off_until(self, entitled: Mapping[TaskKey, Task], now: float) -> tuple[dict[TaskKey, float], float | None]:
        """For whom the background has to be off, each with until when; and in how many seconds to ask again."""
        wanted: dict[TaskKey, float] = {}
        looks: list[float] = []
        for key, one in list(self._pending.items()):
            task = entitled.get(key)
            ends = one.at + WAIT_S if one.done is None else one.done
            account = self._accounts[key]
            if task is not None and one.done is None and _has_begun(one, task, account):
                one.done = ends = min(ends, now + GRACE_S)
            if reached(ends, now) or task is None:
                del self._pending[key]
                if task is not None and task.activity is not None:
                    account.work = task.activity.work
                if one.done is None:
                    _charge(account, one, now)
            elif reached(one.begins, now):
                one.cost_from = now if one.cost_from is None else one.cost_from
                wanted[key] = ends
                looks.append(min(ends - now, LOOK_S if one.done is None else ends - now))
            else:
                looks.append(one.begins - now)
        owing = self._refill(now)
        # Nothing else may happen until a task is listened to again.
        looks += [(BURST_S - each.balance) * len(owing) / self._budget for each in owing if each.ignored]
        looks += [rest.until - now for rest in self._rests.values() if not rest.over(now)]
        return wanted, min(looks, default=None)

    def why(self, key: TaskKey) -> str:
        """What came of a task's announcements, in a few words; empty where there is nothing to say."""
        account = self._accounts.get(key)
        if account is not None and account.ignored and not account.told:
            return "its announcements are ignored: those of others of its user, that are gone, were wrong"
        if account is None or account.told < WORTH_SAYING:
            return ""
        said = f"{account.wrong} of {account.told} were wrong"
        if not self._rest_of(key).over(self._seen_at):
            return f"its announcements are ignored for a while, since there are so many: {said}"
        return f"its announcements are ignored: {said}" if account.ignored else f"announces its work: {said}"

    def _open_account(self, key: TaskKey) -> _Account:
        account = self._accounts[key] = _Account()
        if (left := self._left.get(self._owner_of(key))) is not None:
            owed = min(BURST_S, BURST_S - left.balance)
            left.balance += owed
            account.balance -= owed
            account.ignored = left.ignored or account.balance <= 0
        return account

    def _owner_of(self, key: TaskKey) -> _Owner:
        return self._owners.get(key, NOBODY)

    def _rest_of(self, key: TaskKey) -> Rest:
        return self._rests.setdefault(self._owner_of(key), Rest(REST_S))

    def _count_one(self, key: TaskKey, now: float) -> None:
        """Where there are more than it is worth, listen for a while to none of who has more than a part of that."""
        most = MOST_COST * WINDOW_S / COST_S
        if reached(self._counted_from + WINDOW_S, now):
            for owner, count in self._counts.items():
                if count * len(self._counts) <= most and owner in self._rests:
                    self._rests[owner].forget()
            there = {*self._owners.values(), NOBODY}
            self._rests = {owner: rest for owner, rest in self._rests.items() if owner in there or not rest.over(now)}
            self._counted_from, self._counts = now, Counter()
        rest, owner = self._rest_of(key), self._owner_of(key)
        self._counts[owner] += 1
        if self._counts.total() > most and self._counts[owner] * len(self._counts) > most:
            rest.begin(now)

    def _refill(self, now: float) -> list[_Account]:
        """Save what may be spent since the last time; returns the accounts that owe something."""
        # Those who owe something share what may be spent: else each process of a crowd had a budget of its own.
        self._left = {owner: each for owner, each in self._left.items() if each.balance < BURST_S}
        owing = [each for each in (*self._accounts.values(), *self._left.values()) if each.balance < BURST_S]
        saved = self._budget * (now - self._refilled_at) / max(1, len(owing))
        self._refilled_at = now
        for account in owing:
            account.balance = min(BURST_S, account.balance + saved)
            account.ignored &= account.balance < BURST_S
        return [account for account in owing if account.balance < BURST_S]


def _charge(account: _Account, one: _Pending, now: float) -> None:
    account.wrong += 1
    if one.cost_from is not None:
        account.balance -= now - one.cost_from
    account.ignored |= account.balance <= 0


def _has_begun(one: _Pending, task: Task, account: _Account) -> bool:
    """Whether work came after an announcement. The task tells what there was before it; where that is older than the
    last announcement, or it tells nothing, what was there at the first look counts.
    """
    activity = task.activity
    if activity is not None and activity.before >= account.work:
        return activity.work > activity.before
    seen = (task.usage.turns, task.usage.held_s) if activity is None else (activity.work,)
    one.seen = one.seen or seen
    return seen != one.seen
