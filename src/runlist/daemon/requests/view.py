"""Tasks and GPUs as people and tools see them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from runlist.daemon.gpu.accounting import Accounting, mean_of_last
from runlist.daemon.gpu.activity import activity_of
from runlist.daemon.gpu.gpus import Gpus
from runlist.daemon.gpu.ledger import ENDED
from runlist.daemon.gpu.scheduler import Scheduler
from runlist.daemon.kernel.made import Made
from runlist.daemon.memory.census import MemoryCensus
from runlist.daemon.memory.enforcement import enforcement
from runlist.daemon.requests.clients import client_views
from runlist.daemon.requests.together import pids_together, sms_of
from runlist.daemon.tasks.managed import NO_SMS, Count, ManagedTask, Root
from runlist.model import GivingWay, Share, Task
from runlist.planes.process.region import Enforced, Use
from runlist.views.fields import Kind, fields
from runlist.views.structs import Counted, GpuView, TaskView, WorkloadView

MadeBy = Callable[[int, list[tuple[int, int]]], Made | None]

_USAGE_KEPT_S = 0.05
_COUNTERS = {name: field.of or name for name, field in fields(Counted).items() if field.kind is Kind.COUNTER}
_ROOM = 4 << 20  # bytes for all command lines of an answer: a frame is bounded
_MOST = (1 << 63) - 1  # a tree may report any number, and JSON readers take no larger one


def views(
    tasks: Collection[ManagedTask], gpus: Gpus, census: MemoryCensus, made_by: MadeBy = lambda *_: None
) -> Iterator[TaskView]:
    """One view per task, with usage of just now, each made when it is taken; what was decided is of one moment, so that
    no two seem to have what only one may. `made_by` tells what the kernel saw a process make.
    """
    gpus.read_usage(_USAGE_KEPT_S)
    room = _ROOM // max(1, len(tasks))
    ways = {gpu: gpus.scheduler(gpu).giving_way() for gpu in {task.task.key.gpu for task in tasks}}
    decided = [
        (one, one.task, one.share, one.remark or gpus.scheduler(one.task.key.gpu).why(one.task.key)) for one in tasks
    ]
    for managed, task, share, why in decided:
        gpu = task.key.gpu
        yield _view(managed, task, share, why, gpus.scheduler(gpu), ways[gpu], census, room, _made(managed, made_by))


def gpu_views(gpus: Gpus, census: MemoryCensus, roots: Iterable[Root], driver: str) -> list[GpuView]:
    """One view per GPU that has or had tasks, with usage of just now."""
    gpus.read_usage(_USAGE_KEPT_S)
    quotas = [root.quota for root in roots]
    return [
        _gpu_view(scheduler, census, sum(quota.refused(scheduler.gpu) for quota in quotas), driver)
        for scheduler in gpus.all()
    ]


def workload_views(gpus: Gpus, uid: int) -> Iterator[WorkloadView]:
    """One view per workload and GPU that a user may see, with usage of just now, each made when it is taken."""
    gpus.read_usage(_USAGE_KEPT_S)
    every = [(scheduler.gpu, list(scheduler.ledger.workloads())) for scheduler in gpus.all()]
    return (
        WorkloadView(
            gpu=gpu,
            user=None if workload.who is None else workload.who.uid,
            container="" if workload.who is None else workload.who.container,
            labels={} if workload.who is None else dict(workload.who.labels),
            folded=workload.who is None,
            tasks_ended=int(workload.counts.get(ENDED, 0)),
            **{name: _counted(name, workload.counts.get(of, 0.0)) for name, of in _COUNTERS.items()},
        )
        for gpu, workloads in every
        for workload in workloads
        if uid == 0 or (workload.who is not None and workload.who.uid == uid)
    )


def _counted(name: str, number: float) -> Any:
    return round(number, 6) if fields(Counted)[name].unit else int(min(number, _MOST))


def _gpu_view(scheduler: Scheduler, census: MemoryCensus, refused: int, driver: str) -> GpuView:
    counts = sum((managed.counts for managed in scheduler.tasks.values()), scheduler.ended.copy())
    counts[Count.MEMORY_REFUSALS] += refused
    size = census.size_of(scheduler.gpu)
    giving_way = scheduler.giving_way()
    return GpuView(
        gpu=scheduler.gpu,
        driver=driver,
        policy=scheduler.policy_name,
        tasks=len(scheduler.tasks),
        memory_size_bytes=size,
        memory_used_bytes=None if size is None else sum(census.by_pid(scheduler.gpu).values()),
        memory_unowned_bytes=None if size is None else census.unowned(scheduler.gpu),
        records_lost=scheduler.accounting.dropped,
        **({} if giving_way is None else _gives_way(giving_way)),
        **_measured(scheduler.accounting, None, counts),
    )


def _gives_way(told: GivingWay) -> dict[str, Any]:
    return {
        "gives_way": told.way,
        "gives_way_slice_us": told.slice_us,
        "switches_share": round(told.cost, 4),
        "switch_budget_share": told.budget,
        "pauses_per_s": round(told.pauses_per_s, 1),
    }


def _told(managed: ManagedTask) -> dict[str, Any]:
    """What its library tells of its work."""
    activity = activity_of(managed)
    if activity is None:
        return {}
    return {
        "submissions": activity.work,
        "seconds_waited": activity.waited_s,
        "seconds_launching": activity.launching_s,
    }


def _measured(accounting: Accounting, pid: int | None, counts: Mapping[Count, int]) -> dict[str, Any]:
    """The fields of `Measured`, for a process or for all: each counter is from usage or from the daemon's counts."""
    account = accounting.all if pid is None else accounting.of(pid)
    history = account.history
    usage = {**msgspec.structs.asdict(account.usage), "worked_s": account.worked_s}
    return {
        "usage_source": accounting.source_name,
        "share_1s": mean_of_last(history, 1),
        "share_60s": round(mean_of_last(history, 60), 4),
        "history": history,
        "turns_per_s": round(account.turns_per_s, 1),
        **{
            name: round(usage[of] if of in usage else min(counts.get(Count(of), 0), _MOST), 6)
            for name, of in _COUNTERS.items()
        },
    }


