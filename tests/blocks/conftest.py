"""A device of processor threads, which compiles each text once for all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from runlist.blocks.host import Host
from tests.fixtures import precompiled


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for compiled kernels, of all processes that run tests."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "kernels"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session", autouse=True)
def compiler(built: Path) -> Iterator[None]:
    """Also of programs that tests start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", str(precompiled.compiler(built / "compiler")))
        yield


@pytest.fixture(scope="session")
def host(built: Path) -> Host:
    return Host(workers=3, folder=built)


@pytest.fixture
def page_path(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path / "page"
