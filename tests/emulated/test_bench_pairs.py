"""The benchmark `pairs` as a whole, on an emulated GPU of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import ROOT
from bench.harness.mps import Mps
from bench.harness.pair_programs import PROGRAMS, Program, configurations, pairs
from bench.harness.pair_run import PairRun
from runlist.emulated import EmulatedGpu
from runlist.workloads.process import WorkloadError


def test_pairs_are_measured_in_every_configuration(fresh_gpu: Callable[..., EmulatedGpu], tmp_path: Path) -> None:
    environment = {**os.environ, **fresh_gpu().environment(), "PYTHONPATH": str(ROOT)}
    words = ["--pairs", "token-loop+matmul*2,graph+matmul", "--rounds", "1", "--seconds", "0.5", "--commit", "none"]
    words += ["--picture", str(tmp_path / "pairs.png"), "--out", str(tmp_path / "results"), "--device", "emulated"]
    command = [sys.executable, "-m", "bench", "pairs", *words]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (tmp_path / "results").iterdir()
    figures = json.loads(path.read_text())["figures"]
    pair = next(figure["details"] for figure in figures if figure["name"].startswith("token-loop+matmul*2: "))
    assert [row["configuration"] for row in pair["configurations"]] == ["alone", "default", "mps", "runlist"]
    assert pair["left out"] == {}
    for row in pair["configurations"]:
        assert row["requests/s"] > 0
        assert all(rate > 0 for each in row["batch, a second, by round"] for rate in each)
    (all_pairs,) = (figure for figure in figures if figure["name"] == "pairs with wrong results")
    assert all_pairs["value"] == 0
    assert all_pairs["details"]["left out"] == {"graph+matmul": "needs a real GPU for graph"}
    assert (tmp_path / "pairs.png").read_bytes().startswith(b"\x89PNG")


NO_CLIENT: Any = None  # these configurations need no daemon


@pytest.fixture
def here(fresh_gpu: Callable[..., EmulatedGpu], monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes that we start use an emulated GPU."""
    for name, value in fresh_gpu().environment().items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("here")
def test_programs_that_do_not_start_cost_their_own_configuration() -> None:
    run = PairRun(PROGRAMS["emulated"], NO_CLIENT, Mps({"RUNLIST_EMULATED_GPU": "/nonexistent"}))
    measured = run.measure(pairs("kernel+matmul")[0], configurations("mps,default"), 1, 0.3)
    assert list(measured.samples) == ["alone", "default"]
    assert list(measured.notes) == ["mps"]
    assert "CUDA" in measured.notes["mps"]
    assert measured.correct


@pytest.mark.usefixtures("here")
def test_a_program_that_dies_in_a_window_costs_its_own_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    run = PairRun(PROGRAMS["emulated"], NO_CLIENT, Mps({"CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"}))
    window = PairRun._window

    def killing(self: PairRun, group: Any, name: str, *rest: Any) -> None:
        if name == "mps":
            os.kill(group.batches[0].pid, signal.SIGKILL)
        window(self, group, name, *rest)

    monkeypatch.setattr(PairRun, "_window", killing)
    measured = run.measure(pairs("kernel+matmul")[0], configurations("mps,default"), 2, 0.3)
    assert measured.notes == {"mps": "matmul ended early (signal 9)"}
    assert list(measured.samples) == ["alone", "default"]
    assert [len(samples.responses) for samples in measured.samples.values()] == [2, 2]
    assert measured.correct


@pytest.mark.usefixtures("here")
def test_a_pair_without_its_program_says_why() -> None:
    broken = Program("graph", ("bench.frameworks.no_such_program",))
    run = PairRun({**PROGRAMS["emulated"], "graph": broken}, NO_CLIENT, Mps())
    with pytest.raises(WorkloadError, match=r"graph ended early \(exit code 1\): .*no_such_program"):
        run.measure(pairs("graph+matmul")[0], configurations("default"), 1, 0.3)
