"""The files that are begun first are there: a name that was written wrong would begin nothing."""

from __future__ import annotations

from tests import conftest


def test_files_that_take_longest_are_there() -> None:
    folder = conftest.TESTS
    assert [name for name in conftest.LONG if not (folder / name).is_file()] == []
    assert len(set(conftest.LONG)) == len(conftest.LONG)
