"""What a record of which tests reach which sources is good for, later."""

from __future__ import annotations

import importlib
import tomllib
from typing import Any

import pytest

from bench import ROOT

RECORD = {
    "sources": {"a.py": "1", "b.py": "1"},
    "files": {"test_a.py": {"stamp": "x", "lines": {"a.py": {}}}, "test_b.py": {"stamp": "y", "lines": {"b.py": {}}}},
}
STAMPS = {"test_a.py": "x", "test_b.py": "y"}


@pytest.mark.parametrize(
    ("now", "stamps", "left"),
    [
        ({"a.py": "1", "b.py": "1"}, STAMPS, ["test_a.py", "test_b.py"]),
        ({"a.py": "1"}, STAMPS, ["test_a.py"]),  # of the other nobody knows what it became
        ({"a.py": "2", "b.py": "1"}, STAMPS, ["test_b.py"]),
        ({"a.py": "1", "b.py": "1"}, {**STAMPS, "test_a.py": "z"}, ["test_b.py"]),
        ({"a.py": "1", "b.py": "1", "c.py": "1"}, STAMPS, []),  # each may reach what was not looked at
        ({"c.py": "1"}, STAMPS, []),
    ],
)
def test_what_need_not_be_recorded_again(
    now: dict[str, str], stamps: dict[str, str], left: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    tests: Any = importlib.import_module("mutation.tests")
    assert list(tests.still_true(RECORD, now, stamps)) == left
    assert tests.still_true({}, now, stamps) == {}


def test_mutants_that_change_nothing_are_of_statements_that_are_there() -> None:
    """Else a statement that comes to be the same later would be passed over."""
    for one in tomllib.loads((ROOT / "tools/mutation/equivalent.toml").read_text())["mutant"]:
        lines = [line.strip() for line in (ROOT / one["file"]).read_text().splitlines()]
        assert one["statement"] in lines, one
        assert one["reason"]


def test_what_mutants_of_cpp_replace_is_there_once() -> None:
    for one in tomllib.loads((ROOT / "tests/native/mutants.toml").read_text())["mutant"]:
        assert (ROOT / one["file"]).read_text().count(one["find"]) == 1, one
        assert (ROOT / one["tests"].split()[0]).is_file(), one
