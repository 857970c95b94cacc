"""Fixtures of the tests of processes and sockets."""

from tests.fixtures.daemon import commands, daemon, short_path, slices, start_daemon, worker

__all__ = ["commands", "daemon", "short_path", "slices", "start_daemon", "worker"]
