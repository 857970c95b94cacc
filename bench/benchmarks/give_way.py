"""How long after the first launch of a request the background is off, beyond what the control itself takes: by the
actuator, and by the daemon's own loop.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path

from bench.harness import daemon
from bench.harness.figures import AT_MOST, Figure, spread
from runlist.client import Client
from runlist.workloads.process import WorkloadProcess

WAYS = {"actuator": 0.2, "loop": None}
"""And the most that it may add, in ms."""
ROUNDS = 2
LATE_S = 0.008
"""What begins later than that was not sent for this launch."""

Span = tuple[float, float]


def measure(requests: int = 300) -> list[Figure]:
    """The two take turns."""
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for _ in range(ROUNDS):
        for way in WAYS:
            found[way] += _run(way, requests)
    figures = []
    for way, target in WAYS.items():
        if not found[way]:
            raise RuntimeError(f"nothing was suspended for a launch ({way})")
        beyond, control = (spread([pair[part] * 1e3 for pair in found[way]]) for part in (0, 1))
        details = {"beyond the control, ms": beyond, "the control, ms": control, "launches": ROUNDS * requests}
        name = f"launch to background off, beyond the control, by the {way}"
        aim: tuple[str, float | None] = ("", None) if target is None else (AT_MOST, target)
        figures.append(Figure(f"{name}: p99", beyond["p99"], *aim, "ms", details))
        figures.append(Figure(f"{name}: p50", beyond["p50"], unit="ms"))
    return figures


def matched(launches: Sequence[float], controls: Sequence[Span]) -> list[tuple[float, float]]:
    """For each launch with a control that was sent for it, the first one behind it: the time from launch to its end
    without its own, and its own, in seconds.
    """
    ordered = sorted(controls)
    begins = [began for began, _ in ordered]
    pairs = []
    for launch in launches:
        at = bisect_left(begins, launch)
        if at < len(ordered) and begins[at] - launch <= LATE_S:
            pairs.append((begins[at] - launch, ordered[at][1] - begins[at]))
    return pairs


def _run(way: str, requests: int) -> list[tuple[float, float]]:
    with tempfile.TemporaryDirectory(prefix="rl-") as path:
        stamps = Path(path) / "stamps"
        with (
            daemon.started(Path(path), "bench.programs.stamped_daemon", str(stamps), way),
            WorkloadProcess("batch") as batch,
            Client.open() as client,
        ):
            client.use_policy("priority", {"give_way": "request"})
            batch.run()
            client.attach(batch.pid, "batch")
            words = [sys.executable, "-m", "runlist.cli", "run", "--class", "latency", "--"]
            program = [sys.executable, "-m", "bench.programs.requests", str(requests)]
            said = subprocess.run([*words, *program], stdout=subprocess.PIPE, text=True, check=True).stdout
        controls = [tuple(map(float, line.split())) for line in stamps.read_text().splitlines()]
    return matched([float(word) for word in said.split()], [(began, ended) for began, ended in controls])
