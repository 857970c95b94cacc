"""The compute cap in the process, against a GPU in simulated time: ten seconds of each program take no time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.fixtures.compiler import compiler

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NATIVE = ROOT / "native"
SOURCES = (
    HERE / "cap_check.cpp",
    *(NATIVE / name for name in ("cap/context.cpp", "cap/gate.cpp", "cap/meter.cpp")),
    *(NATIVE / name for name in ("region/region.cpp", "region/process.cpp")),
)
CAPS = (10, 30, 50)
POINTS = 2.0
EVENTS = 8.0
"""Points by which a program of nothing but short kernels, each waited for, may be below its cap: it pays for events."""


class Share(NamedTuple):
    """What a program got, in percent: of GPU time with the cap and without, and its rate over the one without."""

    name: str
    cap: int
    capped: float
    alone: float
    rate: float


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """What the check says, by line and word."""
    built = tmp_path_factory.mktemp("cap") / "cap_check"
    headers = subprocess.run(
        [sys.executable, ROOT / "tools" / "cuda_headers.py"], capture_output=True, text=True, check=True
    ).stdout.strip()
    words = ["-std=c++20", "-O2", "-pthread", "-Wall", "-Wextra", "-Wno-missing-field-initializers"]
    folders = [f"-I{NATIVE}", f"-I{HERE}", *(f"-isystem{folder}" for folder in headers.split(";"))]
    command = [*compiler("CXX", ("c++", "g++", "clang++", "zig-c++")), *words, *folders, *map(str, SOURCES)]
    done = subprocess.run([*command, "-o", str(built)], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    said = subprocess.run([built], capture_output=True, text=True, timeout=100, env={"PATH": os.environ["PATH"]})
    assert said.returncode in {0, 1}, said.stderr
    return [line.split("\t") for line in said.stdout.splitlines()]


@pytest.fixture(scope="module")
def shares(output: list[list[str]]) -> list[Share]:
    return [Share(name, int(cap), *map(float, numbers)) for kind, name, cap, *numbers in output_of(output, "share")]


def output_of(output: list[list[str]], kind: str) -> list[list[str]]:
    return [words for words in output if words[0] == kind]


def test_programs_get_no_more_than_their_cap(shares: list[Share]) -> None:
    assert {share.cap for share in shares} == set(CAPS)
    assert not [share for share in shares if share.capped > share.cap + POINTS]


def test_programs_that_need_more_get_their_cap(shares: list[Share]) -> None:
    """In GPU time, or in work done over what is done alone: the GPU is never quite busy with kernels that are short."""
    for share in shares:
        below = EVENTS if share.name.startswith("kernels of 10 us, each") else POINTS
        assert max(share.capped, share.rate) >= min(share.cap, share.alone) - below, share


def test_programs_that_saturate_the_gpu_keep_to_their_cap(shares: list[Share]) -> None:
    saturating = [share for share in shares if share.alone > 90]
    assert len(saturating) >= 10 * len(CAPS)
    for share in saturating:
        assert min(abs(share.rate - share.cap), abs(share.capped - share.cap)) <= POINTS, share


def test_cases(output: list[list[str]]) -> None:
    cases = {name: verdict for _, name, verdict in output_of(output, "case")}
    assert len(cases) >= 15
    assert not [name for name, verdict in cases.items() if verdict != "right"]
