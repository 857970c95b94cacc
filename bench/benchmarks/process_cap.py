"""The compute cap in the process, set by hand and with no daemon: how near the rate comes to the share asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.harness import jobs, library, peers
from bench.harness.figures import AT_MOST, Figure, holds, rounded
from runlist.planes.nvidia.rm.transport import choose_driver
from runlist.workloads.process import WorkloadError, WorkloadProcess

WINDOW_S, WINDOWS = 2.5, 4
ALONE_S, SETTLE_S = 1.5, 0.5
TARGET_POINTS = 2.0
LONG_MS, GRAPH_MS, SHORT_MS = 5.0, 1.0, 0.02
COPIES = ("--copies", "1024")


@dataclass(frozen=True)
class Job:
    """A program, and the caps that it is tried with, in percent; `kernel_ms` is a kernel's length, where it has such.

    What it queues before it waits takes tens of milliseconds: the GPU has nothing to do in a wait, so no cap is charged
    for it, which would show as a share that is too high.
    """

    workload: str
    words: tuple[str, ...]
    caps: tuple[int, ...]
    kernel_ms: float | None = None


def _jobs() -> dict[str, Job]:
    return {
        "kernels of 5 ms": Job("timed", ("--kernels", "16"), (10, 30, 50), LONG_MS),
        "CUDA graphs": Job("batch", ("--graph",), (10, 30, 50), GRAPH_MS),
        "kernels of 20 µs": Job("timed", ("--kernels", "2000"), (30,), SHORT_MS),
        "copies": Job("copies", COPIES, (30,)),
    }


def measure() -> list[Figure]:
    """Each job without the library, and then with each cap; the share is the rate with it over that without."""
    rounds_per_ms = _rounds_per_ms()
    seen: dict[str, Any] = {}
    figures: list[Figure] = []
    correct = True
    emulated = choose_driver().name == "emulated"
    for name, job in _jobs().items():
        if emulated and job.workload == "copies":
            seen[name] = {"missing": "the emulated GPU's host takes many times as long to copy as its GPU"}
            continue
        words = [*job.words]
        if job.kernel_ms is not None:
            words += ["--rounds", str(max(1, round(job.kernel_ms * rounds_per_ms)))]
        try:
            alone = _rates(job.workload, words, library.without(), [ALONE_S])
        except WorkloadError as error:
            seen[name] = {"missing": str(error)}
            continue
        correct = correct and alone.correct
        for cap in job.caps:
            capped = _rates(job.workload, words, library.environment(RUNLIST_CAP=cap), [WINDOW_S] * WINDOWS)
            correct = correct and capped.correct
            share = capped.mean / alone.mean * 100
            by_window = rounded([rate / alone.mean * 100 for rate in capped.rates], 2)
            seen[f"{name}, cap {cap} %"] = {"share": round(share, 3), f"by {WINDOW_S:g} s": by_window}
            what = f"cap in the process {cap} %, {name}: share over {WINDOW_S * WINDOWS:g} s off by"
            figures.append(Figure(what, abs(share - cap), AT_MOST, TARGET_POINTS, "points"))
        seen[f"{name}, no library, a second"] = round(alone.mean, 2)
    details = {"runs": seen, "HAMi-core": peers.HAMI_CORE}
    return [*figures, holds("cap in the process: all results are bit-exact", correct, details)]


@dataclass(frozen=True)
class Rates:
    """Kernels or copies a second, by window, and whether the results were right."""

    rates: Sequence[float]
    correct: bool

    @property
    def mean(self) -> float:
        """Of all windows, which are equally long."""
        return sum(self.rates) / len(self.rates)


def _rates(workload: str, words: Sequence[str], environment: Mapping[str, str], windows: Sequence[float]) -> Rates:
    with WorkloadProcess(workload, *words, environment=environment) as process:
        with jobs.working([process]):
            jobs.wait(SETTLE_S)
            rates = [jobs.rate(process.measure(seconds)) for seconds in windows]
        return Rates(rates, bool(process.quit()["correct"]))


def _rounds_per_ms() -> float:
    """Rounds of a kernel that fills the GPU for a millisecond; measured without the library."""
    length_ms = 5.0
    with WorkloadProcess("batch", "--kernel-ms", str(length_ms), environment=library.without()) as one:
        return float(one.ready["rounds"]) / length_ms
