"""Fixtures of the tests of the places where Runlist docks."""

from __future__ import annotations

from tests.fixtures.daemon import commands, daemon, short_path, start_daemon, worker
from tests.fixtures.node_agent import agent, runtime
from tests.fixtures.plugin import folder, gpu, kubelet, start

__all__ = [
  "agent", "commands", "daemon", "folder", "gpu", "kubelet", "runtime", "short_path", "start", "start_daemon", "worker",
]  # fmt: skip
