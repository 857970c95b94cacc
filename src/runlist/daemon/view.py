"""Tasks as people and tools see them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable

from runlist import nvml
from runlist.daemon.accounting import mean_of_last
from runlist.daemon.gpus import Gpus
from runlist.daemon.managed import ManagedTask
from runlist.nvml import NvmlError
from runlist.rm.transport import Driver
from runlist.wire import TaskView

_MEMORY_KEPT_S = 2.0
_USAGE_KEPT_S = 0.05


class Memory:
    """Who is on each GPU and what memory they hold, as NVML tells; asked at most once in two seconds: it takes some
    2 ms.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._session = contextlib.ExitStack()
        self._works: bool | None = None
        self._known: dict[str, tuple[float, dict[int, int]]] = {}
        self._gpus: list[str] = []

    def gpus(self) -> list[str]:
        """UUIDs of all GPUs; empty where NVML does not tell."""
        with contextlib.suppress(NvmlError):
            if not self._gpus and self._open():
                self._gpus = nvml.uuids()
        return self._gpus

    def by_pid(self, gpu: str) -> dict[int, int]:
        """Bytes by process id; empty where NVML does not tell."""
        asked_at, held = self._known.get(gpu, (-_MEMORY_KEPT_S, {}))
        now = time.monotonic()
        if now - asked_at >= _MEMORY_KEPT_S:
            held = self._ask(gpu)
            self._known[gpu] = (now, held)
        return held

    def pids(self) -> set[int]:
        """Processes with a compute context on any GPU; empty where NVML does not tell."""
        try:
            return nvml.compute_pids() if self._open() else set()
        except NvmlError:
            return set()

    def close(self) -> None:
        """End the session with NVML."""
        self._session.close()

    def _ask(self, gpu: str) -> dict[int, int]:
        try:
            return nvml.memory_by_pid(gpu) if self._open() else {}
        except NvmlError:
            return {}

    def _open(self) -> bool:
        """Whether NVML works; tried once."""
        if self._works is None:
            self._works = False
            self._session.enter_context(nvml.session(self._driver))
            self._works = True
        return self._works


def views(tasks: Iterable[ManagedTask], gpus: Gpus, memory: Memory) -> list[TaskView]:
    """One view per task, with usage of just now."""
    gpus.read_usage(_USAGE_KEPT_S)
    return [_view(task, gpus, memory.by_pid(task.task.key.gpu)) for task in tasks]


def _view(managed: ManagedTask, gpus: Gpus, memory: dict[int, int]) -> TaskView:
    task = managed.task
    scheduler = gpus.scheduler(task.key.gpu)
    accounting = scheduler.accounting
    groups = [group for context in managed.contexts.values() for group in context.groups.values()]
    history = accounting.history(task.key.pid)
    return TaskView(
        pid=task.key.pid,
        gpu=task.key.gpu,
        task_class=task.task_class,
        command=task.command,
        user=task.uid,
        group=task.group,
        weight=task.weight,
        cap_percent=None if task.cap is None else round(task.cap.fraction * 100, 3),
        budget_us=None if task.deadline is None else task.deadline.budget_us,
        period_us=None if task.deadline is None else task.deadline.period_us,
        target_p99_us=task.target_p99_us,
        p99_us=managed.reported_p99_us(time.monotonic()),
        segment=task.segment,
        timeslice_us=managed.share.timeslice_us,
        enabled=managed.share.enabled,
        suspended=task.suspended,
        policy=scheduler.policy_name,
        rule=managed.rule,
        why=scheduler.why(task.key),
        usage_source=accounting.source_name,
        share_1s=mean_of_last(history, 1),
        share_60s=round(mean_of_last(history, 60), 4),
        history=history,
        turns_per_s=round(accounting.turns_per_s(task.key.pid), 1),
        memory_bytes=memory.get(task.key.pid),
        groups=len(groups),
        channels=sum(len(group.channels) for group in groups),
        corrections=managed.corrections,
        discovery_ms=round(managed.discovery_ms, 3),
        attach_ms=round(managed.attach_ms, 3),
    )
