"""Residencies as a Perfetto trace: a group of tracks for each GPU, and in it a track for each process.

The trace is written as it grows, so that its length is not bound by memory. Times are CLOCK_REALTIME, with a snapshot
of the other clocks, so that the trace can be laid beside one of the CPU.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto
from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

from runlist.planes.usage import Residency

_CLOCKS = {
    proto.BUILTIN_CLOCK_REALTIME: time.CLOCK_REALTIME,
    proto.BUILTIN_CLOCK_MONOTONIC: time.CLOCK_MONOTONIC,
    proto.BUILTIN_CLOCK_BOOTTIME: time.CLOCK_BOOTTIME,
}
_ALL_ALONG = "all along: no switch was logged"
_LEAST_NS, _MOST_KNOWN = 1 << 56, 4096  # of times that have nine bytes in a trace: those since 1972
_ANY_NS = 0x5BAD_C0DE_FEED_FACE  # in place of a time; no text has its bytes
_NINE = struct.Struct("9B")
_SEQUENCE = 1  # all packets come from one writer


class TraceWriter:
    """A trace file under way. `name_of` gives the name of a process' track."""

    def __init__(self, file: IO[bytes], name_of: Callable[[int], str]) -> None:
        self._file = file
        self._builder = StreamingTraceProtoBuilder(file)
        self._known: dict[tuple[Any, ...], tuple[bytes, bytes]] = {}
        self._pieces: dict[tuple[int, str], tuple[bytes, bytes, bytes]] = {}
        self._name_of = name_of
        self._tracks = 0
        self._begin()

    def gpu(self, name: str, *, busy: bool) -> GpuTracks:
        """Add the tracks of a GPU; `busy` adds one for its utilisation."""
        return GpuTracks(self, name, busy)

    def process_name(self, pid: int) -> str:
        """The name of a process' track."""
        return self._name_of(pid)

    def track(self, name: str, parent: int = 0, **fields: Any) -> int:
        """Add a track; its number."""
        self._tracks += 1
        packet = self._packet()
        packet.track_descriptor.uuid = self._tracks
        packet.track_descriptor.name = _plain(name)
        if parent:
            packet.track_descriptor.parent_uuid = parent
        for key, value in fields.items():
            getattr(packet.track_descriptor, key).CopyFrom(value)
        self._builder.write_packet(packet)
        return self._tracks

    def event(self, track: int, kind: int, time_ns: int, **fields: Any) -> None:
        """Add an event to a track."""
        if time_ns < _LEAST_NS:
            self._builder.write_packet(self._event(track, kind, time_ns, fields))
        else:
            before, behind = self._around(track, kind, **fields)
            self._file.write(before + _varint(time_ns) + behind)

    def piece(self, track: int, start_ns: int, end_ns: int, name: str) -> None:
        """Add a slice to a track: its beginning and its end."""
        if start_ns < _LEAST_NS:
            self.event(track, proto.TrackEvent.TYPE_SLICE_BEGIN, start_ns, name=name)
            self.event(track, proto.TrackEvent.TYPE_SLICE_END, end_ns)
            return
        if (known := self._pieces.get((track, name))) is None:
            before, behind = self._around(track, proto.TrackEvent.TYPE_SLICE_BEGIN, name=name)
            between, last = self._around(track, proto.TrackEvent.TYPE_SLICE_END)
            if len(self._pieces) >= _MOST_KNOWN:
                self._pieces.clear()
            known = self._pieces[track, name] = before, behind + between, last
        self._file.write(known[0] + _varint(start_ns) + known[1] + _varint(end_ns) + known[2])

    def _around(self, track: int, kind: int, **fields: Any) -> tuple[bytes, bytes]:
        """What is before and behind the time of an event: millions differ in nothing else."""
        which = (track, kind, *fields.items())
        if (known := self._known.get(which)) is None:
            packet = self._event(track, kind, _ANY_NS, fields)
            before, _, behind = proto.Trace(packet=[packet]).SerializeToString().partition(_varint(_ANY_NS))
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[which] = before, behind
        return known

    def _event(self, track: int, kind: int, time_ns: int, fields: Mapping[str, Any]) -> Any:
        packet = self._packet()
        packet.timestamp = time_ns
        event = packet.track_event
        event.track_uuid = track
        event.type = kind
        for key, value in fields.items():
            setattr(event, key, _plain(value) if isinstance(value, str) else value)
        return packet

    def _begin(self) -> None:
        packet = self._packet()
        packet.sequence_flags = proto.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        packet.trace_packet_defaults.timestamp_clock_id = proto.BUILTIN_CLOCK_REALTIME
        self._builder.write_packet(packet)
        packet = self._packet()
        packet.clock_snapshot.primary_trace_clock = proto.BUILTIN_CLOCK_REALTIME
        for number, clock in _CLOCKS.items():
            packet.clock_snapshot.clocks.add(clock_id=number, timestamp=time.clock_gettime_ns(clock))
        self._builder.write_packet(packet)

    def _packet(self) -> Any:
        packet = self._builder.create_packet()
        packet.trusted_packet_sequence_id = _SEQUENCE
        return packet


