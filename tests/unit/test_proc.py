"""What is read of processes in /proc, which may end at any moment."""

from __future__ import annotations

import os
import subprocess

import pytest

from runlist.proc import process
from runlist.proc.process import other_thread
from runlist.proc.words import command_line


def test_one_that_ends_while_its_threads_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder of threads is there, and empty."""
    one = subprocess.Popen(["true"])
    os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)  # a zombie, which has no words any more
    assert other_thread(one.pid) == one.pid
    monkeypatch.setattr(os, "listdir", lambda path: [])
    assert other_thread(one.pid) == one.pid
    assert command_line(one.pid) == ""
    one.wait()


def test_an_id_that_is_used_again_names_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever was detached was named by the number alone: one that came to have it later was left alone, too."""
    started: dict[int, int | None] = {4: 100, 5: 100}
    monkeypatch.setattr(process, "start_of", started.get)
    ids = process.ProcessIds()
    for pid in (4, 5):
        ids.add(pid)
    assert (4 in ids, 5 in ids, 6 in ids, ids) == (True, True, False, {4, 5})
    started |= {4: None, 5: 200}
    assert (4 in ids, 5 in ids, ids) == (True, False, {4})
    started[4] = 300
    assert (4 in ids, ids) == (False, set())
    ids.add(4)
    assert 4 in ids
