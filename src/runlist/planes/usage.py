"""The readings of a usage source: who held a GPU, for how long, and in which turns.

A source belongs to one GPU. It is read again and again, and each reading covers the time since the one before. Process
id 0 stands for the processes of other users that the reader may not see.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import msgspec

from runlist.model.usage import NO_USAGE, Usage


class Residency(NamedTuple):
    """A context on the GPU from `start_ns` to `end_ns` (CLOCK_REALTIME, ns): a whole turn, or a part of one.

    A turn that spans several readings comes in parts that join without a gap. `context` only tells the contexts of one
    process apart.
    """

    pid: int
    context: int
    start_ns: int
    end_ns: int


class Reading(msgspec.Struct):
    """The use of a GPU since the last reading, up to `until` (CLOCK_REALTIME, s).

    `usage` is by process id, without processes that had none; idle time may be of earlier readings. `residencies` are
    in order and do not overlap; `began` has when each context was switched in last (CLOCK_REALTIME, s), of those that
    were, by process id and context. Sources that do not see turns leave both empty. `dropped` counts lost records:
    nobody is charged for their time.
    """

    until: float
    usage: dict[int, Usage] = {}
    residencies: list[Residency] = []
    began: dict[tuple[int, int], float] = {}
    dropped: int = 0

    def add(self, pid: int, usage: Usage) -> None:
        """Add usage of a process."""
        self.usage[pid] = self.usage.get(pid, NO_USAGE) + usage


class UsageSource(Protocol):
    """A source of usage for one GPU. `name` is shown to people."""

    name: str

    def read(self) -> Reading:
        """The reading since the last call, or since the opening. Raises RunlistError or OSError when the source has
        failed: close it then, and open another.
        """

    def close(self) -> None:
        """Let go of the device. Nothing can be read afterwards."""


class TurnLog(Protocol):
    """Every turn on one GPU, for a trace. `samples_busy` says whether there are samples of the GPU's utilisation, too.
    Methods raise RunlistError or OSError when the log has failed.
    """

    samples_busy: bool

    def read(self) -> Reading:
        """What happened since the last call, or since the log was opened."""

    def unswitched(self) -> Residency | None:
        """Who had the GPU from the log's opening until the last reading, without a switch and so without a record,
        where that can be told; its context is 0. To be asked after the last `read` and `busy`.
        """

    def busy(self) -> list[tuple[int, int]]:
        """Samples of how busy the GPU was since the last call: when each ended (CLOCK_REALTIME, ns), and percent."""

    def close(self) -> None:
        """Let go of it."""
