"""Many processes that race at one memory limit: whether they are ever over it together."""

from __future__ import annotations

import contextlib
import time

from bench.harness import library, peers
from bench.harness.benchmark import Needs
from bench.harness.compiled import built
from bench.harness.figures import AT_MOST, MIB, Figure
from bench.harness.ledger import Ledger
from bench.harness.memory_watch import MemoryWatch, largest
from bench.harness.racers import Racers, exit_codes
from runlist.planes.nvidia import nvml
from runlist.planes.nvidia.rm.transport import choose_driver

NEEDS = Needs(programs=("cc",))
PROCESSES = {"nvidia": 64, "emulated": 12}
SECONDS = 8.0
ROOM, LARGEST_MIB = 12 << 30, 512
"""Bytes that the limit leaves beside the contexts, and the largest allocation."""


def measure() -> list[Figure]:
    """All make their contexts, then race for what these leave of the limit. Three look: the programs, whose count
    misses no moment; NVML, sum over the processes; and the region that they share.
    """
    driver = choose_driver()
    indices = range(PROCESSES[driver.name])
    with contextlib.ExitStack() as stack:
        stack.enter_context(nvml.session(driver))
        program = stack.enter_context(built("race"))
        folder, region, environment = stack.enter_context(library.shared_region())
        ledger = stack.enter_context(Ledger(folder / "ledger"))
        racers = Racers(program, ledger, LARGEST_MIB, environment)
        with racers.running(indices) as running:
            watch = MemoryWatch([racer.pid for racer in running], region)
            watch.check()
            contexts = watch.processes()
            limit = contexts + ROOM
            region.set_memory(limit)
            with watch.watching():
                ledger.go()
                time.sleep(SECONDS)
                ledger.stop()
                codes = exit_codes(running)
        counts = [ledger.counts(index) for index in indices]
        counted = contexts + ledger.largest
    seen = {name: largest(samples) for name, samples in watch.samples.items()}
    details = {
        "limit, MiB": limit / MIB,
        "contexts, MiB": contexts / MIB,
        "largest sum counted by the programs, MiB": counted / MIB,
        "largest sum seen, MiB": {name: value / MIB for name, value in seen.items()},
        "looks": {name: len(samples) for name, samples in watch.samples.items()},
        "allocations, each process": [each.taken for each in counts],
        "refusals, each process": [each.refused for each in counts],
        "kernels": sum(each.launches for each in counts),
        "exit codes other than 0": [code for code in codes if code != 0],
        "HAMi-core": peers.HAMI_CORE,
    }
    name = f"{len(indices)} processes racing at the limit"
    wrong = sum(each.unexpected for each in counts) + sum(code != 0 for code in codes)
    return [
        Figure(f"{name}: overshoot, by the programs' own count", over(limit, counted), AT_MOST, 0, "bytes", details),
        Figure(f"{name}: overshoot, by NVML", over(limit, seen["NVML"]), AT_MOST, 0, "bytes"),
        Figure(f"{name}: overshoot, by the region", over(limit, seen["region"]), AT_MOST, 0, "bytes"),
        Figure(f"{name}: nearest to the limit", max(counted, seen["NVML"]) / limit * 100, unit="% of it"),
        Figure(f"{name}: calls with another result than done or out of memory", wrong, AT_MOST, 0),
    ]


def over(limit: int, held: int) -> int:
    """Bytes above the limit."""
    return max(0, held - limit)
