"""Files of a process' own that never say what they are: nobody is to wait for them."""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runlist.proc.inode import inode
from tests.fixtures.daemon import needs_root


@pytest.mark.parametrize("path", ["/dev/null", "/proc/self/exe", "/tmp", __file__])
def test_it_says_what_stat_says(path: str) -> None:
    found, wanted = inode(path), os.stat(path)
    assert (found.mode, found.rdev, found.dev, found.ino) == (
        wanted.st_mode, wanted.st_rdev, wanted.st_dev, wanted.st_ino,
    )  # fmt: skip


def test_descriptors_and_what_is_not_there(tmp_path: Path) -> None:
    one, other = socket.socketpair()
    with one, other:
        found = inode(f"/proc/self/fd/{one.fileno()}")
        assert stat.S_ISSOCK(found.mode)
        assert found != inode(f"/proc/self/fd/{other.fileno()}")
    with pytest.raises(FileNotFoundError, match="none"):
        inode(tmp_path / "none")


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[int]:
    """A descriptor of a file whose server answers no question about it once it is open."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("needs /dev/fuse")
    from bench.harness import fuse

    asked = tmp_path / "asked"

    def answer(code: int, body: bytes) -> bytes | None:
        del body
        if code == 3 and asked.exists():
            time.sleep(100)
        return None

    file = tmp_path / "file"
    with fuse.served(file, answer, mode=0o666, threads=4, known_s=0):
        fd = os.open(file, os.O_RDWR)
        asked.touch()
        yield fd
        os.close(fd)


@needs_root
def test_nobody_waits_for_who_does_not_answer(silent: int) -> None:
    began = time.monotonic()
    assert stat.S_ISREG(inode(f"/proc/self/fd/{silent}").mode)
    assert time.monotonic() - began < 50, "the server was asked"
