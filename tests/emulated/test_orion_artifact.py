"""The Orion experiments as their command, with programs that spin, on an emulated GPU of its own."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from bench import ROOT
from bench.papers.orion.cells import Cell, Store

pytestmark = pytest.mark.timeout(170)

RUN = ["--device", "emulated", "--commit", "none", "--rounds", "1", "--seconds", "0.25", "--requests", "2"]


def artifact(environment: Mapping[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """A command of it, to its end."""
    command = [sys.executable, "-m", "bench.papers.orion", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150, check=False)


def cells(folder: Path) -> dict[tuple[str, str], Cell]:
    """By experiment and system."""
    return {(one.experiment, one.system): one for one in Store(folder).cells()}


def test_a_run_is_measured_gone_on_with_and_drawn(environment: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    keys = "compute-memory,inference-training"
    systems = "sequential,slicing,threads-exclusive,threads-orion"
    words = ["run", "--out", str(out), *RUN, "--only", keys, "--systems", systems]
    done = artifact(environment, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    found = cells(out)
    assert set(found) == {(key, name) for key in keys.split(",") for name in ("alone", *systems.split(","))}
    for (key, _), one in found.items():
        assert one.notes == []
        assert one.correct is True
        if key == "compute-memory":
            assert len(one.asked_us) == 2
            assert all(len(times) == 2 and min(times) > 0 for times in one.each_us.values())
        else:
            assert {name: task.kind for name, task in one.served.items()} == {"hp": "LC", "be": "BE"}
            assert one.served["be"].finished > 0
    for (key, name), one in found.items():
        if key == "compute-memory" and name not in ("alone", "sequential"):  # until the later of the two had ended
            assert one.asked_us == [max(each) for each in zip(*one.each_us.values(), strict=True)]
        if name.startswith("threads-"):
            assert one.counters["be"]["launched"] > 0
            assert one.counters["hp"]["deferred"] == 0
    assert json.loads((out / "machine.json").read_text())["device"] == "emulated"

    kept = (out / "inference-training" / "slicing-1.json").read_bytes()
    (out / "compute-memory" / "slicing-1.json").unlink()
    again = artifact(environment, *words)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "going on with the run" in again.stdout
    assert ("compute-memory", "slicing") in cells(out)
    assert (out / "inference-training" / "slicing-1.json").read_bytes() == kept

    document = tmp_path / "orion.md"
    document.write_text((ROOT / "docs" / "papers" / "orion.md").read_text())
    drawn = artifact(environment, "plot", "-r", str(out), "--document", str(document))
    assert drawn.returncode == 0, drawn.stderr
    assert {path.name for path in (out / "figures").iterdir()} == {
        "together.png", "scatter.png", "together.csv", "overhead.csv", "served.csv",
    }  # fmt: skip
    rows = list(csv.DictReader((out / "figures" / "together.csv").open()))
    assert sum(row["one after the other, ms"] != "not measured" for row in rows) == 1
    assert "every figure is not measured" in document.read_text()
