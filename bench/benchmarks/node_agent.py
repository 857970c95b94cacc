"""What `runlist node` costs on a node with two hundred pods, and how soon a new pod's settings are written.

Once with cgroups to watch, where this user may make some, and once without, when it asks the runtime twice a second.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.harness import pods as pods_of
from bench.harness.benchmark import Needs
from bench.harness.cpu import Used, resident_mb
from bench.harness.figures import AT_MOST, Figure
from bench.programs.cri_server import identifier
from runlist.integrations.node.cgroups import mount

NEEDS = Needs(modules=("grpc", "google.protobuf"))
PATIENCE_S = 30.0


def measure(pods: int = 200, seconds: float = 30.0, new: int = 10) -> list[Figure]:
    """CPU time and resident memory of the agent, and times until files are there."""
    figures = []
    if os.access(mount(), os.W_OK):
        figures += _measured("cgroups watched", pods, seconds, new, cgroups=True)
    return figures + _measured("runtime polled", pods, seconds, new, cgroups=False)


def _measured(how: str, pods: int, seconds: float, new: int, *, cgroups: bool) -> list[Figure]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rl-")))
        top = mount() / "kubepods" / f"bench-{os.getpid()}"
        if cgroups:
            stack.enter_context(pods_of.cgroups(top))
            for number in range(pods):
                pods_of.make(top, f"pod-{number}")
        server = stack.enter_context(pods_of.runtime(folder / "cri.sock", pods))
        pid = stack.enter_context(pods_of.agent(folder))
        rules = folder / "rules.d"
        _until(lambda: len(list(rules.glob("kubernetes-*.toml"))) == 2 * pods)
        time.sleep(3)  # what came with the start is over
        used = Used([pid])
        time.sleep(seconds)
        share = used.share()
        took = []
        for number in range(new):
            name = f"new-{number}"
            file = rules / f"kubernetes-{identifier(f'{name} main')}.toml"
            pods_of.tell(server, name)
            began = time.perf_counter()
            if cgroups:
                pods_of.make(top, name)
            _until(file.exists)
            took.append(time.perf_counter() - began)
            time.sleep(0.37)
        about = {"pods": pods, "seconds": seconds, "times_s": took}
        return [
            Figure(f"node agent, {pods} pods, {how}: CPU", share * 100, AT_MOST, 1, "% of a core", about),
            Figure(f"node agent, {pods} pods, {how}: memory", resident_mb(pid), AT_MOST, 80, "MB"),
            Figure(f"node agent, {how}: new pod to its rule, longest of {new}", max(took), AT_MOST, 1, "s"),
        ]


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError("the agent wrote nothing")
        time.sleep(0.005)
