"""The latency of a short kernel against a saturating batch job, by configuration: the table that the emulated GPU is
calibrated to, measured on whatever device is there.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

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
    """One configuration: what is set on either program, and the p50 on an H200 with driver 580.159.04, in µs."""

    name: str
    h200_p50_us: float
    latency: tuple[_Setting, ...] = ()
    batch: tuple[_Setting, ...] = ()
    options: tuple[str, ...] = ()
    alone: bool = False
    mps: Mapping[str, str] | None = None  # variables of the batch job under MPS


_LONG, _SHORT = (_slice(1_000_000),), (_slice(1),)
_EVERY_4_MS = ("--period-ms", "4")

ROWS = (
    Row("LC alone", 94, alone=True),
    Row("default time slicing", 1_497),
    Row("BE slice 200 µs, LC 1 s", 389, _LONG, (_slice(200),)),
    Row("BE slice 10 µs", 279, _LONG, (_slice(10),)),
    Row("BE slice 1 µs", 273, _LONG, _SHORT),
    Row("default slices, LC interleave HIGH", 1_491, (_control("interleave", "high"),)),
    Row("BE slice 1 µs + hint 200 µs ahead", 78, _LONG, _SHORT, ("--hint-us", "200")),
    Row("hint 100 µs ahead", 156, _LONG, _SHORT, ("--hint-us", "100")),
    Row("MPS", 9_863, options=_EVERY_4_MS, mps={}),
    Row("MPS, client priority", 2_541, options=_EVERY_4_MS, mps={"CUDA_MPS_CLIENT_PRIORITY": "1"}),
    Row("LC MAKE_REALTIME", 4_066, (_control("realtime", "on"),)),
)
"""From the project's first measurements. The rows under MPS are for the emulated GPU: a real one needs NVIDIA's MPS
server, which is not ours to start. CTA preemption is not here: its figure hangs on the phase of the batch job's blocks.
"""


def measure(rows: tuple[Row, ...] = ROWS) -> list[Figure]:
    """Each row's p50 against the H200's, as a relative difference."""
    figures = []
    emulated = choose_driver().name == "emulated"
    with contextlib.ExitStack() as stack:
        plain = stack.enter_context(WorkloadProcess("latency", "--closed"))
        batch = stack.enter_context(WorkloadProcess("batch"))
        for row in rows:
            if row.mps is not None and not emulated:
                continue
            with contextlib.ExitStack() as row_stack:
                critical, background = plain, batch
                if row.options or row.mps is not None:
                    critical = row_stack.enter_context(_again(plain, row.mps is not None, {}, "--closed", *row.options))
                if row.mps is not None:
                    background = row_stack.enter_context(_again(batch, True, row.mps))
                samples = spread(_window(critical, None if row.alone else background, row, row_stack))
            off = abs(samples["p50"] / row.h200_p50_us - 1)
            name = f"{row.name}: p50 off the H200's {row.h200_p50_us:g} µs"
            figures.append(Figure(name, off, AT_MOST, TOLERANCE, details=samples))
    return figures


def _again(like: WorkloadProcess, mps: bool, variables: Mapping[str, str], *options: str) -> WorkloadProcess:
    """Another process of the same workload and size, under MPS if need be."""
    environment = {**os.environ, **variables}
    if mps:
        environment["CUDA_MPS_PIPE_DIRECTORY"] = "/nonexistent"  # the emulated GPU has no server, only its effect
    return WorkloadProcess(like.name, "--rounds", str(like.ready["rounds"]), *options, environment=environment)


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
