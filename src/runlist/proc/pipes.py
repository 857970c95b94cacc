"""The pipes of processes: who is connected to whom."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Collection
from functools import partial

from runlist.proc.aside import ask, ask_all

MOST = 4096
"""Descriptors of a process that are looked at: it may have a million."""


def pipes_of(pid: int) -> set[str]:
    """The pipes that a process has open, by their names in /proc; none when it is gone, or not ours to look at, or has
    the kernel wait. Takes 10 ms for one with many descriptors: call it in a thread.
    """
    return ask(pid, partial(_pipes_of, pid), set())


def _pipes_of(pid: int) -> set[str]:
    found = set()
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in itertools.islice(entries, MOST):
            with contextlib.suppress(OSError):
                found.add(os.readlink(entry.path))
    return {target for target in found if target.startswith("pipe:")}


def holders(pipes: Collection[str], without: Collection[int]) -> list[int]:
    """The processes, but those `without`, that have one of some pipes open. One pass over all descriptors of the
    machine: call it seldom, and in a thread.
    """
    wanted = set(pipes)
    pids = (int(name) for name in os.listdir("/proc") if name.isdecimal())
    others = [(pid, partial(_pipes_of, pid)) for pid in pids if pid not in without] if wanted else []
    return [pid for pid, found in ask_all(others).items() if wanted & found]
