"""The service target of `service` in the simulator: as many runs as it takes to tell chance from the policy."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from os import sched_getaffinity

from bench.harness.figures import AT_LEAST, AT_MOST, Figure
from bench.harness.service_load import (
    FIXED_CAPS,
    KEPT,
    LOADS,
    STEP_S,
    Run,
    simulated,
    simulated_target_us,
)
from runlist.statistics import percentile

TARGET_SEEDS = range(1_000, 1_010)


def add_options(parser: argparse.ArgumentParser) -> None:
    """How many runs."""
    parser.add_argument("--service-seeds", type=int, default=40, metavar="N", help="runs of the simulated service (40)")


def measure(options: argparse.Namespace) -> list[Figure]:
    """Runs with the target, the same arrivals alone, and with each fixed cap."""
    seeds = range(options.service_seeds)
    target_us = simulated_target_us(TARGET_SEEDS)
    with ProcessPoolExecutor(len(sched_getaffinity(0))) as pool:
        with_target = list(pool.map(partial(simulated, target_us=target_us), seeds))
        alone = list(pool.map(partial(simulated, alone=True, policy="none"), seeds))
        fixed = {cap: list(pool.map(partial(simulated, cap=cap), seeds)) for cap in FIXED_CAPS}
    keeping = [cap for cap in FIXED_CAPS if _kept(fixed[cap], target_us) >= KEPT]
    best = keeping[0] if keeping else FIXED_CAPS[-1]
    details = {
        "runs": len(seeds),
        "target, µs": round(target_us, 1),
        "windows kept": round(_kept(with_target, target_us), 4),
        "windows kept alone": round(_kept(alone, target_us), 4),
        "runs with all windows kept": round(_whole(with_target, target_us), 4),
        "runs with all windows kept alone": round(_whole(alone, target_us), 4),
        "lost by load, not lost alone": _lost(with_target, alone, target_us),
        "kept by run, p0 p10 p50": [
            round(percentile(sorted(run.kept(target_us) for run in with_target), percent), 4) for percent in (0, 10, 50)
        ],
        "BE, kernels/s": round(_rate(with_target), 2),
        "with fixed caps": {
            f"{cap} %": {"kept": round(_kept(runs, target_us), 4), "BE, kernels/s": round(_rate(runs), 2)}
            for cap, runs in fixed.items()
        },
        "best fixed": f"{best} %" if keeping else f"none keeps it; compared with {best} %",
    }
    name = f"simulated service target, load {LOADS[0]:.0%} to {LOADS[-1]:.0%}"
    lost = _kept(alone, target_us) - _kept(with_target, target_us)
    return [
        Figure(f"{name}: 1 s windows in which it is kept", _kept(with_target, target_us), details=details),
        Figure(f"{name}: 1 s windows lost that alone are kept", max(0.0, lost), AT_MOST, round(1 - KEPT, 4)),
        Figure(f"{name}: BE / with the best fixed cap", _rate(with_target) / _rate(fixed[best]), AT_LEAST, 0.9),
    ]


def _kept(runs: Sequence[Run], target_us: float) -> float:
    return sum(run.kept(target_us) for run in runs) / len(runs)


def _whole(runs: Sequence[Run], target_us: float) -> float:
    return sum(run.kept(target_us) == 1 for run in runs) / len(runs)


def _rate(runs: Sequence[Run]) -> float:
    return sum(run.batch_rate for run in runs) / len(runs)


def _lost(runs: Sequence[Run], alone: Sequence[Run], target_us: float) -> dict[str, float]:
    """Part of the windows at each load that were lost, although the same requests alone keep the target."""
    lost = {}
    for at, load in enumerate(LOADS):
        pairs = [
            pair
            for run, same in zip(runs, alone, strict=True)
            for pair in list(zip(run.p99_us, same.p99_us, strict=True))[at * STEP_S : (at + 1) * STEP_S]
        ]
        lost[f"{load:.0%}"] = round(sum(here > target_us >= there for here, there in pairs) / len(pairs), 4)
    return lost
