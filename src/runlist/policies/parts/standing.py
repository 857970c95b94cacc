"""Standing: who is listened to, when tasks say what others have to go off for.

Each task has an account for what it says wrongly, and its owner answers for how much is said, and for what its tasks
owed when they went: else whoever comes anew, again and again, would take all of the time.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from runlist.model import Owner, Task, TaskKey
from runlist.policies.parts.pace import NEVER, reached
from runlist.policies.parts.rest import Rest

BURST_S = 0.05
"""How much time wrong words may take at once; then a task is not listened to until all of it is saved again."""
WORTH_SAYING = 3

COST_S, MOST_COST = 1.6e-3, 0.2
"""What a right word costs the others, and which part of the time that may take: a service of 240 requests a second left
a batch job half of its rate by them, and was no quicker (H200).
"""
WINDOW_S, REST_S = 1.0, 10.0


class _Account(msgspec.Struct):
    """How much time may still be taken by what is wrong."""

    balance: float = BURST_S
    ignored: bool = False

    @property
    def owes(self) -> bool:
        return self.balance < BURST_S

    def charge(self, seconds: float) -> None:
        self.balance -= seconds
        self.ignored |= self.balance <= 0

    def save(self, seconds: float) -> None:
        self.balance = min(BURST_S, self.balance + seconds)
        self.ignored &= self.owes

    def take_over(self, debtor: _Account, most: float = NEVER) -> None:
        """Owe what another owes, up to so much."""
        if (owed := min(most, BURST_S - debtor.balance)) > 0:
            ignored = debtor.ignored
            debtor.save(owed)
            self.charge(owed)
            self.ignored |= ignored


class _Answerer(msgspec.Struct):
    """Who answers for tasks: `gone` is for those that are, `said` how much was said since the window began."""

    gone: _Account
    rest: Rest
    said: int = 0


class _Speaker(msgspec.Struct):
    """A task that is there, since its first word with an account; how much it said, and how much of that was wrong."""

    owner: _Answerer
    account: _Account | None = None
    told: int = 0
    wrong: int = 0


class Standing:
    """That of all tasks of a GPU. `budget` is the part of the time that wrong words may take, of all together in the
    long run.
    """

    def __init__(self, budget: float) -> None:
        self._budget = budget
        self._speakers: dict[TaskKey, _Speaker] = {}
        self._owners: dict[Owner, _Answerer] = {}
        self._saved_at, self._window_began = 0.0, -NEVER

    def appears(self, task: Task) -> None:
        """A task is there."""
        owner = self._owners.get(task.owner) or self._owners.setdefault(task.owner, _Answerer(_Account(), Rest(REST_S)))
        if (speaker := self._speakers.get(task.key)) is None:
            self._speakers[task.key] = _Speaker(owner)
        else:
            speaker.owner = owner

    def drop(self, key: TaskKey, now: float) -> None:
        """It is gone."""
        if (speaker := self._speakers.pop(key, None)) is not None:
            if speaker.account is not None:
                speaker.owner.gone.take_over(speaker.account)
            self._tidy(now)

    def counts(self, key: TaskKey, now: float) -> bool:
        """Whether a task is listened to."""
        speaker = self._speakers.get(key)
        ignored = speaker is None or (speaker.account is not None and speaker.account.ignored)
        return self._budget > 0 and speaker is not None and not ignored and speaker.owner.rest.over(now)

    def speaks(self, key: TaskKey, now: float) -> bool:
        """A task says something. Returns whether that counts."""
        speaker = self._speakers.get(key)
        if speaker is not None and speaker.account is None:
            speaker.account = _Account()
            speaker.account.take_over(speaker.owner.gone, BURST_S)
        if speaker is None or not self.counts(key, now):
            return False
        speaker.told += 1
        self._count_one(speaker.owner, now)
        return True

    def was_wrong(self, key: TaskKey, seconds: float) -> None:
        """What it said was wrong, and took so much time."""
        if (speaker := self._speakers.get(key)) is not None and speaker.account is not None:
            speaker.wrong += 1
            speaker.account.charge(seconds)

    def pass_time(self, now: float) -> None:
        """Save what may be spent since the last time."""
        # Owners who owe something share what may be spent, and so do the tasks of each: else each process of a crowd
        # had a budget of its own, or left others next to nothing of theirs.
        owing = self._owing()
        for accounts in owing:
            for account in accounts:
                account.save(self._budget * (now - self._saved_at) / len(owing) / len(accounts))
        self._saved_at = now

    def looks(self, now: float) -> Iterator[float]:
        """In how many seconds somebody is listened to again: nothing else may happen until then."""
        owing = self._owing()
        for accounts in owing:
            many = len(owing) * len(accounts)
            yield from ((BURST_S - each.balance) * many / self._budget for each in accounts if each.ignored)
        yield from (owner.rest.until - now for owner in self._owners.values() if not owner.rest.over(now))

    def why(self, key: TaskKey, now: float) -> str:
        """What came of a task's words, in a few words; empty where there is nothing to say."""
        speaker = self._speakers.get(key)
        if speaker is None or speaker.account is None:
            return ""
        ignored = speaker.account.ignored
        if ignored and not speaker.told:
            return "its announcements are ignored: those of others of its user, that are gone, were wrong"
        if speaker.told < WORTH_SAYING and not ignored:
            return ""
        said = f"{speaker.wrong} of {speaker.told} were wrong"
        if not speaker.owner.rest.over(now):
            return f"its announcements are ignored for a while, since there are so many: {said}"
        return f"its announcements are ignored: {said}" if ignored else f"announces its work: {said}"

    def _owing(self) -> list[list[_Account]]:
        """The accounts that owe something, by owner."""
        owing: dict[int, list[_Account]] = {}
        for speaker in self._speakers.values():
            if speaker.account is not None and speaker.account.owes:
                owing.setdefault(id(speaker.owner), []).append(speaker.account)
        for owner in self._owners.values():
            if owner.gone.owes:
                owing.setdefault(id(owner), []).append(owner.gone)
        return list(owing.values())

    def _count_one(self, owner: _Answerer, now: float) -> None:
        """Where there are more than it is worth, listen for a while to none of who has more than a part of that."""
        most = MOST_COST * WINDOW_S / COST_S
        if reached(self._window_began + WINDOW_S, now):
            many = self._many()
            for each in self._owners.values():
                if each.said and each.said * many <= most:
                    each.rest.forget()
                each.said = 0
            self._window_began = now
            self._tidy(now)
        owner.said += 1
        if sum(each.said for each in self._owners.values()) > most and owner.said * self._many() > most:
            owner.rest.begin(now)

    def _many(self) -> int:
        return sum(each.said > 0 for each in self._owners.values())

    def _tidy(self, now: float) -> None:
        """Forget owners of whom there is no task, and nothing to know."""
        there = {id(speaker.owner) for speaker in self._speakers.values()}
        self._owners = {
            name: each
            for name, each in self._owners.items()
            if id(each) in there or each.gone.owes or each.said or not each.rest.over(now)
        }
