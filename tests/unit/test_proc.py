"""What is read of processes in /proc, which may end at any moment."""

from __future__ import annotations

import os
import subprocess

import pytest

from runlist.proc.process import other_thread
from runlist.proc.words import command_line


def test_one_that_ends_while_its_threads_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder of threads is there, and empty."""
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie, which has no words any more
    assert other_thread(process.pid) == process.pid
    monkeypatch.setattr(os, "listdir", lambda path: [])
    assert other_thread(process.pid) == process.pid
    assert command_line(process.pid) == ""
    process.wait()
