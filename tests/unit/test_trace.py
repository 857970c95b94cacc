"""Traces, parsed again with Perfetto's own library."""

from __future__ import annotations

import io
import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

from runlist import operations_log
from runlist.errors import NoTargetError, NotSupportedError, UsageError
from runlist.operations_log import Operation
from runlist.planes.interface import GpuInfo
from runlist.planes.nvidia import turns
from runlist.planes.nvidia.nvml import DeviceSample, NvmlError, ProcessSample
from runlist.planes.nvidia.plane import NvidiaPlane
from runlist.planes.usage import Reading, Residency
from runlist.trace import recorder, writer
from runlist.trace.operations import add_tracks
from runlist.trace.recorder import choose_gpus, process_name, record
from runlist.trace.writer import TraceWriter
from tests.fixtures.fake_rm import UUIDS
from tests.fixtures.switch_log import END, START, FakeLogDriver
from tests.fixtures.trace import Parsed


def _written(*readings: list[Residency], busy: bool = False) -> tuple[Parsed, Any]:
    file = io.BytesIO()
    tracks = TraceWriter(file, lambda pid: f"program {pid}").gpu("GPU 0 NVIDIA H200", busy=busy)
    for parts in readings:
        tracks.add(parts)
    if busy:
        tracks.busy(42, 1000)
    tracks.lost(5, 3000)
    tracks.end()
    return Parsed(file.getvalue()), tracks


def test_a_gpu_is_a_group_of_tracks_with_one_for_each_process() -> None:
    parsed, tracks = _written([Residency(7, 1, 100, 200), Residency(8, 2, 300, 400), Residency(7, 1, 500, 600)])
    assert parsed.names == ["GPU 0 NVIDIA H200", "program 7", "program 8"]
    assert {parsed.parent(name) for name in ("program 7", "program 8")} == {"GPU 0 NVIDIA H200"}
    assert parsed.slices == {
        "program 7": [("context 0x1", 100, 200), ("context 0x1", 500, 600)],
        "program 8": [("context 0x2", 300, 400)],
    }
    assert (tracks.processes, tracks.residencies) == (2, 3)


def test_parts_that_join_are_one_slice() -> None:
    parsed, tracks = _written(
        [Residency(7, 1, 100, 200)],
        [],
        [Residency(7, 1, 200, 300), Residency(7, 2, 300, 350)],
        [Residency(7, 2, 360, 370)],
    )  # fmt: skip
    assert parsed.slices == {
        "program 7": [("context 0x1", 100, 300), ("context 0x2", 300, 350), ("context 0x2", 360, 370)]
    }
    assert tracks.residencies == 3


def test_an_empty_trace_is_a_trace() -> None:
    assert _written()[0].slices == {}


def test_utilisation_and_losses() -> None:
    parsed, _ = _written([Residency(7, 1, 100, 200)], busy=True)
    assert parsed.names == ["GPU 0 NVIDIA H200", "busy", "program 7"]
    assert parsed.counters == {"busy": [(1000, 42)]}
    assert parsed.instants == {"GPU 0 NVIDIA H200": [("5 records lost", 3000)]}


def test_times_are_of_the_real_time_clock_and_can_be_related_to_others() -> None:
    parsed, _ = _written([Residency(7, 1, 100, 200)])
    (snapshot,) = [packet.clock_snapshot for packet in parsed.packets if packet.HasField("clock_snapshot")]
    assert {clock.clock_id for clock in snapshot.clocks} == {
        proto.BUILTIN_CLOCK_REALTIME, proto.BUILTIN_CLOCK_MONOTONIC, proto.BUILTIN_CLOCK_BOOTTIME
    }  # fmt: skip
    assert parsed.packets[0].trace_packet_defaults.timestamp_clock_id == proto.BUILTIN_CLOCK_REALTIME
    assert len({packet.trusted_packet_sequence_id for packet in parsed.packets}) == 1


# -- operations ----------------------------------------------------------------------------------


def an_operation(client: int, called: int, launched: int, done: int, name: str = "gemm", **more: int) -> Operation:
    fields = {"kind": 1, "operation_class": 1, "sms": 66, **more}
    return Operation(client, **fields, called_ns=called, launched_ns=launched, done_ns=done, name=name)


def a_log(path: Path, *written: Operation, lost: int = 0) -> Path:
    """The log of a program."""
    with path.open("w") as file:
        operations_log.write_head(file, 7)
        operations_log.write(file, written, lost)
    return path


