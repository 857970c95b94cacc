"""A daemon goes on with the version that it was started with, also where another is installed over it meanwhile: it has
loaded before what it needs later.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from runlist.emulated import EmulatedGpu
from tests.fixtures.daemon import PATIENCE_S, wait_for

FreshGpu = Callable[..., EmulatedGpu]

KEEPER = """
import sys
from runlist.daemon.undo import keeper
keeper.Keeper.serve = lambda self: print(*sys.modules)
keeper.main()
"""


def loaded(log: Path, behind: str = "") -> list[str]:
    """The modules of planes, and of NVML, that were imported behind a line of the log."""
    lines = log.read_text().rpartition(behind)[2].splitlines() if behind else log.read_text().splitlines()
    names = [line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")]
    return [name for name in names if name.startswith(("runlist.planes.", "pynvml"))]


def test_an_idle_daemon_has_what_the_first_tenant_will_take(fresh_gpu: FreshGpu, tmp_path: Path) -> None:
    environment = {**os.environ, **fresh_gpu().environment()}
    environment.pop("RUNLIST_SOCKET", None)

    def runlist(*words: str) -> str:
        command = [sys.executable, "-m", "runlist.cli", *words]
        return subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True, timeout=PATIENCE_S
        ).stdout

    log = tmp_path / "log"
    command = [sys.executable, "-X", "importtime", "-m", "runlist.daemon"]
    with log.open("a") as file:
        daemon = subprocess.Popen(command, env=environment, stderr=file)
    try:
        wait_for(lambda: "runlist.planes.nvidia.usage.residencies" in loaded(log), "loading ahead")
        with log.open("a") as file:
            file.write("idle until here\n")
        worker = [sys.executable, "-m", "runlist.workloads.batch", "--seconds", "1"]
        assert '"correct": true' in runlist("run", "--memory", "1G", "--cap", "50", "--", *worker)
        assert "switch log" in runlist("ps", "--gpus")
    finally:
        daemon.terminate()
        assert daemon.wait(PATIENCE_S) == 0
    assert loaded(log, "idle until here\n") == []


def test_a_keeper_has_what_undoing_takes() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        done = subprocess.run(
            [sys.executable, "-c", KEEPER],
            env={**os.environ, "RUNLIST_DEVICE": "nvidia"},
            stdin=theirs, capture_output=True, text=True, timeout=PATIENCE_S,
        )  # fmt: skip
    assert "runlist.planes.nvidia.undo" in done.stdout.split(), done.stderr
