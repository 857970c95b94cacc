"""Fixtures of the tests against people who mean harm, and careless ones. `make checks` runs them for longer."""

from tests.fixtures.daemon import commands, daemon, short_path, slices, start_daemon, worker
from tests.native.guests import guests

__all__ = ["commands", "daemon", "guests", "short_path", "slices", "start_daemon", "worker"]
