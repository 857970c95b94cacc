"""Fixtures of the tests with whole commands."""

from tests.fixtures.daemon import commands, daemon, short_path, slices, start_daemon, worker

__all__ = ["commands", "daemon", "short_path", "slices", "start_daemon", "worker"]
