"""Tasks that the GPU knows as one: the clients of one MPS server, managed or not."""

from __future__ import annotations

from collections.abc import Iterable

from runlist.daemon.gpu.scheduler import Scheduler
from runlist.daemon.memory.census import MemoryCensus
from runlist.daemon.tasks.managed import ManagedTask


def pids_together(managed: ManagedTask, scheduler: Scheduler, census: MemoryCensus) -> list[int] | None:
    """The other processes that run, stop and have a slice with a task's; None for one that stands alone."""
    pid, gpu = managed.task.key
    clients = census.mps_clients(gpu)
    together = {*scheduler.fellows(managed.task), *(clients if pid in clients else ())}
    return sorted(together - {pid}) if together else None


def together_notes(tasks: Iterable[ManagedTask], together: Iterable[list[int] | None]) -> list[str]:
    """A line for each task that does not stand alone, for the person who attached or suspended it."""
    return [
        f"process {managed.task.key.pid} is a client of an MPS server: it runs, stops and has a slice together with "
        f"the server's other clients ({', '.join(map(str, others)) or 'none now'})"
        for managed, others in zip(tasks, together, strict=True)
        if others is not None
    ]