class GpuTracks:
    """The tracks of one GPU in a trace."""

    def __init__(self, trace: TraceWriter, name: str, busy: bool) -> None:
        self._trace = trace
        self._gpu = trace.track(name)
        self._busy = trace.track("busy", self._gpu, counter=proto.CounterDescriptor(unit_name="%")) if busy else 0
        self._processes: dict[int, int] = {}
        self._open: Residency | None = None  # its beginning is written, its end is not
        self.residencies = 0

    @property
    def processes(self) -> int:
        """How many processes held the GPU."""
        return len(self._processes)

    def add(self, parts: Iterable[Residency]) -> None:
        """Add residencies, in order; parts that join become one slice."""
        for part in parts:
            before = self._open
            if before and (before.pid, before.context, before.end_ns) == (part.pid, part.context, part.start_ns):
                self._open = before._replace(end_ns=part.end_ns)
                continue
            self.end()
            name = f"context {part.context:#x}" if part.context else _ALL_ALONG
            self._trace.event(self._track(part.pid), proto.TrackEvent.TYPE_SLICE_BEGIN, part.start_ns, name=name)
            self._open = part
            self.residencies += 1

    def lost(self, count: int, time_ns: int) -> None:
        """Mark that records were lost before `time_ns`."""
        self._trace.event(self._gpu, proto.TrackEvent.TYPE_INSTANT, time_ns, name=f"{count} records lost")

    def busy(self, percent: int, time_ns: int) -> None:
        """Add a sample of the GPU's utilisation."""
        self._trace.event(self._busy, proto.TrackEvent.TYPE_COUNTER, time_ns, counter_value=percent)

    def end(self) -> None:
        """End the slice that is open."""
        if self._open is not None:
            track = self._track(self._open.pid)
            self._trace.event(track, proto.TrackEvent.TYPE_SLICE_END, self._open.end_ns)
            self._open = None

    def _track(self, pid: int) -> int:
        if pid not in self._processes:
            self._processes[pid] = self._trace.track(self._trace.process_name(pid), self._gpu)
        return self._processes[pid]


def _varint(number: int) -> bytes:
    """A number from _LEAST_NS on, as a trace has it: seven bits in each byte, the lowest first."""
    return _NINE.pack(
        number & 127 | 128, number >> 7 & 127 | 128, number >> 14 & 127 | 128, number >> 21 & 127 | 128,
        number >> 28 & 127 | 128, number >> 35 & 127 | 128, number >> 42 & 127 | 128, number >> 49 & 127 | 128,
        number >> 56,
    )  # fmt: skip


def _plain(text: str) -> str:
    """Names of files and kernels may have bytes that are no text."""
    return text.encode("utf-8", "replace").decode()
