"""A look at the daemon: all that metrics are made of, asked for in one go."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runlist.client import Client
from runlist.errors import RunlistError
from runlist.views.structs import DaemonView, TaskView, WorkloadView

PATIENCE_S = 3.0
"""How long the daemon may take for an answer: a scraper waits for ten seconds, all in all."""


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen. Without a daemon `status` is None, and `trouble` says why."""

    seconds: float
    status: DaemonView | None = None
    tasks: Sequence[TaskView] = ()
    workloads: Sequence[WorkloadView] = ()
    trouble: str = ""


def look(open_client: Callable[[], Client]) -> Look:
    """Look now. A connection of its own, since one that stays keeps a private daemon from ending."""
    began = time.perf_counter()
    try:
        with open_client() as client:
            status, workloads, tasks = client.status(), client.workloads(), client.ps()
    except (RunlistError, OSError) as error:
        return Look(time.perf_counter() - began, trouble=str(error))
    return Look(time.perf_counter() - began, status, tasks, workloads)