def test_a_log_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = [an_operation(0, 10, 20, 30), an_operation(1, 11, 50, 0, name='a "name"\n', operation_class=2)]
    log = operations_log.read(a_log(tmp_path / "log", *written, lost=3))
    assert (log.pid, list(log.operations), log.lost) == (7, written, 3)


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    path = a_log(tmp_path / "log", an_operation(0, 10, 20, 30))
    with path.open("a") as file:
        file.write('{"client": 1, "ki')
    assert len(operations_log.read(path).operations) == 1


_OF_CLIENT_16 = """{"runlist_operations": 1, "pid": 1}
{"client": 16, "kind": 0, "operation_class": 0, "sms": 0, "called_ns": 1, "launched_ns": 1, "done_ns": 1}
"""
"""There are sixteen: each has tracks of its own."""


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("", "line 1"), ("\n", "line 1"), ("{}\n", "no log"), ('{"runlist_operations": 2, "pid": 1}\n', "no log"),
        ('{"runlist_operations": 1}\n', "no log"), ("[" * 100_000 + "\n", "line 1"),
        ('{"runlist_operations": 1, "pid": 1}\n{"client": 0}\n', "line 2: kind is not"),
        (_OF_CLIENT_16, "line 2: client is not"),
        ('{"runlist_operations": 1, "pid": 1}\n{"lost": -1}\n', "line 2: client"),
        ('{"runlist_operations": 1, "pid": 1}\n7\n', "line 2 is no operation"),
    ],
)  # fmt: skip
def test_what_is_no_log_is_one_line(lines: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(lines)
    with pytest.raises(UsageError, match=said):
        operations_log.read(path)
    with pytest.raises(UsageError, match="No such file"):
        operations_log.read(tmp_path / "gone")


def test_a_log_that_is_none_or_too_long_keeps_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "fifo")  # nobody writes
    with pytest.raises(UsageError, match="no file: name a log of operations"):
        operations_log.read(tmp_path / "fifo")
    monkeypatch.setattr(operations_log, "MOST_BYTES", 8)
    with pytest.raises(UsageError, match="write a shorter log"):
        operations_log.read(a_log(tmp_path / "log", an_operation(0, 10, 20, 30)))


def test_clients_are_beside_each_other_by_the_clock_of_the_trace(tmp_path: Path) -> None:
    """Queued behind one another: no operation runs before the one ahead of it of the same client has ended."""
    now = time.monotonic_ns()
    before = time.time_ns() - time.monotonic_ns()
    path = a_log(
        tmp_path / "log",
        an_operation(0, now, now, now + 1000, "attention"), an_operation(0, now + 10, now + 10, now + 1500, "", sms=0),
        an_operation(1, now + 20, now + 1600, now + 9000, "adam \ud800", operation_class=2),
        an_operation(1, now + 30, now + 1700, 0),
        lost=2,
    )  # fmt: skip
    file = io.BytesIO()
    trace = TraceWriter(file, str)
    assert add_tracks(trace, operations_log.read(path), "train.py [7]") == 2
    parsed = Parsed(file.getvalue())
    group, urgent, other, waiting = parsed.names
    assert (group, urgent, other) == ("operations of train.py [7]", "client 0, high priority", "client 1, best effort")
    assert {parsed.parent(name) for name in (urgent, other, waiting)} == {group}
    first, second = parsed.slices[urgent]
    assert (first[0], second[0]) == ("attention (compute, 66 SMs)", "graph (compute)")
    assert first[2] - first[1] == 1000
    assert (second[1], second[2] - second[1]) == (first[2], 500)
    ((name, began, ended),) = parsed.slices[other]  # the one that nobody saw end is not shown to run
    assert (name, began - first[1], ended - began) == ("adam ? (memory, 66 SMs)", 1600, 7400)
    assert [count for _, count in parsed.counters[waiting]] == [1, 2, 1, 0]
    assert parsed.instants[group][0][0] == "2 operations lost"
    assert abs(first[1] - (now + before)) < 1e9  # the clock of the trace is that of the day


