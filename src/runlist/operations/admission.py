"""What a rule answers: what may run beside client 0 while it is busy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

ANY = 0xFFFFFFFF
"""So many SMs as there are."""


class Bound(IntEnum):
    """What a kernel is bound by."""

    UNKNOWN = 0
    COMPUTE = 1
    MEMORY = 2


@dataclass(frozen=True, slots=True)
class Admission:
    """What may run beside client 0 while it is busy: pairs of what its newest operation is bound by and what the other
    is; the most SMs of others in flight; whether their copies and fills go at once; and the most that those in flight
    may be expected to last together, in ns, None for no bound.

    What is in flight when client 0 comes is what it waits for: while it is idle the others give more as long as what is
    in flight may be expected to last `ahead_ns` together, None for any time. A kernel without a profile counts as
    others of its client took, at first as a sixteenth of that, and a CUDA graph as all of it. Client 0 counts as busy
    for `rest_ns` after its work has ended, 1 s at most.
    """

    beside: frozenset[tuple[Bound, Bound]]
    sms: int = ANY
    copies: bool = True
    gate_ns: int | None = None
    ahead_ns: int | None = None
    rest_ns: int = 0

    def bits(self) -> int:
        """`beside` as the library takes it."""
        return sum(1 << (3 * first + other) for first, other in self.beside)


ALL = frozenset((first, other) for first in Bound for other in Bound)
"""Everything beside everything."""

COMPLEMENTS = frozenset(pair for pair in ALL if pair[0] != pair[1] or Bound.UNKNOWN in pair)
"""Compute beside memory, and what is not known beside anything."""

OPEN = Admission(ALL)
CLOSED = Admission(frozenset(), sms=0, copies=False)
"""Nothing goes while client 0 is busy."""

AHEAD_NS = 1_000_000
"""A rule's bound where client 0's latency counts most: a few kernels of a training step."""

REST_NS = 100_000
"""So that the others do not come in between two launches of one request."""

LONGEST_REST_NS = 10**9

_NUMBERS: tuple[tuple[str, Any, int, int], ...] = (
    ("sms", int, 0, ANY),
    ("copies", bool, 0, 1),
    ("gate_ns", int | None, -1, (1 << 63) - 1),
    ("ahead_ns", int | None, 1, (1 << 63) - 1),
    ("rest_ns", int, 0, LONGEST_REST_NS),
)
"""What is a number in an admission, from which to which."""


def wrong(admission: Admission) -> str:
    """Why the library would not take it, or not as it is meant; empty where it would."""
    try:
        if not admission.beside <= ALL:
            return "an admission names pairs of Bound"
    except TypeError:
        return f"an admission has a frozenset of pairs of Bound, not beside={admission.beside!r}"
    for name, kind, least, most in _NUMBERS:
        number = getattr(admission, name)
        if not isinstance(number, kind) or not (number is None or least <= number <= most):
            return f"no admission has {name}={number!r}"
    return ""
