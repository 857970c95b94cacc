"""Kinds of pairs that nobody named, in the simulator: by default sharing, by each way to give way, and as is chosen."""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from os import sched_getaffinity

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.harness.figures import AT_MOST, Figure
from bench.harness.simulated_pairs import (
    AUTO,
    BACKGROUNDS,
    PROGRAMS,
    WAYS,
    Row,
    better,
    compare,
    worse_on_both_sides,
)
from runlist.workloads.options import positive, positive_int

SECONDS, SEEDS = 6.0, 2
MOST_CHANGES = 4
"""Of the way in a run: to the way that fits, and a look at another."""


def add_options(parser: argparse._ArgumentGroup) -> None:
    """For how long, and how often."""
    add = parser.add_argument
    add("--pair-seconds", type=positive, default=SECONDS, metavar="S", help=f"length of a simulated run ({SECONDS:g})")
    add("--pair-seeds", type=positive_int, default=SEEDS, metavar="N", help=f"simulated runs of each pair ({SEEDS})")


def measure(options: argparse.Namespace) -> list[Figure]:
    """Each program beside each background, by each way."""
    seeds = range(1, options.pair_seeds + 1)
    with ProcessPoolExecutor(len(sched_getaffinity(0))) as pool:
        run = partial(_compare, seconds=options.pair_seconds, seeds=seeds)
        pairs = list(pool.map(run, product(PROGRAMS, BACKGROUNDS)))
    Console(width=120).print(_table(pairs))
    rows = [msgspec.to_builtins(row) for pair in pairs for row in pair.values()]
    worse = [pair for pair in pairs if worse_on_both_sides(pair)]
    passed = {_name(pair): ways for pair in pairs if (ways := better(pair))}
    return [
        Figure("simulated pairs worse than default time slicing on both sides", len(worse), AT_MOST, 0,
               details={"pairs": list(map(_name, worse)), "rows": rows}),
        Figure("simulated pairs for which a way by name is much better on one side and no worse on the other",
               len(passed), AT_MOST, 0, details=passed),
        Figure("simulated pairs: changes of the way, at most", max(pair[AUTO].changes for pair in pairs), AT_MOST,
               MOST_CHANGES),
    ]  # fmt: skip


def _compare(pair: tuple[str, str], seconds: float, seeds: range) -> dict[str, Row]:
    return compare(*pair, list(WAYS), seconds, seeds)


def _name(pair: dict[str, Row]) -> str:
    return f"{pair[AUTO].program}+{pair[AUTO].background}"


def _table(pairs: list[dict[str, Row]]) -> Table:
    table = Table(box=SIMPLE_HEAD, caption="p50 and p99 over those alone; the background's work over that of one alone")
    for heading in ("pair", "way", "p50", "p99", "batch", "unanswered", "changes"):
        table.add_column(heading, justify="left" if heading in ("pair", "way") else "right")
    for pair in pairs:
        for way, row in pair.items():
            name = _name(pair) if way == next(iter(pair)) else ""
            figures = (f"{row.p50:,.2f}", f"{row.p99:,.2f}", f"{row.batch:.3f}")
            table.add_row(name, way, *figures, f"{row.unanswered:.0f}", f"{row.changes:.1f}")
    return table
