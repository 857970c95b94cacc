"""Which process a slot is of: a process id means little without the time at which the process began."""

from __future__ import annotations

import os
from pathlib import Path

_DEAD = (b"Z", b"X")


def pid_namespace() -> int:
    """The inode of our own pid namespace."""
    return os.stat("/proc/self/ns/pid").st_ino


def start_of(pid: int) -> int | None:
    """When a process began, in clock ticks since boot; None when it is gone, or a zombie: that holds nothing. One whose
    first thread has ended, and others not, lives.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            fields = file.read(4096).rpartition(b")")[2].split()  # the name in parentheses may hold anything
    except OSError:
        return None
    return None if fields[0] in _DEAD and int(fields[17]) <= 1 else int(fields[19])


def names_of(pid: int) -> tuple[int, ...]:
    """The process ids of a process, from our pid namespace down to its own; empty when it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return ()
    line = next((line for line in status.splitlines() if line.startswith("NSpid:")), f"NSpid: {pid}")
    return tuple(int(word) for word in line.split()[1:])
