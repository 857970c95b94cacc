"""The processes that tests are dealt out to: the death of one ends one test, and not the run."""

from __future__ import annotations

import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

from tests.fixtures.parallel import Files

CONFTEST = """
from tests.conftest import pytest_configure, pytest_xdist_make_scheduler
"""
FINE = """
import time

import pytest


@pytest.mark.parametrize("number", range(3))
def test_fine(number: int) -> None:
    time.sleep(0.01)
"""
DIES = """
import os


def test_before() -> None:
    pass


def test_dies() -> None:
    os._exit(1)


def test_after() -> None:
    pass
"""
STAYS = """
import time

import pytest

from tests.fixtures import parallel

parallel.GRACE_S = 0.5


@pytest.fixture
def stays():
    yield
    time.sleep(1000)


@pytest.mark.timeout(1)
def test_stays(stays: None) -> None:
    time.sleep(1000)


def test_after() -> None:
    pass
"""
FAILS = """
def test_fails() -> None:
    assert 1 == 2
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", folder, *arguments, folder]
    return subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=200)


def test_when_a_process_dies_all_other_tests_are_run_once(tmp_path: Path) -> None:
    for number in range(24):
        (tmp_path / f"test_{number:02}.py").write_text(DIES if number == 18 else FINE)
    ran = run(tmp_path, "--numprocesses=2", "--dist=loadfile", "--no-loadscope-reorder")
    assert "1 failed, 71 passed" in ran.stdout, ran.stdout
    assert "test_18.py::test_dies" in ran.stdout


def test_what_is_dealt_to_a_process_that_just_died_goes_to_another() -> None:
    """Nobody has heard of its death yet."""

    class Dead:
        def send_runtest_some(self, tests: list[int]) -> None:
            raise OSError("cannot send (already closed?)")

    dead: Any = Dead()
    files: Any = Files.__new__(Files)
    files.workqueue = OrderedDict({"one": {"one::test_a": False, "one::test_b": False}})
    files.assigned_work = {dead: {"two": {"two::test_dies": False}}}
    files.registered_collections = {dead: ["one::test_a", "one::test_b", "two::test_dies"]}
    files._assign_work_unit(dead)
    assert files.remove_node(dead) == "two::test_dies"
    assert files.workqueue == {"one": {"one::test_a": False, "one::test_b": False}}


def test_a_failure_is_told_before_the_run_has_ended(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(FAILS)
    (tmp_path / "test_two.py").write_text(FINE)
    said = run(tmp_path, "--numprocesses=1", "--dist=loadfile").stdout
    assert "test_one.py::test_fails (call): assert 1 == 2" in said[: said.index("= FAILURES =")]


def test_one_whose_fixture_never_ends_is_ended_and_the_others_are_run(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(STAYS)
    (tmp_path / "test_two.py").write_text(FINE)
    said = run(tmp_path, "--numprocesses=1", "--dist=loadfile")
    assert "2 failed, 4 passed" in said.stdout, said.stdout
    assert "crashed while running 'test_one.py::test_stays'" in said.stdout
    assert "in stays" in said.stderr
