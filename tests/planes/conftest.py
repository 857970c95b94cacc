"""The fixtures of tests with a daemon, on a plane that needs neither a vendor's driver nor the emulated GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures import memory_plane
from tests.fixtures.daemon import commands, daemon, short_path, start_daemon
from tests.fixtures.memory_plane import Tenant

__all__ = ["commands", "daemon", "short_path", "start_daemon"]


@pytest.fixture
def device_env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of the plane, in this process and in those that it starts."""
    folder = tmp_path / "gpu"
    folder.mkdir()
    monkeypatch.setenv("RUNLIST_DEVICE", memory_plane.__name__)
    monkeypatch.setenv(memory_plane.VARIABLE, str(folder))
    return dict(os.environ)


@pytest.fixture
def tenants(device_env: dict[str, str]) -> Iterator[list[Tenant]]:
    """Two processes with a context each."""
    made = [Tenant(name) for name in ("first", "second")]
    yield made
    for one in made:
        if one.process.poll() is None:
            one.end()
