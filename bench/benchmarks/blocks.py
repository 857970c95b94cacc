"""Kernels that stop between blocks (`runlist.blocks`): what taking logical blocks costs while nobody stops them, how
long a stop takes with blocks of 50 µs, from the same process and from another, and that the results stay right.

Needs NVRTC or nvcc beside the GPU.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench import ROOT
from bench.harness.benchmark import Needs
from bench.harness.figures import AT_MOST, Figure, holds, rounded, spread
from runlist.blocks import BLPExecutor, Page, Stopper
from runlist.blocks.device import Device, Function, Memory
from runlist.blocks.page import SIZE
from runlist.blocks.page import STOPS as STOPS_AT
from runlist.blocks.source import resumable
from runlist.statistics import percentile

NEEDS = Needs(device="nvidia")
SOURCE = ROOT / "bench" / "programs" / "blocks.cu"
STOPPER = "bench.programs.blocks_stopper"

BLOCK_US = 50.0
THREADS, WIDE = 256, 1024
WAVES = 200
"""Logical blocks for each that the GPU has room for at once: 10 ms of them."""

TURNS = 12
STOPS = 2_000
OVERHEAD_TARGET, STOP_TARGET_US = 0.03, 120.0
_PAGES = Path("/dev/shm")  # noqa: S108 (a folder of our own is made in it)
_FOREVER_S = 300.0


@dataclass(frozen=True)
class Work:
    """The kernel `work` over a grid, plain and resumable, each with a state of its own."""

    device: Device
    threads: int
    shared: int
    plain: Function
    stoppable: Function
    room: int
    rounds: int
    states: tuple[Memory, Memory]

    @property
    def grid(self) -> int:
        return WAVES * self.room

    def run_plain(self, grid: int | None = None, rounds: int | None = None) -> float:
        """Seconds that it takes."""
        began = time.perf_counter()
        arguments = (self.states[0], self.rounds if rounds is None else rounds)
        self.device.launch(self.plain, (grid or self.grid, 1, 1), (self.threads, 1, 1), arguments, self.shared)
        self.device.synchronize()
        return time.perf_counter() - began

    def add_to(self, executor: BLPExecutor) -> None:
        executor.add(self.stoppable, self.grid, self.threads, (self.states[1], self.rounds), shared=self.shared)

    def right(self) -> bool:
        """Whether both states are equal, after as many runs of either."""
        return self.device.read(self.states[0]) == self.device.read(self.states[1])


def measure(device: Device | None = None, turns: int = TURNS, stops: int = STOPS) -> list[Figure]:
    """On a GPU; tests give another device."""
    if device is None:
        from runlist.blocks.driver import Cuda

        device = Cuda()
    text = SOURCE.read_text()
    plain = device.compile(text, SOURCE.name).function("work")
    stoppable = device.compile(resumable(text, label=SOURCE.name), SOURCE.name).function("work")
    full = made(device, plain, stoppable, THREADS, 0)
    one = made(device, plain, stoppable, WIDE, 120 << 10)  # so much shared memory that an SM has room for one block
    return [
        overhead(full, "SMs full of blocks", turns, OVERHEAD_TARGET),
        overhead(one, "one block an SM", turns, None),
        *stopped_here(full, stops),
        *stopped_elsewhere(full, stops),
    ]


def made(device: Device, plain: Function, stoppable: Function, threads: int, shared: int) -> Work:
    """With as many rounds as take a block BLOCK_US while all others run."""
    room = device.fitting(stoppable, (threads, 1, 1), shared)
    size = 4 * threads * room * WAVES
    states = (device.allocate(size), device.allocate(size))
    first = Work(device, threads, shared, plain, stoppable, room, 1, states)
    few, more = 1_000, 9_000
    first.run_plain(10 * room, few)
    times = [min(first.run_plain(10 * room, rounds) for _ in range(5)) for rounds in (few, more)]
    each_us = max(1e-6, (times[1] - times[0]) * 1e6 / 10 / (more - few))
    device.write(states[0], bytes(size))
    return Work(device, threads, shared, plain, stoppable, room, max(1, round(BLOCK_US / each_us)), states)


def overhead(work: Work, how: str, turns: int, target: float | None) -> Figure:
    """What the resumable kernel takes longer than the plain one, in turns; the median of the pairs. Both are timed from
    the launch until the stream is idle; what an executor does besides is told in the details.
    """
    device, page = work.device, Page()
    stops = device.share(page.address, SIZE) + STOPS_AT
    words = device.allocate(16)
    ratios, lengths, runs_us = [], [], []
    for turn in range(turns + 1):
        plain = work.run_plain()
        device.write(words, bytes(16))
        began = time.perf_counter()
        arguments = (work.states[1], work.rounds, words.address + 8, words, stops, work.grid, 1, 1)
        device.launch(work.stoppable, (work.room, 1, 1), (work.threads, 1, 1), arguments, work.shared)
        device.synchronize()
        took = time.perf_counter() - began
        if turn:  # the first loads code
            ratios.append(took / plain - 1)
            lengths.append(plain * 1e6 / WAVES)
    device.unshare(page.address)
    with BLPExecutor(device) as executor:
        work.add_to(executor)
        for _ in range(turns):
            plain = work.run_plain()
            began = time.perf_counter()
            executor.run()
            runs_us.append((time.perf_counter() - began - plain) * 1e6)
    details = {
        "of each pair": rounded(ratios),
        "µs of a block": rounded(lengths, 1),
        "µs that a run by an executor takes longer": rounded(runs_us, 1),
        "rounds": work.rounds,
    }
    if not work.right():
        raise RuntimeError(f"{how}: the resumable kernel's result differs from the plain one's")
    return Figure(f"overhead unstopped, {how}", median(ratios), AT_MOST if target else "", target, "", details)


def stopped_here(work: Work, stops: int) -> list[Figure]:
    """Stops by the process itself, from asking until the stream is idle."""
    pauses = random.Random(3)  # noqa: S311 (no secret)
    took: list[float] = []
    runs = 0
    with BLPExecutor(work.device) as executor, Stopper(executor.page) as stopper:
        work.add_to(executor)
        executor.start()
        while len(took) < stops:
            time.sleep(pauses.uniform(0.0002, 0.002))
            began = time.perf_counter()
            stopper.stop()
            work.device.synchronize()
            ended = time.perf_counter()
            finished = executor.wait()
            stopper.resume()
            if finished:
                runs += 1
                executor.start()
            else:
                took.append((ended - began) * 1e6)
                executor.resume()
        executor.wait()
    return _figures("by the same process", took, _right_after(work, runs + 1))


def stopped_elsewhere(work: Work, stops: int) -> list[Figure]:
    """Stops by another process, from asking until this one has said that its kernels left the GPU."""
    runs = 0
    folder = tempfile.TemporaryDirectory(prefix="runlist-bench-", dir=_PAGES if _PAGES.is_dir() else None)
    with folder as where, BLPExecutor(work.device, Path(where) / "page") as executor:
        work.add_to(executor)
        words = [sys.executable, "-m", STOPPER, str(executor.page.path), str(stops)]
        child = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        said: list[tuple[str, str]] = []
        listener = threading.Thread(target=lambda: said.append(child.communicate(timeout=_FOREVER_S)))
        listener.start()
        try:
            while listener.is_alive():
                executor.run()
                runs += 1
        finally:
            child.kill()
            listener.join()
    if child.returncode or not said:
        raise RuntimeError(f"who stops from another process: {(said or [('', 'no answer')])[0][1].strip()[-200:]}")
    return _figures("by another process", json.loads(said[0][0]), _right_after(work, runs))


def _right_after(work: Work, runs: int) -> bool:
    for _ in range(runs):
        work.run_plain()
    return work.right()


def _figures(by: str, took_us: list[float], right: bool) -> list[Figure]:
    ordered = sorted(took_us)
    details = {**spread(took_us), "p99.9": round(percentile(ordered, 99.9), 4)}
    return [
        Figure(f"stop {by}, p99 of {len(ordered)}", percentile(ordered, 99), AT_MOST, STOP_TARGET_US, "µs", details),
        holds(f"results after stops {by} are bit-exact", right),
    ]
