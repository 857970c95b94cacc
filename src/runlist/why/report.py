"""What is told of the slow requests of a process: a table, and the same as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from runlist.statistics import percentile
from runlist.text import counted
from runlist.why import culprit
from runlist.why.parts import Part, Parting, Parts
from runlist.why.requests import calls, requests
from runlist.why.seen import Seen
from runlist.why.threads import Thread, threads
from runlist.why.under_way import Call, Request

SLOW_PERCENTILE = 95.0


@dataclass(frozen=True)
class Row:
    """A slow request: when it began, in seconds since the recording did and by CLOCK_MONOTONIC, how long it was, its
    parts in ms, and why.
    """

    at_s: float
    began_ns: int
    ms: float
    launches: int
    parts_ms: dict[str, float]
    culprit: str
    why: str


@dataclass(frozen=True)
class Report:
    """All that is told. Lengths are in ms; `requests` were seen whole. Those `going_on` had no end yet when the
    recording ended, and were slow by then.
    """

    pid: int
    seconds: float
    requests: int
    p50_ms: float | None
    p95_ms: float | None
    slower_than_ms: float | None
    dropped: int
    slow: list[Row] = field(default_factory=list)
    going_on: list[Row] = field(default_factory=list)


@dataclass(frozen=True)
class Analysis:
    """The report, and what a trace has of it: the requests that were seen whole, the calls, and the threads."""

    report: Report
    requests: Sequence[Request]
    calls: Sequence[Call]
    threads: Mapping[int, Thread]


def analyse(seen: Seen, slower_than_ns: int | None = None, pause_ns: int | None = None) -> Analysis:
    """From what was seen to what is told."""
    by_thread = threads(seen)
    made = calls(seen.events, seen.end_ns)
    begun = requests(seen, made, by_thread, pause_ns)
    found = [request for request in begun if not request.goes_on]
    parting = Parting(seen, begun, by_thread)
    lengths = sorted(request.length_ns for request in found)
    bound = slower_than_ns
    if bound is None and lengths:
        bound = round(percentile(lengths, SLOW_PERCENTILE))
    slow = [each for each in found if bound is not None and _is_slow(each, bound, slower_than_ns)]
    usual = culprit.Usual(found, {each.start_ns for each in slow}, parting)
    going_on = [each for each in begun if each.goes_on and each.length_ns > (bound or 0)]
    return Analysis(
        Report(
            seen.pid,
            (seen.end_ns - seen.start_ns) / 1e9,
            len(found),
            percentile(lengths, 50.0) / 1e6 if lengths else None,
            percentile(lengths, SLOW_PERCENTILE) / 1e6 if lengths else None,
            bound / 1e6 if bound is not None else None,
            seen.dropped,
            [_row(seen, parting.of(each), usual.beside(each)) for each in slow],
            [_row(seen, parting.of(each), usual.beside(each)) for each in going_on],
        ),
        found,
        made,
        by_thread,
    )


def _is_slow(each: Request, bound: int, given: int | None) -> bool:
    """Above the bound; where there are so few that none is above the 95th percentile, the longest."""
    return each.length_ns > bound if given is not None else each.length_ns >= bound


def _row(seen: Seen, each: Parts, usually: Mapping[Part, float]) -> Row:
    blamed = culprit.blamed(each, usually)
    return Row(
        (each.request.start_ns - seen.start_ns) / 1e9,
        each.request.start_ns,
        each.request.length_ns / 1e6,
        each.request.launches,
        {part.value: each.of(part) / 1e6 for part in Part if each.of(part)},
        blamed[0].value,
        "; ".join(culprit.words(seen, each, part, usually) for part in blamed),
    )


_COLUMNS: tuple[tuple[str, tuple[Part, ...]], ...] = (
    ("host", (Part.HOST,)),
    ("core", (Part.CORE, Part.THROTTLED)),
    ("files", (Part.FILES,)),
    ("irq", (Part.INTERRUPTS,)),
    ("asleep", (Part.ASLEEP,)),
    ("memory", (Part.MEMORY,)),
    ("held", (Part.HELD,)),
    ("queue", (Part.QUEUE,)),
    ("behind", (Part.BEHIND,)),
    ("switch", (Part.SWITCHES,)),
    ("GPU", (Part.GPU,)),
    ("unseen", (Part.UNKNOWN,)),
)
_WIDTH = 8


def lines(report: Report, name: str) -> list[str]:
    """The table: times are in ms."""
    return [
        *_finished(report, name),
        *(f"one that began at {row.at_s:.3f} s went on, after {row.ms:.2f} ms: {row.why}" for row in report.going_on),
    ]


def _finished(report: Report, name: str) -> list[str]:
    if not report.requests:
        return [f"{name}: no request was seen from its beginning to its end in {report.seconds:.1f} s"]
    bound = report.slower_than_ms or 0.0
    head = (
        f"{name}: {counted(report.requests, 'request')} in {report.seconds:.1f} s, p50 {report.p50_ms:.2f} ms, "
        f"p95 {report.p95_ms:.2f} ms; {len(report.slow)} of {bound:.2f} ms or more"
    )
    if not report.slow:
        return [head]
    columns = "".join(f"{title:>{_WIDTH}}" for title in ("at s", "ms", *(title for title, _ in _COLUMNS)))
    rows = []
    for row in report.slow:
        cells = [f"{row.at_s:.3f}", f"{row.ms:.2f}"]
        for _, of in _COLUMNS:
            value = sum(row.parts_ms.get(part.value, 0.0) for part in of)
            cells.append(f"{value:.2f}" if value else "-")
        rows.append("".join(f"{cell:>{_WIDTH}}" for cell in cells) + f"  {row.why}")
    return [head, columns + "  why", *rows]
