"""Fixtures of the tests with whole commands."""

from __future__ import annotations

import pytest

from runlist.workloads.process import WorkloadProcess
from tests.conftest import Tenant
from tests.fixtures.daemon import Commands, Daemon, commands, daemon, short_path, slices, start_daemon, worker

__all__ = ["commands", "daemon", "short_path", "slices", "start_daemon", "worker"]


@pytest.fixture
def batch(tenant: Tenant, daemon: Daemon, commands: Commands) -> WorkloadProcess:
    """A batch job at work, attached."""
    process = tenant("batch", "--kernel-ms", "1", environment=commands.environment)
    process.run()
    daemon.client.attach(process.pid, "batch")
    return process
