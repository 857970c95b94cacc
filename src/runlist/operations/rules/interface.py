"""What a rule is.

A thread of the scheduler keeps one instance. It asks for an `Admission` when the rule comes into force and, where the
rule says so, again and again: with each answer the library decides by itself, launch by launch, until the next. No
launch ever waits for a rule.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from runlist.operations.admission import Admission


@dataclass(frozen=True, slots=True)
class Counters:
    """Of one client, since the start, as `rl_operations_counters`: times in ns, `latency_ns` that of the newest
    stretch of work.
    """

    launched: int
    deferred: int
    flushed: int
    opened: int
    waited_ns: int
    requests: int
    latency_ns: int


@dataclass(frozen=True, slots=True)
class Model:
    """All that a rule sees. `now_s` is of CLOCK_MONOTONIC; `clients` has the counters of each client of this process
    (under MPS others than its own count nothing here); `latencies_ns` how long client 0's requests took that ended
    since the rule was last asked, the newest 1,024 at most, oldest first; `sms` how many the device has, 0 where that
    is not known.

    A request is a stretch of work from its first operation to the end of the synchronisation that waits for it.
    """

    now_s: float
    clients: Sequence[Counters]
    latencies_ns: Sequence[int]
    sms: int = 0


class Rule(ABC):
    """Base of every rule. `options` are `name=value` strings of the user; raise ValueError with one clear line for a
    bad one.

    A rule that raises, or takes longer than STALL_S, is dropped for the default one without feedback.
    """

    summary: ClassVar[str]
    """One line for `runlist policy rules`."""

    every_s: ClassVar[float | None] = None
    """How often it is asked; None: once."""

    def __init__(self, options: Mapping[str, str]) -> None:
        if options:
            raise ValueError(f"this rule takes no options, got {', '.join(sorted(options))}")

    @abstractmethod
    def admission(self, model: Model) -> Admission:
        """What may run beside client 0 from now on."""

    def why(self) -> str:
        """In a few words, why it answered what it last did; empty when there is nothing to say."""
        return ""


STALL_S = 0.25
"""How long one answer may take."""

LEAST_EVERY_S, MOST_EVERY_S = 0.01, 86_400.0
"""No rule is asked more often, nor can it be asked more rarely than once a day."""


def wrong_every(every_s: object) -> str:
    """Why a rule cannot be asked so often; empty where it can."""
    if every_s is None or (isinstance(every_s, int | float) and 0 < every_s <= MOST_EVERY_S):
        return ""
    return f"every_s is {every_s!r}: take seconds, {MOST_EVERY_S:g} at most, or None to be asked once"
