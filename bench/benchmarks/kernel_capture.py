"""What the kernel plane captures of 10,000 channel groups that 64 processes make while they fork and are killed, and
what it costs each of their requests, and each system call of others.

The requests are true ioctls on a file that answers anything (bench/harness/ioctl_file.py), on any machine.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from bench.harness.benchmark import Needs
from bench.harness.captured import Captured, of_file
from bench.harness.compiled import built, readings, run
from bench.harness.figures import AT_LEAST, AT_MOST, Figure, spread
from bench.harness.group_makers import make_groups
from bench.harness.ioctl_file import ioctl_file
from runlist.errors import NotSupportedError
from runlist.planes.kernel import rights
from runlist.proc.process import capable
from runlist.protocol.kernel_autogen import Counter

NEEDS = Needs(programs=("cc",))
GROUPS, PROCESSES = 10_000, 64
BATCHES, ROUNDS = 400, 7


def measure(groups: int = GROUPS, processes: int = PROCESSES, rounds: int = ROUNDS) -> list[Figure]:
    """Groups first, then costs with and without the programs, in turn."""
    if os.geteuid() != 0 or not capable(rights.BPF):
        raise NotSupportedError("kernel_capture needs root with CAP_BPF")
    with tempfile.TemporaryDirectory() as folder, ioctl_file(Path(folder) / "answers") as path:
        with Captured(budget=1 << 30, capture=of_file(path)) as kernel:
            outcome = make_groups(path, kernel.take, processes=processes, groups=groups)
            dropped = kernel.counter(Counter.DROPPED)
        costs = _costs(path, rounds)
    figures = [
        Figure(
            f"channel groups captured of {outcome.made}", outcome.captured, AT_LEAST, outcome.made, "",
            {"dropped": dropped, "children": outcome.processes, "killed": outcome.killed, "seconds": outcome.seconds},
        ),
        Figure("of these with the right process and user", outcome.attributed, AT_LEAST, outcome.made),
    ]  # fmt: skip
    for name, runs in costs.items():
        added = [one - other for one, other in zip(runs["with"], runs["without"], strict=True)]
        target: tuple[str, float | None] = (AT_MOST, 300.0) if name != "a captured allocation" else ("", None)
        figures.append(Figure(f"the programs add to {name}", median(added), *target, "ns", {**runs, **spread(added)}))
    return figures


def _costs(path: Path, rounds: int) -> Mapping[str, Mapping[str, list[float]]]:
    """Nanoseconds of each kind of call, by round, with the programs and without."""
    found: dict[str, dict[str, list[float]]] = {}

    def once(program: Path, setup: str) -> None:
        for name, (ns,) in readings(run([program, path, str(BATCHES)], {})).items():
            found.setdefault(name, {}).setdefault(setup, []).append(ns)

    with built("ioctls") as program:
        for _ in range(rounds):
            once(program, "without")
            with Captured(budget=1 << 30, capture=of_file(path)) as kernel:
                once(program, "with")
                kernel.take()
    return found
