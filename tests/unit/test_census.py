"""What the daemon knows of the GPUs' memory, and how often it asks."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runlist.daemon.memory import census
from runlist.daemon.memory.census import MemoryCensus
from runlist.planes.interface import CensusError, GpuInfo
from tests.fixtures.fake_rm import UUIDS

GPU = UUIDS[0]


class FakeCensus:
    """Counts what it is asked."""

    def __init__(self) -> None:
        self.held: dict[str, dict[int, int]] = {GPU: {7: 3 << 30}, "GPU-2": {8: 1 << 20}}
        self.asked = self.opened = self.open = 0
        self.error: CensusError | None = None
        self.beside = 0
        self.limits: list[tuple[str, Path, int | None]] = []

    def __call__(self) -> Any:
        self.opened += 1
        self._fail()
        self.open += 1
        return self

    def close(self) -> None:
        self.open -= 1

    def memory(self, gpu: str) -> dict[int, int]:
        self.asked += 1
        self._fail()
        return dict(self.held[gpu])

    def used(self, gpu: str) -> int:
        self._fail()
        return sum(self.held[gpu].values()) + self.beside

    def gpus(self) -> list[GpuInfo]:
        self._fail()
        return [GpuInfo(GPU, "H200", 140 << 30, 0), GpuInfo("GPU-2", "H200", 80 << 30, 1)]

    def mps_clients(self, gpu: str) -> set[int]:
        self._fail()
        return set(self.held[gpu])

    def limits_memory(self, cgroup: Path) -> bool:
        self._fail()
        return cgroup == Path("/good")

    def limit_memory(self, gpu: str, cgroup: Path, limit: int | None) -> None:
        self._fail()
        self.limits.append((gpu, cgroup, limit))

    def pids(self) -> set[int]:
        self._fail()
        return {pid for held in self.held.values() for pid in held}

    def _fail(self) -> None:
        if self.error is not None:
            raise self.error


@pytest.fixture
def fake() -> FakeCensus:
    return FakeCensus()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(census, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_memory_is_asked_for_now_and_then(fake: FakeCensus, clock: SimpleNamespace) -> None:
    memory = MemoryCensus(fake)
    assert fake.opened == 0  # nobody wanted to know
    assert memory.by_pid(GPU) == {7: 3 << 30}
    fake.held[GPU] = {}
    clock.now += 0.5
    assert memory.by_pid(GPU) == {7: 3 << 30}
    assert memory.by_pid("GPU-2") == {8: 1 << 20}
    assert fake.asked == 2
    clock.now += 10
    assert memory.by_pid(GPU) == {}
    assert memory.pids() == {8}
    assert (fake.opened, fake.open) == (1, 1)
    memory.close()
    assert fake.open == 0


def test_who_waits_for_a_look_shares_the_next_one(fake: FakeCensus) -> None:
    """Each sees what was there when it asked, and one user's hundreds of requests keep no other one's waiting."""

    async def test() -> None:
        memory = MemoryCensus(fake)
        begins, goes_on = threading.Event(), threading.Event()
        ask = fake.memory

        def slow(gpu: str) -> dict[int, int]:
            held = ask(gpu)
            begins.set()
            goes_on.wait(60)
            return held

        fake.memory = slow  # type: ignore[method-assign]
        first = asyncio.create_task(memory.refresh())
        await asyncio.to_thread(begins.wait, 20)
        fake.held[GPU] = {9: 1 << 20}
        many = [asyncio.create_task(memory.refresh()) for _ in range(100)]
        await asyncio.sleep(0)
        goes_on.set()
        await asyncio.gather(first, *many)
        assert memory.by_pid(GPU) == {9: 1 << 20}
        assert fake.asked == 4  # two of each GPU
        await memory.refresh()
        assert fake.asked == 6
        await memory.refresh(60)
        assert fake.asked == 6
        memory.close()

    asyncio.run(test())


def test_without_a_census_nothing_is_known_and_nothing_fails(fake: FakeCensus, clock: SimpleNamespace) -> None:
    fake.error = CensusError("no driver")
    memory = MemoryCensus(fake)
    for _ in range(3):
        assert memory.by_pid(GPU) == {}
        assert memory.pids() == set()
        clock.now += 10
    assert (fake.opened, fake.asked) == (1, 0)  # tried once
    memory.close()


def test_a_census_that_fails_later_is_asked_again(fake: FakeCensus, clock: SimpleNamespace) -> None:
    memory = MemoryCensus(fake)
    assert memory.by_pid(GPU)
    fake.error = CensusError("unknown error")
    clock.now += 10
    assert memory.by_pid(GPU) == {}
    assert memory.pids() == set()
    fake.error = None
    clock.now += 10
    assert memory.by_pid(GPU) == {7: 3 << 30}


def test_clients_of_an_mps_server_are_asked_for_now_and_then(fake: FakeCensus, clock: SimpleNamespace) -> None:
    memory = MemoryCensus(fake)
    assert [memory.mps_clients(gpu) for gpu in (GPU, "GPU-2", GPU)] == [{7}, {8}, {7}]
    assert fake.asked == 2
    fake.held[GPU] = {9: 1}
    assert memory.mps_clients(GPU) == {7}
    asyncio.run(memory.refresh())
    assert memory.mps_clients(GPU) == {9}
    clock.now += 10
    fake.error = CensusError("unknown error")
    assert memory.mps_clients(GPU) == set()


def test_limits_of_the_driver_are_passed_on_where_there_is_a_census(fake: FakeCensus) -> None:
    memory = MemoryCensus(fake)
    with pytest.raises(CensusError, match="no census"):
        memory.limit(GPU, Path("/good"), 1)
    assert [memory.limits_supported(Path(name)) for name in ("/good", "/bad")] == [True, False]
    memory.limit(GPU, Path("/good"), 1 << 30)
    assert fake.limits == [(GPU, Path("/good"), 1 << 30)]
    assert (memory.gpus(), memory.size_of("GPU-2"), memory.size_of("GPU-3")) == ([GPU, "GPU-2"], 80 << 30, None)
    fake.error = CensusError("unknown error")
    assert not memory.limits_supported(Path("/good"))


def test_what_was_asked_anew_is_told_at_once(fake: FakeCensus, clock: SimpleNamespace) -> None:
    memory = MemoryCensus(fake)
    assert memory.by_pid(GPU) == {7: 3 << 30}
    fake.held[GPU] = {9: 1}
    asyncio.run(memory.refresh())
    assert (memory.by_pid(GPU), memory.by_pid("GPU-2")) == ({9: 1}, {8: 1 << 20})
    memory.close()


def test_who_lives_is_asked_with_each_look_and_not_with_each_question(
    fake: FakeCensus, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def start(pid: int) -> int | None:
        asked.append(pid)
        if pid == 9:
            raise OSError(errno.EMFILE, "Too many open files")
        return None if pid == 8 else 1

    monkeypatch.setattr("runlist.daemon.memory.census.start_of", start)
    memory = MemoryCensus(fake)
    fake.held[GPU], fake.beside = {7: 3 << 30, 8: 5 << 20, 9: 1 << 20}, 7 << 20
    assert [memory.unowned(GPU) for _ in range(100)] == [12 << 20] * 100
    assert asked == [7, 8, 9]
    asyncio.run(memory.refresh())
    assert asked[3:6] == [7, 8, 9]
    memory.close()


def test_memory_that_no_living_process_holds_is_nobodys(fake: FakeCensus, clock: SimpleNamespace) -> None:
    memory = MemoryCensus(fake)
    living, gone = os.getpid(), 1 << 30  # no process id is that large
    fake.held[GPU], fake.beside = {living: 3 << 30, gone: 5 << 20}, 7 << 20
    assert (memory.unowned(GPU), memory.answers(GPU)) == (12 << 20, True)
    memory.heirs = {gone: living}  # it keeps what the other had
    assert memory.by_pid(GPU) == {living: (3 << 30) + (5 << 20)}
    assert memory.listed(GPU) == {living: 3 << 30, gone: 5 << 20}
    assert memory.unowned(GPU) == 7 << 20
    fake.beside = -(1 << 20)  # counted a moment apart
    asyncio.run(memory.refresh())
    assert memory.unowned(GPU) == 0
    fake.error = CensusError("unknown error")
    clock.now += 10
    assert (memory.unowned(GPU), memory.answers(GPU)) == (None, False)
