"""Tenants' messages on their way to the scheduler: segments, latencies of requests, hints."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from runlist.daemon.gpu.scheduler import Scheduler
from runlist.daemon.requests.messages import Answer, Effect, Kind, TenantMessage
from runlist.daemon.tasks.managed import ManagedTask
from runlist.model import Hint, Report, Segment, TaskKey


def hear(tasks: Mapping[Scheduler, ManagedTask], message: TenantMessage, answer: Answer) -> None:
    """Take one message of a process with these tasks; `answer` gets the effect of a segment that begins, and again
    whenever that changes.
    """
    begins = message.kind is Kind.SEGMENT_BEGIN
    effect = _Effect((managed.task.key for managed in tasks.values()), answer) if begins else None
    for scheduler, managed in tasks.items():
        key = managed.task.key
        match message.kind:
            case Kind.SEGMENT_BEGIN | Kind.SEGMENT_END:
                priority = message.priority if begins else None
                managed.task = replace(managed.task, segment=priority)
                managed.on_segment = None if effect is None else effect.on(key)
                scheduler.tell(Segment(key, priority))
            case Kind.REPORT_LATENCY:
                seconds = message.nanoseconds / 1e9
                managed.tail.add(seconds, time.monotonic())
                scheduler.tell(Report(key, seconds))
            case Kind.WORK:
                scheduler.worked(key)
            case Kind.ANNOUNCE:
                scheduler.announced(key, message.nanoseconds / 1e9)
            case Kind.HINT:
                scheduler.tell(Hint(key, message.nanoseconds / 1e9))


class _Effect:
    """Tells the effect of a segment once it is known on all GPUs of the process, and again when it changes. In force is
    what is so on all of them.
    """

    def __init__(self, keys: Iterable[TaskKey], answer: Answer) -> None:
        self._in_force: dict[TaskKey, bool | None] = dict.fromkeys(keys)
        self._answer = answer
        self._told: bool | None = None

    def on(self, key: TaskKey) -> Callable[[bool], None]:
        """What takes the effect on the GPU of a task."""
        return partial(self._take, key)

    def _take(self, key: TaskKey, in_force: bool) -> None:
        self._in_force[key] = in_force
        if None in self._in_force.values():
            return
        everywhere = all(self._in_force.values())
        if everywhere is not self._told and self._answer(Effect.IN_FORCE if everywhere else Effect.NOT_IN_FORCE):
            self._told = everywhere  # else its queue is full: it is told after the next run
