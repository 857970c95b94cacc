"""Who had a GPU on which nobody was switched while somebody listened, by NVML's samples."""

from __future__ import annotations

import os
from typing import Any

import pytest

from runlist.planes.nvidia import turns
from runlist.planes.nvidia.nvml import DeviceSample, NvmlError, ProcessSample
from runlist.planes.nvidia.turns import TurnLog
from runlist.planes.usage import Residency
from tests.fixtures.fake_rm import UUIDS
from tests.fixtures.switch_log import START, FakeLogDriver

BEGAN_NS = 1_700_000_000_000_000_000
SECOND_NS = 1_000_000_000


class World:
    """A log, and NVML's samples beside it: of processes, and of the whole GPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = BEGAN_NS
        self.processes_: list[ProcessSample] = []
        self.device_: list[DeviceSample] = []
        self.holders: dict[int, int] = {}
        self.silent = False
        self.closed = 0
        self.driver: Any = FakeLogDriver({0: UUIDS[0]}, records=1024)
        driver = self.driver
        driver.time_ns = lambda: self.now_ns
        self.producer = driver.producer
        monkeypatch.setattr("runlist.planes.nvidia.switch_log.time.monotonic_ns", lambda: self.now_ns)
        monkeypatch.setattr(turns, "Utilisation", self.opened)
        monkeypatch.setattr(turns, "memory_by_pid", lambda gpu: self.holders if gpu == UUIDS[0] else {})
        monkeypatch.setattr(turns, "owner_of", lambda pid: 1000 + pid)
        self.be(0, monkeypatch)
        self.log = TurnLog(driver, UUIDS[0])

    def opened(self, driver: object, gpu: object) -> World:
        assert (driver, gpu) == (self.driver, UUIDS[0])
        if self.silent:
            raise NvmlError("no")
        return self

    def be(self, user: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "geteuid", lambda: user)

    def _answer(self, found: list[Any], since_us: int) -> list[Any]:
        if self.silent:
            raise NvmlError("no")
        return [sample for sample in found if sample.end_us > since_us]

    def processes(self, since_us: int) -> list[ProcessSample]:
        return self._answer(self.processes_, since_us)

    def device(self, since_us: int) -> list[DeviceSample]:
        return self._answer(self.device_, since_us)

    def close(self) -> None:
        self.closed += 1

    def read(self) -> None:
        self.now_ns += SECOND_NS
        self.log.read()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def sample(pid: int, percent: int = 50, at_s: float = 0.5) -> ProcessSample:
    return ProcessSample(pid, BEGAN_NS // 1000 + int(1e6 * at_s), percent)


def test_the_one_that_had_work_had_it_all_the_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.processes_ = [sample(7), sample(8, percent=0), sample(9, at_s=-1.5)]
    assert world.log.unswitched() is None  # no time has passed
    world.read()
    assert world.log.unswitched() == Residency(7, 0, BEGAN_NS, BEGAN_NS + SECOND_NS)
    world.be(1007, monkeypatch)
    assert world.log.unswitched() == Residency(7, 0, BEGAN_NS, BEGAN_NS + SECOND_NS)
    world.be(1008, monkeypatch)
    assert world.log.unswitched() == Residency(0, 0, BEGAN_NS, BEGAN_NS + SECOND_NS), "another user's has no name"


def test_of_two_nobody_knows_whose_it_was_nor_of_none(world: World) -> None:
    world.read()
    assert world.log.unswitched() is None
    world.processes_ = [sample(7), sample(8)]
    assert world.log.unswitched() is None
    world.processes_ = [sample(7)]
    world.silent = True
    assert world.log.unswitched() is None


def test_in_a_short_trace_it_is_the_one_with_memory_if_there_was_work(world: World) -> None:
    world.holders = {7: 1}
    world.read()
    assert world.log.busy() == []
    assert world.log.unswitched() is None
    world.device_ = [DeviceSample(BEGAN_NS // 1000 + 200_000, 0), DeviceSample(BEGAN_NS // 1000 + 400_000, 30)]
    assert world.log.busy() == [(BEGAN_NS + 200_000_000, 0), (BEGAN_NS + 400_000_000, 30)]
    assert world.log.busy() == [], "each is told once"
    assert world.log.unswitched() == Residency(7, 0, BEGAN_NS, BEGAN_NS + SECOND_NS)
    world.holders = {7: 1, 8: 1}
    assert world.log.unswitched() is None


def test_where_somebody_was_switched_the_log_tells_it(world: World) -> None:
    world.processes_ = [sample(7)]
    world.producer.write(START, 7, 1, BEGAN_NS + 1000)
    world.read()
    assert world.log.unswitched() is None
    world.silent = True
    assert world.log.busy() == []
    assert world.log.samples_busy
    world.log.close()
    assert (world.closed, [file.closed for file in world.driver.files]) == (1, [1])


def test_without_nvml_nobody_knows_more_than_the_log(world: World) -> None:
    world.silent = True
    log = TurnLog(world.driver, UUIDS[0])
    world.now_ns += SECOND_NS
    log.read()
    assert (log.samples_busy, log.busy(), log.unswitched()) == (False, [], None)
    log.close()
    assert world.closed == 0
