"""Liars: who said that it was busy, and did not want the GPU in the breaks that others had. Its word does not count for
a minute, nor does that of who its user has come after it: else whoever comes anew, again and again, would be believed.
"""

from __future__ import annotations

import msgspec

from runlist.model import Owner, Task, TaskKey
from runlist.policies.parts.pace import NEVER, reached

MOST_LIES, FORGIVEN_S = 3, 60.0
"""Whoever lies in so many breaks in a row is not believed for a minute; nobody of a user of whom so many are not."""


class _Account(msgspec.Struct):
    """How often in a row one lied, until when it is not believed, and since when that counts."""

    lies: int = 0
    until: float = -NEVER
    since: float = -NEVER


class Liars:
    """Who is not believed on one GPU."""

    def __init__(self) -> None:
        self._accounts: dict[TaskKey, _Account] = {}
        self._owners: dict[TaskKey, Owner] = {}
        self._left: dict[Owner, _Account] = {}  # by those that are gone
        self._crowds: dict[Owner, float] = {}  # until when nobody of an owner is believed

    def appears(self, task: Task, now: float) -> None:
        """A task is there: of its lies those count that others of its user left."""
        if task.key in self._owners:
            return
        self._owners[task.key] = task.owner
        self._left = {owner: left for owner, left in self._left.items() if not reached(left.since + FORGIVEN_S, now)}
        if (left := self._left.get(task.owner)) is not None:
            self._accounts[task.key] = _Account(left.lies, left.until, left.since)

    def drop(self, key: TaskKey, now: float) -> None:
        """The task is gone."""
        account, owner = self._accounts.pop(key, None), self._owners.pop(key, None)
        if account is None or owner is None or not (account.lies or not reached(account.until, now)):
            return
        left = self._left.get(owner, account)
        # What was left to a task is as old as it was: only lies of its own are held against who comes later for longer.
        self._left[owner] = _Account(
            max(left.lies, account.lies), max(left.until, account.until), max(left.since, account.since)
        )

    def was_right(self, key: TaskKey) -> None:
        """A task wanted the GPU as it said."""
        if (account := self._accounts.get(key)) is not None:
            account.lies = 0

    def lied(self, key: TaskKey, now: float) -> None:
        """A task did not want the GPU, although it said so."""
        account = self._accounts.setdefault(key, _Account())
        account.lies, account.since = account.lies + 1, now
        if account.lies < MOST_LIES:
            return
        account.lies, account.until = 0, now + FORGIVEN_S
        owner = self._owners.get(key)
        theirs = [one for one, each in self._accounts.items() if self._owners.get(one) == owner]
        if owner is not None and sum(not reached(self._accounts[one].until, now) for one in theirs) >= MOST_LIES:
            self._crowds[owner] = account.until

    def forgive(self, now: float) -> None:
        """Believe those again whose time is over."""
        self._crowds = {owner: until for owner, until in self._crowds.items() if not reached(until, now)}
        for account in self._accounts.values():
            if reached(account.until, now):
                account.until = -NEVER

    def __contains__(self, key: TaskKey) -> bool:
        """Whether a task's word does not count, as of when liars were last forgiven."""
        account = self._accounts.get(key)
        return self._owners.get(key) in self._crowds or (account is not None and account.until > -NEVER)
