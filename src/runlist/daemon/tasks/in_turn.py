"""A few at a time of what one user may have thousands of, each in its turn: nobody waits for all of them."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from itertools import islice
from typing import Any, Generic, TypeVar

FEW = 16
"""To see whether a process still runs its program takes 0.1 ms."""

_Key = TypeVar("_Key", bound=Any)
_Value = TypeVar("_Value")


def next_of(known: dict[_Key, _Value], few: int = FEW) -> list[tuple[_Key, _Value]]:
    """The first few, which go behind the others."""
    some = list(islice(known.items(), few))
    for key, value in some:
        del known[key]
        known[key] = value
    return some


class InTurn(Generic[_Key]):
    """Chooses, at each call, a few of each user's: those behind the ones that it chose last."""

    def __init__(self, few: int = FEW) -> None:
        self._few = few
        self._last: dict[int, _Key] = {}

    def choose(self, every: Iterable[tuple[int, _Key]]) -> list[_Key]:
        """Of users and what each has."""
        by_user: defaultdict[int, list[_Key]] = defaultdict(list)
        for user, key in every:
            by_user[user].append(key)
        chosen, before, self._last = [], self._last, {}
        for user, keys in by_user.items():
            keys.sort()
            begin = bisect_right(keys, before[user]) if user in before else 0
            some = [*keys[begin:], *keys[:begin]][: self._few]
            self._last[user] = some[-1]
            chosen += some
        return chosen
