"""Files that are replaced at once."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from runlist import files


def test_a_file_is_made_and_replaced_with_its_mode(tmp_path: Path) -> None:
    for content, mode in ((b"one", 0o644), (b"two", 0o600)):
        files.replace(tmp_path / "file", content, mode)
        assert (tmp_path / "file").read_bytes() == content
        assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(
    "make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/null", path)], ids=["pipe", "folder", "link"]
)
def test_what_is_no_file_stays(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """Root would else put a file in the place of /dev/null."""
    path = tmp_path / "out"
    make(path)
    before = path.lstat()
    with pytest.raises(OSError, match="no regular file"):
        files.replace(path, b"content")
    assert path.lstat().st_ino == before.st_ino
    assert os.listdir(tmp_path) == ["out"]
