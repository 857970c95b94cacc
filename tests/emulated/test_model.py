"""The emulated GPU's model of the runlist, without the GPU: its cases are a program of their own, and exact."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.fixtures.compiler import CXX, compiler

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SOURCES = (HERE / "model_check.cpp", ROOT / "emulator" / "model" / "runlist.cpp")


def test_every_case_is_exact(tmp_path: Path) -> None:
    built = tmp_path / "model_check"
    words = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Wno-missing-field-initializers"]
    folders = [f"-I{ROOT / 'emulator'}", f"-I{ROOT}"]
    command = [*compiler(*CXX), *words, *folders, *map(str, SOURCES), "-o", str(built)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    said = subprocess.run([built], capture_output=True, text=True, timeout=60)
    cases = [line.split("\t") for line in said.stdout.splitlines()]
    assert len(cases) > 30
    assert [name for verdict, name in cases if verdict != "right"] == []
    assert said.returncode == 0
