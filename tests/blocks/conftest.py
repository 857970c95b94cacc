"""A device of processor threads, which compiles each text once for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from runlist.blocks.host import Host


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for compiled kernels."""
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture(scope="session")
def host(built: Path) -> Host:
    return Host(workers=3, folder=built)


@pytest.fixture
def page_path(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path / "page"
