"""Tests with the real programs of a node: containerd, podman, Slurm and others. `make test-node` runs them.

A test that lacks a program or a right is skipped, and says what it lacks. A run in which none could run says so and
does not fail.
"""

from __future__ import annotations

import pytest

from tests.fixtures.daemon import commands, daemon, short_path, slices, start_daemon, worker

__all__ = ["commands", "daemon", "short_path", "slices", "start_daemon", "worker"]


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and not session.config.option.keyword:
        session.exitstatus = pytest.ExitCode.OK


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if terminalreporter.config.option.collectonly:
        return
    counts = {name: len(terminalreporter.getreports(name)) for name in ("passed", "failed", "error", "skipped")}
    ran = counts["passed"] + counts["failed"] + counts["error"]
    if not ran:
        terminalreporter.write_line("node tests: none could run here; the reasons are above")
    elif counts["skipped"]:
        terminalreporter.write_line(f"node tests: {ran} ran, {counts['skipped']} could not; the reasons are above")