def _made(managed: ManagedTask, made_by: MadeBy) -> dict[str, Any]:
    groups = [(context.client, group) for context in managed.contexts.values() for group in context.groups]
    made = made_by(managed.task.key.pid, groups)
    return {} if made is None else {f"kernel_{name}": number for name, number in msgspec.structs.asdict(made).items()}


def _view(
    managed: ManagedTask,
    task: Task,
    share: Share,
    why: str,
    scheduler: Scheduler,
    way: GivingWay | None,
    census: MemoryCensus,
    room: int,
    made: Mapping[str, Any],
) -> TaskView:
    refused = 0 if managed.root is None else managed.root.quota.refused(task.key.gpu)
    contexts = managed.contexts.values()
    inside = _inside(managed)
    p99_s = managed.tail.p99_s(time.monotonic())
    length_s = None if way is None else way.requests_s.get(task.key)
    cap = inside.cap if task.cap is None else task.cap.fraction
    together = pids_together(managed, scheduler, census)
    sms = NO_SMS if together is None else sms_of(managed)
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
        p99_us=None if p99_s is None else p99_s * 1e6,
        segment=task.segment,
        timeslice_us=share.timeslice_us,
        timeslice_set_us=task.timeslice_us,
        enabled=share.enabled,
        suspended=task.suspended,
        policy=scheduler.policy_name,
        rule=managed.rule,
        why=why,
        memory_bytes=census.by_pid(task.key.gpu).get(task.key.pid, None if inside.use is None else inside.use.total),
        groups=sum(len(context.groups) for context in contexts),
        channels=sum(context.channels for context in contexts),
        corrections=managed.counts[Count.SLICES_PUT_BACK],
        discovery_ms=round(managed.discovery_ms, 3),
        attach_ms=round(managed.attach_ms, 3),
        memory_limit_bytes=inside.limit,
        memory_overhead_bytes=None if inside.use is None else inside.use.overhead,
        enforcement=inside.enforcement,
        cap_by=_cap_by(managed, inside),
        reached_by=managed.reached_by,
        together=together or [],
        shares="time" if together is None else "SMs",
        sms=sms.number,
        sms_percent=sms.percent,
        controls=dict(managed.controls),
        command_line=managed.command_line.encode()[:room].decode(errors="ignore"),
        cgroup=managed.cgroup,
        container=managed.container,
        labels=dict(managed.labels),
        request_us=None if length_s is None else round(length_s * 1e6, 1),
        room_ms=None if managed.room_ms is None else round(managed.room_ms, 3),
        clients=client_views(managed),
        **_told(managed),
        **made,
        **_measured(scheduler.accounting, task.key.pid, {**managed.counts, Count.MEMORY_REFUSALS: refused}),
    )


_CAPPING = Enforced.CAP | Enforced.QUERIES
"""A library that hooks queries hooks launches, too, but says so only after it has delayed one."""


class _Inside(msgspec.Struct, frozen=True):
    """What a region tells of a process that shares it."""

    limit: int | None = None
    use: Use | None = None
    enforcement: str = ""
    cap: float | None = None


def _inside(managed: ManagedTask) -> _Inside:
    key, root = managed.task.key, managed.root
    if root is None:
        return _Inside()
    limit = root.quota.limit_on(key.gpu)
    if (shared := managed.shared_memory) is not None:
        own = root.quota.own_limit
        limit = shared if own is None else min(shared, own)
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
