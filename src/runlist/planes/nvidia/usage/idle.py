"""The idle part of a lone holder's time.

A context that nobody competes with stays on the GPU when it has no work. The driver's samples of the whole GPU's
utilisation show such idle time, where there was only one holder.

An answer with samples takes 1.5 to 3 ms of a processor on an H200, which was most of what an idle daemon took there;
the newest sample alone takes 0.05. So of a holder that had no work for a whole answer, and while nobody reads often,
that one is asked for instead: it is presumed to have had none since. Samples come every 3 s all the same, and what
they do not confirm is taken from the idle time that is told next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from runlist.planes.usage import Residency

FULL_PERCENT = 95
"""Utilisation that counts as no idle time: a job that leaves no gap is sampled at 95 or 96."""

_LONE_NS = 300_000_000  # at least one whole sample lies in a stretch of this length
_ASK_NS, _QUIET_ASK_NS = 1_000_000_000, 3_000_000_000
_CALM_NS = 900_000_000  # who reads no more often has nobody who waits for it
_QUIET_NS = 800_000_000  # without work, as samples tell
_KEPT_NS = 5_000_000_000  # samples are far younger than this
_USUAL_SAMPLE_NS = 200_000_000
_CLOCK_STEP_NS = 1_000_000_000  # going back by more than this it was set back


class Sample(NamedTuple):
    """Utilisation of a GPU in percent, over the time from the sample before to `end_ns` (CLOCK_REALTIME)."""

    end_ns: int
    percent: int


class _Stretch(msgspec.Struct):
    """A time in which only `pid` held the GPU, and the parts of it in which it did."""

    pid: int
    start_ns: int
    end_ns: int
    parts: list[tuple[int, int]] = []

    def held_ns(self, start: int, end: int) -> int:
        return sum(max(0, min(end, stop) - max(start, begin)) for begin, stop in self.parts)


class IdleTime:
    """Compares the residencies of one GPU with samples of its utilisation."""

    def __init__(self) -> None:
        self._stretches: deque[_Stretch] = deque()
        self._sampled_ns = 0
        self._asked_ns = 0
        self._until_ns = 0
        self._calm = False
        self._tells = True  # the newest sample is told
        self._quiet: _Stretch | None = None  # in which there was no work lately
        self._presumed: _Stretch | None = None
        self._presumed_ns = (0, 0)  # from when until when
        self._debts: dict[int, int] = {}  # by pid: idle time that was told and was none

    @property
    def sampled_ns(self) -> int:
        """End of the last sample that was used."""
        return self._sampled_ns

    def note(self, residencies: Sequence[Residency], until_ns: int) -> None:
        """Note who held the GPU, up to `until_ns`."""
        if until_ns < self._until_ns - _CLOCK_STEP_NS:
            self._stretches.clear()
            self._quiet = self._presumed = None
            self._sampled_ns, self._asked_ns = until_ns - _KEPT_NS, until_ns - _ASK_NS
        self._calm = until_ns - self._until_ns >= _CALM_NS
        self._until_ns = until_ns
        last = self._stretches[-1] if self._stretches else None
        if last is not None and residencies and residencies[-1].start_ns - last.start_ns < _LONE_NS:
            residencies = self._last_of(residencies, last)
        for pid, _, start, end in residencies:
            if last is None or last.pid != pid:
                last = self._begin(pid, start, last)
            parts = last.parts
            if parts and parts[-1][1] == start:
                parts[-1] = (parts[-1][0], end)
            else:
                parts.append((start, end))
        if last is not None:
            last.end_ns = max(last.end_ns, until_ns)
        self._forget(max(self._sampled_ns, until_ns - _KEPT_NS))

    def wants_samples(self, until_ns: int) -> bool:
        """Whether samples could tell something now. Asking costs: a yes counts as asked."""
        if until_ns - self._asked_ns < (_QUIET_ASK_NS if self.may_presume else _ASK_NS):
            return False
        for one in self._stretches:
            if one.end_ns - max(one.start_ns, self._sampled_ns) >= _LONE_NS:
                self._asked_ns = until_ns
                return True
        return False

    @property
    def may_presume(self) -> bool:
        """Whether the newest sample tells enough for now."""
        return self._calm and self._tells and self._quiet is not None and self._quiet is self._stretches[-1]

    def presume(self, percent: int | None) -> dict[int, float]:
        """Idle seconds by pid until now, by the newest sample alone. Where it shows work, samples are wanted next, and
        from then on where there is none.
        """
        last = self._stretches[-1]
        if percent != 0:
            self._tells, self._quiet, self._asked_ns = percent is not None, None, 0
            return {}
        since, until = self._presumed_ns if self._presumed is last else (self._sampled_ns, 0)
        start = max(until, self._sampled_ns, last.start_ns)
        self._presumed, self._presumed_ns = last, (since, self._until_ns)
        return self._told({last.pid: last.held_ns(start, self._until_ns)})

    def compare(self, samples: Iterable[Sample]) -> dict[int, float]:
        """Idle seconds by pid, from the samples after `sampled_ns`, in order. No time counts twice."""
        idle: dict[int, int] = {}
        quiet_ns = 0
        for end, percent in samples:
            if end <= self._sampled_ns:
                continue
            if not self._stretches or end > self._stretches[-1].end_ns:
                break  # of a time that we know nothing about yet
            # The first sample after a pause does not go back to the one before.
            start = self._sampled_ns if end - self._sampled_ns < 2 * _USUAL_SAMPLE_NS else end - _USUAL_SAMPLE_NS
            self._sampled_ns = end
            if (told := self._presumed_between(start, end)) and self._presumed is not None:
                idle[self._presumed.pid] = idle.get(self._presumed.pid, 0) - told
            lone = next((one for one in self._stretches if one.start_ns <= start and end <= one.end_ns), None)
            quiet_ns = 0 if percent or lone is not self._stretches[-1] else quiet_ns + end - start
            if lone is None:
                continue
            busy = min(1.0, percent / FULL_PERCENT) * (end - start)
            if (spare := lone.held_ns(start, end) - busy) > 0:
                idle[lone.pid] = idle.get(lone.pid, 0) + round(spare)
        self._quiet = self._stretches[-1] if quiet_ns >= _QUIET_NS else None
        return self._told(idle)

    def _presumed_between(self, start: int, end: int) -> int:
        since, until = self._presumed_ns
        if self._presumed is None or end <= since or start >= until:
            return 0
        return self._presumed.held_ns(max(start, since), min(end, until))

    def _told(self, idle: dict[int, int]) -> dict[int, float]:
        """What is told of it, which is never less than nothing."""
        told: dict[int, float] = {}
        for pid, found in idle.items():
            left = found - self._debts.pop(pid, 0)
            if left > 0:
                told[pid] = left * 1e-9
            elif left < 0:
                self._debts[pid] = -left
        return told

    @staticmethod
    def _last_of(residencies: Sequence[Residency], last: _Stretch) -> Sequence[Residency]:
        """Those of the last holder, where nobody before was alone for long: the stretch is that one's then."""
        pid, first = residencies[-1].pid, len(residencies) - 1
        while first and residencies[first - 1].pid == pid:
            first -= 1
        if first:
            last.pid, last.start_ns = pid, residencies[first - 1].end_ns
            last.parts.clear()
            return residencies[first:]
        return residencies

    def _begin(self, pid: int, start: int, last: _Stretch | None) -> _Stretch:
        """End the last stretch and begin a new one; a stretch too short to matter is used again."""
        since = last.parts[-1][1] if last is not None and last.parts else start
        if last is None or start - last.start_ns >= _LONE_NS:
            if last is not None:
                last.end_ns = start
            last = _Stretch(pid, since, start)
            self._stretches.append(last)
        else:
            last.pid, last.start_ns, last.end_ns = pid, since, start
            last.parts.clear()
        return last

    def _forget(self, before_ns: int) -> None:
        while len(self._stretches) > 1 and self._stretches[0].end_ns <= before_ns:
            self._stretches.popleft()
        if self._stretches:
            parts = self._stretches[0].parts
            if not parts or parts[0][1] > before_ns:
                return
            old = next((index for index, part in enumerate(parts) if part[1] > before_ns), len(parts) - 1)
            del parts[: max(0, old)]
