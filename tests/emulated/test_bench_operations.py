"""What is measured of the scheduler of operations, and shown of it, on an emulated GPU of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from bench.harness import library
from runlist import operations_log
from tests.fixtures.trace import Parsed

pytestmark = pytest.mark.timeout(170)

CLIENTS = """
import ctypes, sys, threading, time
from pathlib import Path
from runlist import operations_log
from runlist.workloads.accumulator import Accumulator
from runlist.workloads.gpu import Gpu

library = ctypes.CDLL(None)
assert library.rl_operations_start(2) == 0

def work(client):
    assert library.rl_operations_client(client) == 0
    with Gpu(0) as gpu:
        made = Accumulator(gpu, blocks=4)
        for _ in range(20):
            made.launch(50)
        right[client] = made.correct()

right = {}
with Gpu(0), operations_log.writing(Path(sys.argv[1])):  # one context all along
    threads = [threading.Thread(target=work, args=(client,)) for client in (0, 1)]
    for one in threads: one.start()
    for one in threads: one.join()
    until = time.monotonic() + 20
    while sum(line.count("accumulate_lcg") for line in Path(sys.argv[1]).open()) < 40:  # they were seen to be done
        assert time.monotonic() < until
        time.sleep(0.02)
assert right == {0: True, 1: True}
"""


def command(environment: Mapping[str, str], *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """A Python command, to its end."""
    return subprocess.run(
        [sys.executable, *words], env={**environment, **more}, capture_output=True, text=True, timeout=150, check=False
    )


def test_the_benchmark_measures_the_queue_and_both_routes(environment: dict[str, str], tmp_path: Path) -> None:
    words = ("-m", "bench", "operations", "--device", "emulated", "--commit", "none", "--out", str(tmp_path))
    done = command(environment, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.iterdir()
    figures = {one["name"]: one for one in json.loads(path.read_text())["figures"]}
    assert figures["all operations ran, and once"]["met"]
    assert figures["launch into the queue: all of it"]["value"] > 0
    assert {one["unit"] for name, one in figures.items() if name.endswith("added")} == {"ns"}


def test_operations_of_both_clients_are_beside_each_other_in_a_trace(
    environment: dict[str, str], tmp_path: Path
) -> None:
    log, out = tmp_path / "operations", tmp_path / "both.pftrace"
    done = command(environment, "-c", CLIENTS, str(log), **library.operations())
    assert done.returncode == 0, done.stdout + done.stderr
    found = operations_log.read(log)
    by_client = {client: [one for one in found.operations if one.client == client] for client in (0, 1)}
    for mine in by_client.values():
        kernels = [one for one in mine if one.name == "accumulate_lcg"]
        assert len(kernels) == 20
        assert [one for one in kernels if not 0 < one.called_ns <= one.launched_ns <= one.done_ns] == []
        assert [one.launched_ns for one in kernels] == sorted(one.launched_ns for one in kernels)
    words = ("-m", "runlist.cli", "trace", "--out", str(out), "--seconds", "0.1", "--operations", str(log))
    done = command(environment, *words)
    assert done.returncode == 0, done.stderr
    assert f"{len(found.operations)} operations" in done.stdout
    parsed = Parsed(out.read_bytes())
    for track in ("client 0, high priority", "client 1, best effort"):
        assert sum(name.startswith("accumulate_lcg") for name, _, _ in parsed.slices[track]) == 20
