"""What the library adds to the start of a process: one at a time, and many that start together."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import runlist
from bench.harness import library, peers
from bench.harness.benchmark import Needs
from bench.harness.compiled import built
from bench.harness.costs import taking_turns
from bench.harness.figures import AT_MOST, Figure, p99, rounded, spread
from runlist.planes.nvidia.rm.transport import choose_driver

NEEDS = Needs(programs=("cc",))
ROUNDS = {"nvidia": 20, "emulated": 5}
TOGETHER = {"nvidia": 64, "emulated": 16}
_LOADED_S = 0.7
_PATIENCE_S = 120.0


class Times(NamedTuple):
    """What one process prints, in milliseconds; `programs/start.c` says of what."""

    main: float
    loaded: float
    context: float
    constructor: float
    door: float

    @property
    def own(self) -> float:
        """The library's own, before main and in requests to the driver; 0 without it."""
        return self.constructor + self.door


Runs = Sequence[Times]


def measure() -> list[Figure]:
    """Fresh processes in turn; then a group with the library, which shares one region, and one without.

    Of a group that starts together each process waits for the others in the driver, for seconds: there the library's
    own time can be seen, but not what it makes of the whole.
    """
    device = choose_driver().name
    many = TOGETHER[device]
    with built("start", "behind") as program, tempfile.TemporaryDirectory(prefix="runlist-bench-") as folder:
        preloads = f"{runlist.library()}:{program.with_name('behind.so')}"
        limited = library.environment(RUNLIST_MEMORY=library.AMPLE, LD_PRELOAD=preloads)
        region = {"CUDA_DEVICE_MEMORY_SHARED_CACHE": str(Path(folder) / "region")}
        single = {library.WITHOUT: library.without(), library.LIMITED: limited}
        shared = {library.WITHOUT: library.without(), library.LIMITED: {**limited, **region}}
        one = joined(taking_turns(single, ROUNDS[device], lambda env: started(program, 1, env)))
        all_ = joined(taking_turns(shared, 1, lambda env: started(program, many, env)))
    details = {
        "one, ms": {setup: columns(runs) for setup, runs in one.items()},
        f"{many} together, ms": {
            setup: {what: spread(column) for what, column in columns(runs).items()} for setup, runs in all_.items()
        },
        "HAMi-core": peers.HAMI_CORE,
    }
    context = {setup: columns(runs)["context"] for setup, runs in all_.items()}
    return [
        Figure("process start, the library itself, median", median(each.own for each in one[library.LIMITED]),
               AT_MOST, 5, "ms", details),
        Figure("process start, cuInit to first context: added, median", added(one, "context"), AT_MOST, 5, "ms"),
        Figure("process start, exec to main: added, median", added(one, "main"), unit="ms"),
        Figure("process start, loading the driver's library: added, median", added(one, "loaded"), unit="ms"),
        Figure(f"{many} starting together, the library itself, p99", p99([each.own for each in all_[library.LIMITED]]),
               AT_MOST, 10, "ms"),
        Figure(f"{many} starting together, cuInit to first context: added, p99",
               p99(context[library.LIMITED]) - p99(context[library.WITHOUT]), unit="ms"),
    ]  # fmt: skip


def started(program: Path, count: int, environment: Mapping[str, str]) -> Runs:
    """Start so many, and let all begin at the same time once they are loaded."""
    held, gate = os.pipe()
    processes = []
    try:
        for _ in range(count):
            words = [str(program), str(time.monotonic_ns())]
            pipe = subprocess.PIPE
            processes.append(subprocess.Popen(words, stdin=held, stdout=pipe, stderr=pipe, env=dict(environment)))
        if count > 1:
            time.sleep(_LOADED_S)
    finally:
        os.close(held)
        os.close(gate)
    until = time.monotonic() + _PATIENCE_S
    try:
        return [_times(process, until) for process in processes]
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{program.name} did not end in {_PATIENCE_S:g} s") from None
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _times(process: subprocess.Popen[bytes], until: float) -> Times:
    said, errors = process.communicate(timeout=max(0.0, until - time.monotonic()))
    if process.returncode:
        why = errors.decode(errors="replace").strip().splitlines() or [f"exit code {process.returncode}"]
        raise RuntimeError(f"a process that was started: {why[-1]}")
    return Times(*map(float, said.split()))


def joined(rounds: Mapping[str, Sequence[Runs]]) -> dict[str, Runs]:
    """The processes of all rounds, by environment."""
    return {setup: [times for runs in each for times in runs] for setup, each in rounds.items()}


def columns(runs: Runs) -> dict[str, list[float]]:
    """The times of all processes, by what they are of."""
    return {what: rounded(column, 3) for what, column in zip(Times._fields, zip(*runs, strict=True), strict=True)}


def added(runs: Mapping[str, Runs], what: str) -> float:
    """By how much the median with the library is above that without."""
    return median(columns(runs[library.LIMITED])[what]) - median(columns(runs[library.WITHOUT])[what])
