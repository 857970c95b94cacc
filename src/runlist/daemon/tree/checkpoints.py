"""Checkpoints that wait for a suspended process.

CUDA checkpoints a process after the work that it has submitted; that of a suspended one does not end. Whoever asks
(`cuda-checkpoint`, CRIU) is connected to the process by new pipes, and waits. Nothing else shows it from outside.
"""

from __future__ import annotations

import asyncio
import os

from runlist.daemon.tasks.managed import ManagedProcess
from runlist.daemon.tree.processes import Processes
from runlist.proc.pipes import holders, pipes_of
from runlist.proc.process import descendants, descriptor_count
from runlist.proc.words import command_line, short_command


class Checkpoints:
    """Says of suspended processes who waits to checkpoint them."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._seen: dict[int, tuple[int, set[str]]] = {}  # descriptors now, and pipes when suspended; by process id

    async def look(self) -> None:
        """Look at the suspended processes whose number of open files has changed. Nothing else should wait for it."""
        suspended = {
            process.pid: process
            for process in self._processes.managed.values()
            if any(task.suspended_by for task in process.tasks.values())
        }
        for pid in self._seen.keys() - suspended.keys():
            del self._seen[pid]
            if pid in self._processes.managed:
                _say(self._processes.managed[pid], "")
        for pid, process in suspended.items():
            count = descriptor_count(pid)
            if pid not in self._seen:
                self._seen[pid] = count, await asyncio.to_thread(pipes_of, pid)
            elif count != self._seen[pid][0]:
                before = self._seen[pid][1]
                self._seen[pid] = count, before
                _say(process, await self._who_waits(process, before))

    async def _who_waits(self, process: ManagedProcess, before: set[str]) -> str:
        """Who is connected to a process by new pipes, in words; nothing where that is only its own family."""
        pid, root = process.pid, process.root.pid

        def look() -> list[int]:
            fresh = pipes_of(pid) - before
            return holders(fresh, {*descendants([root])[root], root, pid, os.getpid()}) if fresh else []

        others = await asyncio.to_thread(look)
        if not others:
            return ""
        asking = f"process {others[0]} ({short_command(command_line(others[0]))})"
        return f"suspended: {asking} waits to checkpoint it, which needs it to run: `runlist resume {process.pid}`"


def _say(process: ManagedProcess, waiting: str) -> None:
    for task in process.tasks.values():
        task.waiting = waiting
