"""The latency of a short kernel against a saturating batch job, by configuration: the table that the emulated GPU is
calibrated to, measured on whatever device is there.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.figures import AT_MOST, Figure, spread
from runlist.client import Client
from runlist.workloads.process import WorkloadProcess

WINDOW_S = 3.0
TOLERANCE = 0.25


@dataclass(frozen=True)
class Row:
    """One configuration: settings of either program, and the p50 measured on an H200 with driver 580.159.04, in µs."""

    name: str
    h200_p50_us: float
    latency: Mapping[str, str] = field(default_factory=dict)
    batch: Mapping[str, str] = field(default_factory=dict)
    program: tuple[str, ...] = ()
    alone: bool = False


_ONE_SECOND = {"timeslice": "1000000"}
_ONE_MICROSECOND = {"timeslice": "1"}

ROWS = (
    Row("LC alone", 94, alone=True),
    Row("default time slicing", 1_497),
    Row("BE slice 200 µs, LC 1 s", 389, _ONE_SECOND, {"timeslice": "200"}),
    Row("BE slice 10 µs", 279, _ONE_SECOND, {"timeslice": "10"}),
    Row("BE slice 1 µs", 273, _ONE_SECOND, _ONE_MICROSECOND),
    Row("same, BE in CTA preemption mode", 255, _ONE_SECOND, {**_ONE_MICROSECOND, "preemption": "cta"}),
    Row("default slices, LC interleave HIGH", 1_491, {"interleave": "high"}),
    Row("LC MAKE_REALTIME", 4_066, {"realtime": "on"}),
    Row("BE slice 1 µs + hint 200 µs ahead", 78, _ONE_SECOND, _ONE_MICROSECOND, ("--hint-us", "200")),
    Row("hint 100 µs ahead", 156, _ONE_SECOND, _ONE_MICROSECOND, ("--hint-us", "100")),
)
"""From the project's first measurements; rows under MPS and with two streams of one process are not modelled."""


def measure(rows: tuple[Row, ...] = ROWS) -> list[Figure]:
    """Each row's p50 against the H200's, as a relative difference."""
    figures = []
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(Client.open(start=True))
        # The slices are set by hand here, so the batch job must be able to keep the default: class normal.
        plain = stack.enter_context(WorkloadProcess("latency", "--closed"))
        batch = stack.enter_context(WorkloadProcess("batch"))
        for row in rows:
            with contextlib.ExitStack() as row_stack:
                critical = plain
                if row.program:
                    critical = row_stack.enter_context(
                        WorkloadProcess("latency", "--closed", "--rounds", str(plain.ready["rounds"]), *row.program)
                    )
                latencies = _window(client, critical, None if row.alone else batch, row)
            samples = spread(latencies)
            off = abs(samples["p50"] / row.h200_p50_us - 1)
            figures.append(
                Figure(
                    f"{row.name}: p50 off the H200's {row.h200_p50_us:g} µs", off, AT_MOST, TOLERANCE, details=samples
                )
            )
    return figures


def _window(client: Client, critical: WorkloadProcess, batch: WorkloadProcess | None, row: Row) -> list[float]:
    pairs = [(critical, row.latency)] + ([(batch, row.batch)] if batch else [])
    for process, settings in pairs:
        client.attach(process.pid, "normal")
        # Two normal tasks keep the driver's slices unless a row says otherwise.
        client.set(process.pid, {"timeslice": "auto", **settings})
        process.run()
    time.sleep(0.2)
    latencies: list[float] = critical.measure(WINDOW_S)["latency_us"]
    for process, _ in pairs:
        process.pause()
        client.detach(process.pid)
    return latencies
