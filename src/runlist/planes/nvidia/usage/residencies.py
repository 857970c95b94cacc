"""From the switch log's records to residencies: who held the GPU, and when."""

from __future__ import annotations

from runlist.model import Usage
from runlist.planes.nvidia.switch_log import END, START, Batch, Record
from runlist.planes.usage import Reading, Residency
from runlist.protocol.rm_autogen import KERNEL_PID

_NS = 1e-9
_BACK_NS, _AHEAD_NS = 1_000_000_000, 100_000_000
"""A log whose clock goes back by more than the first, or ahead of the time that passed by more than the second, was
set; less is the clocks' disagreement. To take that for a clock set back would tell a time twice.
"""
_new = tuple.__new__  # a NamedTuple's own takes three times as long


class Residencies:
    """Follows the log of one GPU. One context holds the GPU at a time.

    No time is told twice, and none is invented. An end without a start counts only at the log's beginning: its context
    held the GPU since then. A start without an end ends at the next start. Where more than one record is missing, the
    time in between is nobody's.
    """

    def __init__(self, since_ns: int) -> None:
        self._told_ns = since_ns  # all time before this has been told
        self._holder: tuple[int, int] | None = None  # pid and context
        self._since_ns = since_ns  # since when the holder's time has not been told
        self._blank = True  # no record yet: someone may have held the GPU all along

    @property
    def blank(self) -> bool:
        """Whether no record has come, nor one been lost: whoever has the GPU has it since before the beginning."""
        return self._blank

    def feed(self, batch: Batch) -> Reading:
        """The reading of a batch, with the open residency's part up to now."""
        if batch.until_ns < self._told_ns - _BACK_NS:
            self._told_ns = self._since_ns = batch.until_ns
        latest = max(batch.until_ns, batch.records[-1][4] if batch.records else 0)
        if batch.passed_ns is not None and latest - self._told_ns > batch.passed_ns + _AHEAD_NS:
            self._told_ns = self._since_ns = latest - batch.passed_ns  # nobody held the GPU for what was left out
        parts: list[Residency] = []
        turns: dict[int, int] = {}
        began: dict[tuple[int, int], float] = {}
        records, first, dropped = batch.records, 0, 0
        for index, missing in batch.gaps:
            self._follow(records[first:index], parts, turns, began)
            if missing > 1:  # with one, the holder can only have ended; the next record tells when
                self._holder = None
            self._blank = False
            first, dropped = index, dropped + missing
        self._follow(records[first:] if first else records, parts, turns, began)
        until = max(latest, self._told_ns)
        if self._holder is not None and until > (start := max(self._since_ns, self._told_ns)):
            parts.append(Residency(*self._holder, start, until))
        self._since_ns = self._told_ns = until
        held: dict[int, int] = dict.fromkeys(turns, 0)
        for pid, _, start, end in parts:
            held[pid] = held.get(pid, 0) + end - start
        usage = {pid: Usage(ns * _NS, turns.get(pid, 0)) for pid, ns in held.items()}
        return Reading(until * _NS, usage, parts, began, dropped)

    def _follow(
        self,
        records: list[Record],
        parts: list[Residency],
        turns: dict[int, int],
        began: dict[tuple[int, int], float],
    ) -> None:
        holder, since, told, blank = self._holder, self._since_ns, self._told_ns, self._blank  # thousands pass here
        for tag, _, context, logged_pid, at in records:
            starts = tag == START
            if not starts and tag != END:
                continue
            who = (0 if logged_pid == KERNEL_PID else logged_pid, context)
            if blank and not starts:
                holder = who
            if holder is not None and (starts or holder == who):
                start = since if since > told else told  # noqa: FURB136 (a call of `max` takes longer)
                if at > start:
                    parts.append(_new(Residency, (*holder, start, at)))
                    told = at
            if starts:
                holder, since = who, at
                turns[who[0]] = turns.get(who[0], 0) + 1
                began[who] = at * _NS
            else:
                holder = None
            blank = False
        self._holder, self._since_ns, self._told_ns, self._blank = holder, since, told, blank
