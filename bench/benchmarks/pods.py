"""Four pods whose annotations ask for 10, 20, 30 and 40 % of a GPU: what they get, and how soon it is in force.

The agent and the daemon are real, and so are the cgroups; a stand-in for the container runtime names the pods.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.harness import daemon, jobs, pods
from bench.harness.benchmark import Needs
from bench.harness.figures import AT_MOST, Figure, rounded
from bench.harness.gpu_log import GpuLog, points
from bench.programs.cri_server import identifier
from runlist.client import Client
from runlist.integrations.node.cgroups import mount

NEEDS = Needs(modules=("grpc", "google.protobuf"))

PERCENT = (10, 20, 30, 40)
SECONDS, ROUNDS = 10.0, 3
SETTLE_S = 2.0
PATIENCE_S = 20.0


def measure(seconds: float = SECONDS, rounds: int = ROUNDS) -> list[Figure]:
    """Processes are at work on the GPU when each comes into its pod's cgroup. Raises RuntimeError where there can be
    none.
    """
    top = mount() / "kubepods" / f"bench-{os.getpid()}"
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rl-")))
        stack.enter_context(daemon.started(folder, "runlist.daemon"))
        try:
            stack.enter_context(pods.cgroups(top))
        except OSError as error:
            raise RuntimeError(f"no cgroup can be made: {error.strerror}") from None
        runtime = stack.enter_context(pods.runtime(folder / "cri.sock"))
        stack.enter_context(pods.agent(folder))
        client, log = stack.enter_context(Client.open()), stack.enter_context(GpuLog())
        batches = jobs.batch_jobs(stack, len(PERCENT))
        with jobs.working(batches):
            took = []
            for process, percent in zip(batches, PERCENT, strict=True):
                name = f"pod-{percent}"
                pods.tell(runtime, name, f"gpu-fraction={percent / 100}")
                container = top / name / identifier(f"{name} main")
                container.mkdir(parents=True)
                stack.callback(_leave, process.pid)
                began = time.perf_counter()
                (container / "cgroup.procs").write_text(str(process.pid))
                _until(partial(_is_labelled, client, process.pid, name))
                took.append(time.perf_counter() - began)
            time.sleep(SETTLE_S)
            spans = [jobs.measured(batches, lambda: log.watch(seconds))[1] for _ in range(rounds)]
        wanted = [percent / 100 for percent in PERCENT]
        shares = [span.shares([process.pid for process in batches]) for span in spans]
        correct = jobs.all_correct(batches)
    worst = max(points(each, wanted) for each in shares)
    details = {"seconds": seconds, "shares": [rounded(each) for each in shares], "times_s": took, "correct": correct}
    return [
        Figure("four pods of 10, 20, 30 and 40 %: off by", worst, AT_MOST, 1, "points", details),
        Figure("first look at a pod's process to its settings in force, longest", max(took), AT_MOST, 1, "s"),
    ]


def _is_labelled(client: Client, pid: int, name: str) -> bool:
    return any(task.pid == pid and task.labels.get("pod", "") == name for task in client.ps())


def _leave(pid: int) -> None:
    with contextlib.suppress(OSError):
        (mount() / "cgroup.procs").write_text(str(pid))


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError("a pod's settings are not in force")
        time.sleep(0.005)
