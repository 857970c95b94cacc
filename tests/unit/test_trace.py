"""Traces, parsed again with Perfetto's own library."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path
from typing import Any

import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

from runlist.errors import NoTargetError, NotSupportedError, UsageError
from runlist.planes.interface import GpuInfo
from runlist.planes.nvidia import turns
from runlist.planes.nvidia.nvml import DeviceSample, NvmlError, ProcessSample
from runlist.planes.nvidia.plane import NvidiaPlane
from runlist.planes.usage import Residency
from runlist.trace import recorder
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
    monkeypatch.setattr(recorder, "_all_gpus", lambda plane: [GpuInfo(UUIDS[0], "NVIDIA H200", 1)])
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
    assert 0.25 <= time.monotonic() - start < 2
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


_GPUS = [GpuInfo("GPU-4e3db026-aaaa", "NVIDIA H200", 1), GpuInfo("GPU-4e3dffff-bbbb", "NVIDIA H200", 1)]


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