def test_events_of_our_days_are_written_as_perfetto_writes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they have in common is kept, and only the time is new: to the byte it is the same."""
    monkeypatch.setattr(writer, "_MOST_KNOWN", 2)
    now = 1_764_261_000_123_456_789

    def bytes_of(write: Callable[[TraceWriter, int], None]) -> bytes:
        file = io.BytesIO()
        trace = TraceWriter(file, str)
        before = file.tell()
        write(trace, trace.track("a thread"))
        return file.getvalue()[before:]

    def written(trace: TraceWriter, track: int) -> None:
        for time_ns in (0, (1 << 56) - 1, 1 << 56, now, now + 1, (1 << 63) - 6):
            trace.event(track, proto.TrackEvent.TYPE_COUNTER, time_ns, counter_value=42)
            for name in ("one", "\udc80 is no text", "one"):
                trace.event(track, proto.TrackEvent.TYPE_INSTANT, time_ns, name=name)
                trace.piece(track, time_ns, time_ns + 5, name)

    def expected(trace: TraceWriter, track: int) -> None:
        monkeypatch.setattr(writer, "_LEAST_NS", 1 << 64)
        written(trace, track)
        monkeypatch.undo()

    assert bytes_of(written) == bytes_of(expected)


# -- recording -----------------------------------------------------------------------------------


class _Busy:
    def __init__(self, *_: object) -> None:
        self.samples = [DeviceSample(time.time_ns() // 1000 + 1, 50)]

    def device(self, since_us: int) -> list[DeviceSample]:
        return [sample for sample in self.samples if sample.end_us > since_us]

    def processes(self, since_us: int) -> list[ProcessSample]:
        return []

    def close(self) -> None:
        pass


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeLogDriver:
    monkeypatch.setattr(recorder, "_all_gpus", lambda plane: [GpuInfo(UUIDS[0], "NVIDIA H200", 1, 0)])
    monkeypatch.setattr(turns, "Utilisation", _Busy)
    return FakeLogDriver({0: UUIDS[0]}, records=16384)


def test_a_recording_of_one_gpu(driver: FakeLogDriver, tmp_path: Path) -> None:
    def wait(seconds: float) -> bool:
        now = time.time_ns()
        driver.producer.write(START, os.getpid(), 1, now)
        driver.producer.write(END, os.getpid(), 1, now + 1000)
        driver.producer.drop(4)
        driver.producer.write(START, 0, 0, now + 2000)
        driver.producer.write(END, 0, 0, now + 3000)
        return True

    recorded = record(NvidiaPlane(driver), tmp_path / "x.pftrace", None, None, wait)
    assert (recorded.gpus, recorded.processes, recorded.residencies, recorded.lost) == (1, 2, 2, 4)
    parsed = Parsed((tmp_path / "x.pftrace").read_bytes())
    name = process_name(os.getpid())
    assert set(parsed.names) == {"GPU 0 NVIDIA H200", "busy", name, "another user's process"}
    assert [end - start for _, start, end in parsed.slices[name]] == [1000]
    assert parsed.counters["busy"][0][1] == 50
    assert driver.files[0].closed == 1


def test_a_recording_has_what_programs_wrote_of_their_operations(driver: FakeLogDriver, tmp_path: Path) -> None:
    log, out = a_log(tmp_path / "log", an_operation(0, 1, 2, 3)), tmp_path / "x.pftrace"

    def wait(seconds: float) -> bool:
        with log.open("a") as file:  # it goes on while we record
            operations_log.write(file, [an_operation(1, 4, 5, 6)], lost=2)
        return True

    recorded = record(NvidiaPlane(driver), out, None, None, wait, operations=[log])
    assert (recorded.operations, recorded.lost) == (2, 2)
    assert "client 1, best effort" in Parsed(out.read_bytes()).names


def test_what_is_no_log_is_told_before_anything_is_recorded(driver: FakeLogDriver, tmp_path: Path) -> None:
    out, other = tmp_path / "x.pftrace", tmp_path / "other"
    other.write_text("{}\n")
    with pytest.raises(UsageError, match="no log of operations"):
        record(NvidiaPlane(driver), out, None, None, lambda _: True, operations=[other])
    assert not out.exists()


@pytest.mark.parametrize(
    ("samples", "holders", "busy", "found"),
    [
        ({7: 50}, [], 0, 7), ({7: 50, 8: 0}, [8], 90, 7), ({7: 50, 8: 1}, [7], 90, None), ({7: 0}, [7], 0, None),
        ({}, [7], 90, 7), ({}, [7, 8], 90, None), ({}, [], 90, None),
    ],
)  # fmt: skip
def test_who_was_never_switched(
    driver: FakeLogDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    samples: dict[int, int], holders: list[int], busy: int, found: int | None,
) -> None:  # fmt: skip
    now = time.time_ns() // 1000 + 60_000_000
    made = [ProcessSample(pid, now, percent) for pid, percent in samples.items()]
    monkeypatch.setattr(_Busy, "processes", lambda self, since_us: made)
    monkeypatch.setattr(_Busy, "device", lambda self, since_us: [DeviceSample(now, busy)] if since_us < now else [])
    monkeypatch.setattr(turns, "memory_by_pid", lambda gpu: dict.fromkeys(holders, 1))
    monkeypatch.setattr(turns, "owner_of", lambda pid: os.geteuid())
    recorded = record(NvidiaPlane(driver), tmp_path / "x.pftrace", "0", 0.02, lambda left: bool(time.sleep(left)))
    assert (recorded.processes, recorded.residencies) == ((0, 0) if found is None else (1, 1))
    slices = Parsed((tmp_path / "x.pftrace").read_bytes()).slices
    assert list(slices) == ([] if found is None else [process_name(found)])


def test_a_log_with_a_record_or_a_loss_says_itself_who_held_the_gpu(
    driver: FakeLogDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Busy, "processes", lambda self, since_us: [ProcessSample(7, since_us + 1, 50)])

    def wait(seconds: float) -> bool:
        driver.producer.write(START, 8, 1, time.time_ns())
        driver.producer.write(END, 8, 1, time.time_ns() + 1000)
        return True

    assert record(NvidiaPlane(driver), tmp_path / "x.pftrace", None, None, wait).processes == 1
    assert list(Parsed((tmp_path / "x.pftrace").read_bytes()).slices) == [process_name(8)]


def test_a_recording_ends_after_its_seconds(driver: FakeLogDriver, tmp_path: Path) -> None:
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        time.sleep(seconds)
        return False

    start = time.monotonic()
    recorded = record(NvidiaPlane(driver), tmp_path / "x.pftrace", "0", 0.25, wait)
    assert recorded.residencies == 0
    assert time.monotonic() - start >= 0.25
    assert sum(waits) < 0.251
    assert max(waits) <= 0.1


def test_no_nvml_is_no_track_of_utilisation(
    driver: FakeLogDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object) -> None:
        raise NvmlError("none")

    monkeypatch.setattr(turns, "Utilisation", missing)
    record(NvidiaPlane(driver), tmp_path / "x.pftrace", None, 0.001, lambda seconds: True)
    assert Parsed((tmp_path / "x.pftrace").read_bytes()).names == ["GPU 0 NVIDIA H200"]


def test_a_file_that_cannot_be_written_is_one_line(driver: FakeLogDriver, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file or directory: name a file"):
        record(NvidiaPlane(driver), tmp_path / "none" / "x.pftrace", None, 0.001, lambda seconds: True)
    assert driver.files[0].closed == 1


def test_a_refused_log_writes_no_file(driver: FakeLogDriver, tmp_path: Path) -> None:
    driver.bind_status, driver.reason = 0x1B, 4
    with pytest.raises(NotSupportedError, match="only root may read it"):
        record(NvidiaPlane(driver), tmp_path / "x.pftrace", None, 0.001, lambda seconds: True)
    assert not list(tmp_path.iterdir())


_GPUS = [GpuInfo("GPU-4e3db026-aaaa", "NVIDIA H200", 1, 0), GpuInfo("GPU-4e3dffff-bbbb", "NVIDIA H200", 1, 1)]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [(None, [0, 1]), ("0", [0]), ("1", [1]), ("GPU-4e3db026-aaaa", [0]), ("4e3df", [1]), ("GPU-4e3df", [1])],
)
def test_gpus_by_index_and_uuid(wanted: str | None, found: list[int]) -> None:
    assert choose_gpus(_GPUS, wanted) == [(index, _GPUS[index]) for index in found]


@pytest.mark.parametrize(
    ("wanted", "line"),
    [("2", "no GPU '2'"), ("-1", "no GPU"), ("GPU-", "no GPU"), ("4e3", "no GPU"), ("4e3d", "more than one GPU '4e3d'"),
     ("", "no GPU")],
)  # fmt: skip
def test_gpus_that_are_not_there(wanted: str, line: str) -> None:
    with pytest.raises(NoTargetError, match=line):
        choose_gpus(_GPUS, wanted)


def test_a_machine_without_gpus() -> None:
    with pytest.raises(NoTargetError, match="there is no GPU"):
        choose_gpus([], None)


def test_names_of_processes() -> None:
    assert process_name(os.getpid()).startswith("python")
    assert process_name(os.getpid()).endswith(f"[{os.getpid()}]")
    assert len(process_name(os.getpid())) < 80
    assert process_name(2**22 + 5) == f"process [{2**22 + 5}]"
    assert process_name(0) == "another user's process"


def test_a_clock_of_the_gpu_that_drifts_is_followed() -> None:
    drift_s = itertools.count(step=1e-3)
    log = mock.Mock(read=lambda: Reading(time.monotonic() + next(drift_s)), busy=list)
    one = recorder._Log(mock.Mock(turn_log=lambda _: log), 0, GpuInfo("GPU-1", "H200", 1, 0))
    beside = mock.Mock()
    for _ in range(100):
        one.read_into(mock.Mock(), beside)
    first, *_, last = (call.args[2] for call in beside.hear.call_args_list)
    assert last - first > 50_000_000
