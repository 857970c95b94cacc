"""Control files that processes lent: the last way to reach those that nobody may borrow from.

Our copy keeps the process' GPU memory alive. So it is closed as soon as the process ends, runs another program, or can
be borrowed from.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import time
from collections.abc import Set as AbstractSet

import msgspec

from runlist.daemon.tasks.in_turn import next_of
from runlist.planes.interface import Handle, Lent, Plane
from runlist.proc import borrow
from runlist.proc.process import Program

MAX_FILES = 8
"""How many files a process may lend: a program has one client for CUDA and one for NVML."""

MAX_TREE_FILES = 256
"""How many the processes of one tree may lend: a tree must not use up our descriptors."""

LOOKED_AT = 64
"""How many processes that lent files are looked at at a time."""

_KEYS = itertools.count(-1, -1)


class _Lender(msgspec.Struct):
    """A process in the tree of process `root`."""

    root: int
    pidfd: int
    program: Program
    since: float
    files: dict[int, Lent] = {}  # by key


class Lending:
    """What each process has lent, in the running event loop."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._lenders: dict[int, _Lender] = {}
        self._loop = asyncio.get_running_loop()

    @property
    def lenders(self) -> AbstractSet[int]:
        """The processes that lent files."""
        return self._lenders.keys()

    def __contains__(self, pid: int) -> bool:
        return pid in self._lenders

    def take(self, root: int, pid: int, client: int, file: Handle) -> bool:
        """Keep the control file of one client of a process below `root`. False where it is of no use or there are too
        many: the caller closes it. Raises NoTargetError for a process that is gone.
        """
        self._look_again(pid)
        if sum(len(one.files) for one in self._lenders.values() if one.root == root) >= MAX_TREE_FILES:
            return False
        lender = self._lenders.get(pid)
        if lender is None:
            pidfd = borrow.open_process(pid)
            lender = self._lenders[pid] = _Lender(root, pidfd, Program.of(pid), time.monotonic())
            self._loop.add_reader(pidfd, self.drop, pid)
        if len(lender.files) >= MAX_FILES or any(one.client == client for one in lender.files.values()):
            return False
        lender.since = time.monotonic()
        key = next(_KEYS)
        lender.files[key] = Lent(key, file, client)
        return True

    def copies(self, pid: int) -> list[Lent]:
        """Copies of the files that a process lent, for the caller to close."""
        lender = self._lenders.get(pid)
        if lender is None:
            return []
        copied: list[Lent] = []
        try:
            for one in lender.files.values():
                file = self._plane.adopt(os.dup(one.handle.fileno()))
                if file is not None:
                    copied.append(Lent(one.key, file, one.client))
        except OSError:  # no descriptor is left
            for one in copied:
                one.handle.close()
            raise
        return copied

    def has(self, pid: int, key: int) -> bool:
        """Whether a file is still lent."""
        lender = self._lenders.get(pid)
        return lender is not None and key in lender.files

    def lent_for(self, pid: int) -> float:
        """Seconds since a process lent its newest file; negative where it lent none."""
        lender = self._lenders.get(pid)
        return -1.0 if lender is None else time.monotonic() - lender.since

    @property
    def quiet_for(self) -> float:
        """Seconds since any process lent a file; infinite where none did."""
        return time.monotonic() - max((one.since for one in self._lenders.values()), default=-math.inf)

    def drop(self, pid: int) -> None:
        """Close the files that a process lent."""
        lender = self._lenders.pop(pid, None)
        if lender is not None:
            self._loop.remove_reader(lender.pidfd)
            os.close(lender.pidfd)
            for one in lender.files.values():
                one.handle.close()

    def check(self) -> None:
        """Drop the files of programs that were replaced by exec, which ends no process: of the next lenders."""
        for pid, _ in next_of(self._lenders, LOOKED_AT):
            self._look_again(pid)

    def close(self) -> None:
        """Close everything."""
        for pid in list(self._lenders):
            self.drop(pid)

    def _look_again(self, pid: int) -> None:
        lender = self._lenders.get(pid)
        if lender is not None:
            program = lender.program.now()
            if program is None:
                self.drop(pid)
            else:
                lender.program = program
