"""For pytest in a workplace: notes which test runs and how long it takes, or runs the tests that are named, in order.

MUTATION_RECORD names a folder: `test` in it has the name of the running test, for processes that it starts; `tests`
gets a line of JSON for each. MUTATION_TESTS names a file with the tests to run, one a line.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

_RECORD = os.environ.get("MUTATION_RECORD")
_TESTS = os.environ.get("MUTATION_TESTS")
_failed: set[str] = set()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Take the tests that are named."""
    if _TESTS is not None:
        order = {name: index for index, name in enumerate(Path(_TESTS).read_text().splitlines())}
        items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Record one test."""
    if _RECORD is None:
        return (yield)
    from coverage import Coverage

    (Path(_RECORD) / "test").write_text(item.nodeid)
    coverage = Coverage.current()
    assert coverage is not None
    coverage.switch_context(item.nodeid)
    started = time.perf_counter()
    try:
        return (yield)
    finally:
        coverage.switch_context("")
        (Path(_RECORD) / "test").write_text("")
        line = {"test": item.nodeid, "s": time.perf_counter() - started, "passed": item.nodeid not in _failed}
        with (Path(_RECORD) / "tests").open("a") as file:
            file.write(json.dumps(line) + "\n")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember what did not pass."""
    if not report.passed:
        _failed.add(report.nodeid)
