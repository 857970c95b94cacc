"""Tasks as people and tools see them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from runlist.daemon.gpu.accounting import mean_of_last
from runlist.daemon.gpu.gpus import Gpus
from runlist.daemon.memory.census import Memory
from runlist.daemon.memory.enforcement import enforcement
from runlist.daemon.tasks.managed import ManagedTask
from runlist.planes.process.region import Enforced, Use
from runlist.wire import TaskView

_USAGE_KEPT_S = 0.05


def views(tasks: Iterable[ManagedTask], gpus: Gpus, memory: Memory) -> list[TaskView]:
    """One view per task, with usage of just now."""
    gpus.read_usage(_USAGE_KEPT_S)
    return [_view(task, gpus, memory.by_pid(task.task.key.gpu)) for task in tasks]


def _view(managed: ManagedTask, gpus: Gpus, memory: dict[int, int]) -> TaskView:
    task = managed.task
    scheduler = gpus.scheduler(task.key.gpu)
    accounting = scheduler.accounting
    contexts = managed.contexts.values()
    history = accounting.history(task.key.pid)
    inside = _inside(managed)
    cap = inside.cap if task.cap is None else task.cap.fraction
    return TaskView(
        pid=task.key.pid,
        gpu=task.key.gpu,
        task_class=task.task_class,
        command=task.command,
        user=task.uid,
        group=task.group,
        weight=task.weight,
        cap_percent=None if cap is None else round(cap * 100, 3),
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
        why=managed.remark or scheduler.why(task.key),
        usage_source=accounting.source_name,
        share_1s=mean_of_last(history, 1),
        share_60s=round(mean_of_last(history, 60), 4),
        history=history,
        turns_per_s=round(accounting.turns_per_s(task.key.pid), 1),
        memory_bytes=memory.get(task.key.pid, None if inside.use is None else inside.use.total),
        groups=sum(len(context.groups) for context in contexts),
        channels=sum(context.channels for context in contexts),
        corrections=managed.corrections,
        discovery_ms=round(managed.discovery_ms, 3),
        attach_ms=round(managed.attach_ms, 3),
        memory_limit_bytes=inside.limit,
        memory_overhead_bytes=None if inside.use is None else inside.use.overhead,
        enforcement=inside.enforcement,
        cap_by=_cap_by(managed, inside),
        reached_by=managed.reached_by,
        controls=dict(managed.controls),
    )


_CAPPING = Enforced.CAP | Enforced.QUERIES
"""A library that hooks queries hooks launches, too: it says so once it held the first back."""


@dataclass(frozen=True, slots=True)
class _Inside:
    """What is known of the inside of a process, where it shares a region."""

    limit: int | None = None
    use: Use | None = None
    enforcement: str = ""
    cap: float | None = None


def _inside(managed: ManagedTask) -> _Inside:
    key, root = managed.task.key, managed.root
    if root is None:
        return _Inside()
    limit = root.quota.limit_on(key.gpu)
    snapshot = root.quota.look()
    if snapshot is None:
        return _Inside(limit, enforcement=f"not loaded: {root.quota.trouble}" if root.quota.trouble else "")
    slot, device = snapshot.slot_of(key.pid), snapshot.device(key.gpu)
    return _Inside(
        limit=limit,
        use=slot.use[device.index] if slot is not None and device is not None else None,
        enforcement=enforcement(key.pid, slot, by_driver=root.quota.by_driver),
        cap=snapshot.cap_on(key.gpu) if slot is not None and slot.enforced & _CAPPING else None,
    )


def _cap_by(managed: ManagedTask, inside: _Inside) -> str:
    if managed.reached_by and managed.task.cap is not None:
        return "driver"
    return "" if inside.cap is None else "process"
