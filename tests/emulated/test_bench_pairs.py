"""The benchmark `pairs` as a whole, on an emulated GPU of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from bench import ROOT
from runlist.emulated import EmulatedGpu


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
