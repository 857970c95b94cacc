"""Profiles from what a program did: how long its kernels took, and how many SMs their blocks fill."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from runlist.operations.admission import Bound
from runlist.operations.profiles.profile import LONGEST_NS, MOST_KERNELS, MOST_SMS, Profile
from runlist.operations.record import KERNEL, Operation

LEAST = 3
"""So many launches of a kernel are seen before it is known."""

_KEPT = 101


class Learner:
    """Takes operations in the order of their launches. A kernel took from when it was given to the driver, or the
    operation before it of the same client was done, until it was done: the one of the middle counts. Of clients with
    several streams, and beside others, that is not exact. What a kernel is bound by cannot be learned so.
    """

    def __init__(self) -> None:
        self._seen: dict[str, deque[tuple[int, int]]] = {}
        self._counts: dict[str, int] = {}
        self._done_ns: dict[int, int] = {}

    def see(self, operations: Iterable[Operation]) -> None:
        """Some more. Those of which it is not known when they were done say nothing."""
        for one in operations:
            if one.done_ns <= 0:
                continue
            began_ns = max(one.launched_ns, self._done_ns.get(one.client, 0))
            self._done_ns[one.client] = max(one.done_ns, self._done_ns.get(one.client, 0))
            took_ns = one.done_ns - began_ns
            if one.kind != KERNEL or not one.name or not one.name.isprintable() or not 0 < took_ns <= LONGEST_NS:
                continue
            if one.name not in self._seen and len(self._seen) >= MOST_KERNELS:
                continue
            self._seen.setdefault(one.name, deque(maxlen=_KEPT)).append((took_ns, min(one.sms, MOST_SMS)))
            self._counts[one.name] = self._counts.get(one.name, 0) + 1

    def count(self, name: str) -> int:
        """How often a kernel was seen."""
        return self._counts.get(name, 0)

    def profiles(self) -> list[Profile]:
        """Of the kernels that were seen often enough."""
        return [_profile(name, list(seen)) for name, seen in self._seen.items() if self._counts[name] >= LEAST]


def _profile(name: str, seen: list[tuple[int, int]]) -> Profile:
    took_ns, sms = sorted(seen)[len(seen) // 2]
    return Profile(name, Bound.UNKNOWN, sms, took_ns)
