"""The latency of a short kernel against a saturating batch job, by configuration: on an emulated GPU beside what is
kept of an H200.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.harness import mps, results
from bench.harness.contexts import contexts_of, put_back
from bench.harness.figures import AT_MOST, Figure, spread
from runlist.planes.nvidia.context import GpuContext
from runlist.planes.nvidia.rm.transport import choose_driver
from runlist.workloads.process import WorkloadProcess

WINDOW_S = 3.0
TOLERANCE = 0.25

_Setting = Callable[[GpuContext], None]


def _slice(microseconds: int) -> _Setting:
    return lambda context: context.set_timeslice(microseconds)


def _control(name: str, word: str) -> _Setting:
    return lambda context: context.set_control(name, word)


@dataclass(frozen=True)
class Row:
    """One configuration: what is set on either program."""

    name: str
    latency: tuple[_Setting, ...] = ()
    batch: tuple[_Setting, ...] = ()
    options: tuple[str, ...] = ()
    alone: bool = False
    mps: Mapping[str, str] | None = None  # variables of the batch job under MPS


_LONG, _SHORT = (_slice(1_000_000),), (_slice(1),)
_EVERY_4_MS = ("--period-ms", "4")

ROWS = (
    Row("LC alone", alone=True),
    Row("default time slicing"),
    Row("BE slice 200 µs, LC 1 s", _LONG, (_slice(200),)),
    Row("BE slice 10 µs", _LONG, (_slice(10),)),
    Row("BE slice 1 µs", _LONG, _SHORT),
    Row("default slices, LC interleave HIGH", (_control("interleave", "high"),)),
    Row("BE slice 1 µs + hint 200 µs ahead", _LONG, _SHORT, ("--hint-us", "200")),
    Row("hint 100 µs ahead", _LONG, _SHORT, ("--hint-us", "100")),
    Row("MPS", options=_EVERY_4_MS, mps={}),
    Row("MPS, client priority", options=_EVERY_4_MS, mps={"CUDA_MPS_CLIENT_PRIORITY": "1"}),
    Row("LC MAKE_REALTIME", (_control("realtime", "on"),)),
)
"""CTA preemption is not here: its figure depends on the phase of the batch job's blocks."""


def measure(rows: tuple[Row, ...] = ROWS) -> list[Figure]:
    """Each row's p50; on an emulated GPU as a relative difference to the H200's, where one is kept."""
    figures = []
    emulated = choose_driver().name == "emulated"
    kept = results.load()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(mps.server())
        plain = stack.enter_context(WorkloadProcess("latency", "--closed"))
        batch = stack.enter_context(WorkloadProcess("batch"))
        for row in rows:
            if row.mps is not None and server.missing:
                continue
            with contextlib.ExitStack() as row_stack:
                critical, background = plain, batch
                if row.options or row.mps is not None:
                    shared = None if row.mps is None else server.client()
                    critical = row_stack.enter_context(_again(plain, shared, "--closed", *row.options))
                if row.mps is not None:
                    background = row_stack.enter_context(_again(batch, {**server.client(), **row.mps}))
                samples = spread(_window(critical, None if row.alone else background, row, row_stack))
            reference = h200_p50_us(kept, row.name) if emulated else None
            if reference is None:
                figures.append(Figure(f"{row.name}: p50", samples["p50"], unit="µs", details=samples))
            else:
                off = abs(samples["p50"] / reference - 1)
                details = {**samples, "H200, p50": reference}
                figures.append(Figure(f"{row.name}: p50 off the H200's", off, AT_MOST, TOLERANCE, details=details))
    return figures


def h200_p50_us(kept: Sequence[results.Kept], row: str) -> float | None:
    """The median of the p50s of a row on H200s, in µs, or None when no file has it."""
    found = [float(figure.details["p50"]) for one in kept if one.gpu == "H200" for figure in one.of("latency_table")
             if row_of(figure.name) == row]  # fmt: skip
    return statistics.median(found) if found else None


def row_of(figure: str) -> str:
    """The row that a figure is of. Older files name their reference in it."""
    return figure.partition(": p50")[0]


def _again(like: WorkloadProcess, environment: Mapping[str, str] | None, *options: str) -> WorkloadProcess:
    """Another process of the same workload and size, in this environment or ours."""
    rounds = str(like.ready["rounds"])
    return WorkloadProcess(like.name, "--rounds", rounds, *options, environment=environment)


def _window(
    critical: WorkloadProcess, batch: WorkloadProcess | None, row: Row, stack: contextlib.ExitStack
) -> list[float]:
    working = [(critical, row.latency)] + ([(batch, row.batch)] if batch else [])
    contexts = [(context, settings) for process, settings in working for context in contexts_of(process.pid, stack)]
    for process, _ in working:
        process.run()
    try:
        for context, settings in contexts:
            for setting in settings:
                setting(context)
        time.sleep(0.2)
        latencies: list[float] = critical.measure(WINDOW_S)["latency_us"]
    finally:
        for context, _ in contexts:
            put_back(context)
            # MAKE_REALTIME leaves the others at block boundaries until their own mode is set again.
            context.set_control("preemption", None)
        for process, _ in working:
            process.pause()
    return latencies
