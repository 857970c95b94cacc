"""Single operations in a trace: the clients of a program beside each other."""

from __future__ import annotations

import time
from collections.abc import Sequence

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

from runlist.operations_log import Log, Operation
from runlist.trace.writer import TraceWriter

_NAME_LENGTH = 120
_CLASSES = {1: "compute", 2: "memory"}
_KINDS = {0: "kernel", 1: "graph", 2: "copy", 3: "fill", 4: "event"}


def add_tracks(trace: TraceWriter, log: Log, process: str) -> int:
    """Tracks of a log's clients beside each other, by the trace's clock; how many clients there are.

    An operation is shown from when the one before it of the same client had ended, or it was given to the driver,
    whichever is later: what is queued on the GPU behind another does not run yet. Of clients with several streams that
    is a simplification.
    """
    ahead_ns = time.clock_gettime_ns(time.CLOCK_REALTIME) - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    group = trace.track(f"operations of {process}")
    clients = sorted({one.client for one in log.operations})
    for client in clients:
        who = "high priority" if client == 0 else "best effort"
        track = trace.track(f"client {client}, {who}", group)
        mine = [one for one in log.operations if one.client == client]
        last_ns = 0
        for one in sorted((one for one in mine if one.done_ns), key=lambda one: (one.done_ns, one.launched_ns)):
            began_ns = max(one.launched_ns, last_ns)
            last_ns = max(began_ns, one.done_ns)
            trace.event(track, proto.TrackEvent.TYPE_SLICE_BEGIN, began_ns + ahead_ns, name=_shown(one))
            trace.event(track, proto.TrackEvent.TYPE_SLICE_END, last_ns + ahead_ns)
        if client != 0:
            _waiting(trace, group, client, mine, ahead_ns)
    if log.lost:
        at = max((one.called_ns for one in log.operations), default=0) + ahead_ns
        trace.event(group, proto.TrackEvent.TYPE_INSTANT, at, name=f"{log.lost} operations lost")
    return len(clients)


def _waiting(trace: TraceWriter, group: int, client: int, operations: Sequence[Operation], ahead_ns: int) -> None:
    """How many operations of a client were called, and not yet given to the driver."""
    steps = sorted(step for one in operations for step in ((one.called_ns, 1), (one.launched_ns, -1)))
    counter = proto.CounterDescriptor(unit_name="operations")
    track = trace.track(f"client {client}, waiting", group, counter=counter)
    count = 0
    for at, step in steps:
        count += step
        trace.event(track, proto.TrackEvent.TYPE_COUNTER, at + ahead_ns, counter_value=count)


def _shown(one: Operation) -> str:
    name = one.name[:_NAME_LENGTH] or _KINDS.get(one.kind, "operation")
    notes = ", ".join(filter(None, (_CLASSES.get(one.operation_class, ""), f"{one.sms} SMs" if one.sms else "")))
    return f"{name} ({notes})" if notes else name
