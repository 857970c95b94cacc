"""The file on which the tests' programs make requests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.harness.ioctl_file import ioctl_file
from tests.fixtures.daemon import commands, short_path

__all__ = ["commands", "short_path"]


@pytest.fixture
def answering(tmp_path: Path) -> Iterator[Path]:
    """A file that answers every ioctl."""
    with ioctl_file(tmp_path / "answers") as path:
        yield path


@pytest.fixture
def file(answering: Path) -> Iterator[int]:
    """A descriptor of it."""
    fd = os.open(answering, os.O_RDWR | os.O_CLOEXEC)
    yield fd
    os.close(fd)
