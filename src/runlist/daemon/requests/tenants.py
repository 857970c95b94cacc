"""Tenants' messages on their way to the scheduler: segments, latencies of requests, hints."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from runlist.daemon.gpu.scheduler import Scheduler
from runlist.daemon.requests.messages import Kind, TenantMessage
from runlist.daemon.tasks.managed import ManagedTask
from runlist.model import Hint, Report, Segment


def hear(managed: ManagedTask, scheduler: Scheduler, message: TenantMessage, in_force: Callable[[], None]) -> None:
    """Take one message of a task; `in_force` is called once it has taken effect."""
    key = managed.task.key
    match message.kind:
        case Kind.SEGMENT_BEGIN | Kind.SEGMENT_END:
            priority = message.priority if message.kind is Kind.SEGMENT_BEGIN else None
            managed.task = replace(managed.task, segment=priority)
            scheduler.tell(Segment(key, priority), in_force)
        case Kind.REPORT_LATENCY:
            seconds = message.nanoseconds / 1e9
            managed.tail.add(seconds, time.monotonic())
            scheduler.tell(Report(key, seconds))
        case Kind.HINT:
            scheduler.tell(Hint(key, message.nanoseconds / 1e9))
