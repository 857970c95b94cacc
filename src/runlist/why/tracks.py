"""What was seen, as tracks of a trace for Perfetto, on the clock of the GPUs' tracks."""

from __future__ import annotations

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

from runlist.trace.writer import TraceWriter
from runlist.why.functions import Kind
from runlist.why.report import Analysis
from runlist.why.seen import Mode, Seen
from runlist.why.under_way import Call

_INSTANT = proto.TrackEvent.TYPE_INSTANT


def write(trace: TraceWriter, seen: Seen, analysis: Analysis, ahead_ns: int) -> None:
    """Add the tracks of a process. The clock of the trace is so far ahead of CLOCK_MONOTONIC."""

    def piece(track: int, start_ns: int, end_ns: int, name: str) -> None:
        trace.piece(track, start_ns + ahead_ns, end_ns + ahead_ns, name)

    process = trace.track(f"why: {seen.process(seen.pid) or seen.pid}")
    lanes: dict[int, int] = {}
    for request in analysis.requests:
        if request.lane not in lanes:
            lanes[request.lane] = trace.track(f"requests {len(lanes) + 1}", process)
        piece(lanes[request.lane], request.start_ns, request.end_ns, f"request: {request.length_ns / 1e6:.2f} ms")
    if seen.pauses:
        runlist = trace.track("Runlist", process)
        for pause in seen.pauses:
            piece(runlist, pause.start_ns, pause.end_ns, pause.why)
    made: dict[int, list[Call]] = {}
    for call in analysis.calls:
        made.setdefault(call.tid, []).append(call)
    for tid, thread in sorted(analysis.threads.items()):
        track = trace.track(f"thread {tid}", process)
        for span in thread.spans:
            if span.mode in (Mode.ASLEEP, Mode.TIMER):
                continue
            name = str(span.mode)
            if span.mode is Mode.WAITING and span.who.tid:
                name = f"{name}: {span.who}"
            elif span.about:
                name = f"{name}: {span.about}"
            piece(track, span.start_ns, span.end_ns, name)
        own = made.get(tid, [])
        if not own and not thread.interrupts:
            continue
        functions = trace.track(f"calls of thread {tid}", process)
        for call in own:
            if call.kind is Kind.WORK:
                name = f"{call.name} and {call.folded} after it" if call.folded else call.name
                trace.event(functions, _INSTANT, call.start_ns + ahead_ns, name=name)
            elif call.kind is Kind.MEMORY and call.result:
                piece(functions, call.start_ns, call.end_ns, f"{call.name}: refused ({call.result})")
            else:
                piece(functions, call.start_ns, call.end_ns, call.name)
        if thread.interrupts:
            interrupts = trace.track(f"interrupts of thread {tid}", process)
            for each in thread.interrupts:
                piece(interrupts, each.start_ns, each.end_ns, "interrupt")
