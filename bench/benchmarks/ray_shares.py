"""Shares of Ray's actors by `num_gpus`, in a script that knows nothing of Runlist, by the GPU's own log; and whether a
part of the GPU is a part of its memory.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

from bench.harness import jobs
from bench.harness.benchmark import Needs
from bench.harness.child import Child, python
from bench.harness.figures import AT_MOST, Figure, holds, rounded
from bench.harness.gpu_log import GpuLog, as_details, points, worst_points
from runlist.integrations.gpu_sizes import gpu_sizes
from runlist.planes.registry import choose_plane
from runlist.protocol import environment_autogen as names

NEEDS = Needs(modules=("ray",))

PARTS = ((0.25, 0.25, 0.25, 0.25), (0.75, 0.25))
SECONDS = 10.0
SETTLE_S = 2.0
START_S = 180.0
KEPT = {"RAY_RUNTIME_ENV_HOOK": "runlist.ray.extended", names.RAY: "memory"}
"""What is in the script's environment, and all that tells Ray of Runlist."""


def measure(seconds: float = SECONDS) -> list[Figure]:
    """Each set of parts for so many seconds, from the moment that all actors work, with Runlist and then without."""
    figures = []
    with contextlib.ExitStack() as stack:
        jobs.scheduler(stack)
        log = stack.enter_context(GpuLog())
        alone = _run(log, {}, seconds)
        kept = _run(log, KEPT, seconds)
        for parts in PARTS:
            name = " + ".join(f"{part:g}" for part in parts) if len(set(parts)) > 1 else f"{len(parts)} × {parts[0]:g}"
            run = kept["spans"][parts]
            wanted = [part / sum(parts) for part in parts]
            details = {**run["details"], "records lost": log.dropped, "Ray alone": alone["spans"][parts]["details"]}
            figures += [
                Figure(f"Ray, num_gpus {name}: share of GPU time over {seconds:g} s off by",
                       points(run["shares"], wanted), AT_MOST, 1, "points", details),
                Figure(f"Ray, num_gpus {name}: worst 1 s window off by",
                       worst_points(run["windows"], run["pids"], wanted), AT_MOST, 5, "points"),
            ]  # fmt: skip
    memory = kept["memory"]
    return [
        *figures,
        holds("Ray, num_gpus 0.25: more than a quarter of the memory is refused, and less is not",
              memory["less"] and not memory["more"], {**memory, "Ray alone": alone["memory"]}),
        holds("Ray: all results are bit-exact", kept["correct"] and alone["correct"]),
    ]  # fmt: skip


def _run(log: GpuLog, variables: dict[str, str], seconds: float) -> dict[str, Any]:
    """The script from its start to its end, with these variables."""
    size = min(gpu_sizes(choose_plane()).values())
    environment = {**os.environ, **variables, "BENCH_GPU_BYTES": str(size)}
    spans, correct = {}, True
    with Child(python("bench.programs.ray_script"), environment) as script:
        memory = script.ask_json("take 0.25", START_S)
        for parts in PARTS:
            pids = script.ask_json(f"start {' '.join(map(str, parts))}", START_S)["pids"]
            log.watch(SETTLE_S)
            span = log.watch(seconds)
            correct &= bool(script.ask_json("stop", START_S)["correct"])
            windows = span.windows()
            shares = span.shares(pids)
            spans[parts] = {
                "pids": pids,
                "shares": shares,
                "windows": windows,
                "details": {"GPU time": rounded(shares), "GPU time by second": as_details(windows, pids)},
            }
    return {"spans": spans, "memory": memory, "correct": correct}
