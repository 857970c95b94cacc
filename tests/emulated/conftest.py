"""Fixtures of the tests with whole commands."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from runlist.emulated import EmulatedGpu
from runlist.workloads.process import WorkloadProcess
from tests.conftest import Tenant
from tests.fixtures.daemon import ROOT, Commands, Daemon, commands, daemon, short_path, slices, start_daemon, worker

__all__ = ["commands", "daemon", "short_path", "slices", "start_daemon", "worker"]


@pytest.fixture
def environment(fresh_gpu: Callable[..., EmulatedGpu]) -> dict[str, str]:
    """Of commands that have a GPU to themselves."""
    return {**os.environ, **fresh_gpu().environment(), "PYTHONPATH": str(ROOT)}


@pytest.fixture
def batch(tenant: Tenant, daemon: Daemon, commands: Commands) -> WorkloadProcess:
    """A batch job at work, attached."""
    process = tenant("batch", "--kernel-ms", "1", environment=commands.environment)
    process.run()
    daemon.client.attach(process.pid, "batch")
    return process
