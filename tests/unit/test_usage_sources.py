"""The sources of usage with a fake device, and the choice among them."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from types import FrameType, SimpleNamespace
from typing import Any

import pynvml
import pytest
from structlog.testing import capture_logs

from runlist.daemon.gpu.book import BookUsage
from runlist.daemon.gpu.choice import open_source
from runlist.planes.nvidia import nvml
from runlist.planes.nvidia.nvml import DeviceSample, NvmlError, ProcessSample
from runlist.planes.nvidia.plane import NvidiaPlane
from runlist.planes.nvidia.rm.transport import NvidiaDriver
from runlist.planes.nvidia.usage import nvml as nvml_usage
from runlist.planes.nvidia.usage import switch_log
from runlist.planes.nvidia.usage.nvml import NvmlUsage
from runlist.planes.nvidia.usage.switch_log import SwitchLogUsage
from runlist.planes.usage import Reading
from tests.fixtures.fake_rm import UUIDS
from tests.fixtures.switch_log import END, START, FakeLogDriver

MS = 1_000_000


class FakeUtilisation:
    """NVML's part: samples that the test sets; fails once `error` is set."""

    def __init__(self, *_: object) -> None:
        self.of_processes: list[ProcessSample] = []
        self.of_device: list[DeviceSample] = []
        self.error: str | None = None
        self.asked: list[int] = []
        self.closed = 0

    def processes(self, since_us: int) -> list[ProcessSample]:
        return [sample for sample in self._answer(since_us, self.of_processes) if sample.end_us > since_us]

    def device(self, since_us: int) -> list[DeviceSample]:
        return [sample for sample in self._answer(since_us, self.of_device) if sample.end_us > since_us]

    def _answer(self, since_us: int, samples: list[Any]) -> list[Any]:
        self.asked.append(since_us)
        if self.error:
            raise NvmlError(self.error)
        return samples

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def utilisation(monkeypatch: pytest.MonkeyPatch) -> FakeUtilisation:
    fake = FakeUtilisation()
    for module in (switch_log, nvml_usage):
        monkeypatch.setattr(module, "Utilisation", lambda *_: fake)
    return fake


class Clock:
    """Seconds that the test moves, and may set."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now
        self.ahead = 0.0

    def __call__(self) -> float:
        return self.now + self.ahead

    def steady(self) -> float:
        return self.now


# -- the switch log ------------------------------------------------------------------------------


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeLogDriver:
    """A log whose clock, the GPU's and the machine's, is `driver.now_ns`."""
    driver = FakeLogDriver({0: UUIDS[0]}, records=16384)
    driver.now_ns = 1_700_000_000_000_000_000  # type: ignore[attr-defined]
    driver.time_ns = lambda: driver.now_ns  # type: ignore[attr-defined]
    monkeypatch.setattr("runlist.planes.nvidia.switch_log.time.monotonic_ns", lambda: driver.now_ns)  # type: ignore[attr-defined]
    return driver


def at_once(ask: Callable[[int], list[DeviceSample]], since_us: int) -> Future[list[DeviceSample]]:
    answer: Future[list[DeviceSample]] = Future()
    try:
        answer.set_result(ask(since_us))
    except NvmlError as error:
        answer.set_exception(error)
    return answer


def test_a_reading_does_not_wait_for_nvml(driver: Any, utilisation: FakeUtilisation) -> None:
    asked: list[Future[list[DeviceSample]]] = []

    def later(ask: Callable[[int], list[DeviceSample]], since_us: int) -> Future[list[DeviceSample]]:
        asked.append(Future())
        return asked[-1]

    source = SwitchLogUsage(driver, UUIDS[0], later)
    driver.producer.write(START, 7, 1, driver.now_ns)
    start_us = driver.now_ns // 1000
    for _ in range(4):
        driver.now_ns += 1000 * MS
        assert source.read().usage[7].idle_s == 0
    (answer,) = asked  # one question at a time
    answer.set_result([DeviceSample(start_us + at, 0) for at in range(200_000, 1_000_001, 200_000)])
    driver.now_ns += 10 * MS
    assert source.read().usage[7].idle_s == pytest.approx(1.0, abs=0.21)
    source.close()


def test_a_night_that_the_machine_slept_is_nobodys(driver: Any, utilisation: FakeUtilisation) -> None:
    source = SwitchLogUsage(driver, UUIDS[0], at_once)
    driver.producer.write(START, 7, 1, driver.now_ns)
    driver.now_ns += 100 * MS
    assert source.read().usage[7].held_s == pytest.approx(0.1)
    driver.time_ns = lambda: driver.now_ns + 8 * 3600 * 1000 * MS  # the machine's own clock did not go on meanwhile
    for _ in range(20):
        driver.now_ns += 100 * MS
        assert source.read().usage[7].held_s == pytest.approx(0.1)
    source.close()


def test_nvml_is_let_go_of_when_it_has_answered(driver: Any, utilisation: FakeUtilisation) -> None:
    """It answers in a thread, which uses it."""
    asked, go_on = threading.Event(), threading.Event()
    order: list[str] = []

    def slow(since_us: int) -> list[DeviceSample]:
        asked.set()
        go_on.wait(60)
        order.append("answered")
        return []

    utilisation.device = slow  # type: ignore[method-assign]
    utilisation.close = lambda: order.append("closed")  # type: ignore[method-assign]
    source = SwitchLogUsage(driver, UUIDS[0])
    driver.producer.write(START, 7, 1, driver.now_ns)
    driver.now_ns += 1000 * MS
    source.read()
    assert asked.wait(60)
    threading.Timer(0.02, go_on.set).start()
    source.close()
    assert order == ["answered", "closed"]


def test_the_switch_log_tells_turns_to_the_nanosecond(driver: Any, utilisation: FakeUtilisation) -> None:
    source = SwitchLogUsage(driver, UUIDS[0], at_once)
    assert source.name == "switch log"
    start = driver.now_ns
    driver.producer.write(START, 7, 1, start + 100)
    driver.producer.write(END, 7, 1, start + 2_000_100)
    driver.now_ns += 10 * MS
    reading = source.read()
    assert reading.usage[7].held_s == pytest.approx(0.002)
    assert reading.until == pytest.approx(driver.now_ns / 1e9)
    assert not utilisation.asked  # nobody held the GPU for long
    source.close()
    assert utilisation.closed == 1


@pytest.mark.parametrize(("switches", "most"), [(0, 36), (17, 110)])
def test_a_reading_takes_few_steps(driver: Any, utilisation: FakeUtilisation, switches: int, most: int) -> None:
    """Who reads 50 times a second does so with cold caches, and pays for each step anew."""
    source = SwitchLogUsage(driver, UUIDS[0], at_once)
    driver.producer.write(START, 7, 1, driver.now_ns)
    driver.producer.write(END, 7, 1, driver.now_ns + 1)
    source.read()
    steps: list[str] = []

    def count(frame: FrameType, event: str, what: object) -> None:
        if event.endswith("call") and "fixtures" not in frame.f_code.co_filename:
            steps.append(frame.f_code.co_qualname if event == "call" else repr(what))

    for switch in range(switches):
        driver.producer.write(START, 7 + switch % 2, 1, driver.now_ns + 1000 * switch)
        driver.producer.write(END, 7 + switch % 2, 1, driver.now_ns + 1000 * switch + 500)
    driver.now_ns += 20 * MS
    sys.setprofile(count)
    try:
        reading = source.read()
    finally:
        sys.setprofile(None)
    assert len(reading.residencies) == switches
    assert len(steps) <= most, Counter(steps).most_common()
    source.close()


@pytest.mark.parametrize("why", ["", "it may not know"])
def test_a_log_that_hides_others_is_said(
    driver: Any, utilisation: FakeUtilisation, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.setattr(switch_log, "hides_others", lambda: why)
    with capture_logs() as lines:
        SwitchLogUsage(driver, UUIDS[0], at_once).close()
    assert [(line["log_level"], line["reason"]) for line in lines] == ([("warning", why)] if why else [])


def test_a_lone_holders_idle_time_is_corrected(driver: Any, utilisation: FakeUtilisation) -> None:
    source = SwitchLogUsage(driver, UUIDS[0], at_once)
    driver.producer.write(START, 7, 1, driver.now_ns)
    held = idle = 0.0
    for _ in range(200):
        driver.now_ns += 20 * MS
        now_us = driver.now_ns // 1000
        if now_us % 200_000 == 0:
            utilisation.of_device.append(DeviceSample(now_us, 19))
        reading = source.read()
        held += reading.usage[7].held_s
        idle += reading.usage[7].idle_s
        assert idle <= held
    assert held == pytest.approx(4.0)
    assert 3.0 * 0.8 - 0.2 <= idle <= 4.0 * 0.8 + 0.01  # a fifth busy; the last second is not known yet
    assert len(utilisation.asked) <= 5


def test_without_nvml_there_is_no_correction(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise NvmlError("NVML: not found")

    monkeypatch.setattr(switch_log, "Utilisation", missing)
    source = SwitchLogUsage(driver, UUIDS[0], at_once)
    driver.producer.write(START, 7, 1, driver.now_ns)
    driver.now_ns += 2000 * MS
    assert source.read().usage[7].idle_s == 0
    source.close()


def test_an_nvml_that_fails_later_is_let_go(driver: Any, utilisation: FakeUtilisation) -> None:
    source = SwitchLogUsage(driver, UUIDS[0], at_once)
    driver.producer.write(START, 7, 1, driver.now_ns)
    utilisation.error = "NVML: GPU is lost"
    for _ in range(3):
        driver.now_ns += 1000 * MS
        reading = source.read()
        assert (reading.usage[7].held_s, reading.usage[7].idle_s) == (pytest.approx(1.0), 0)
    assert (len(utilisation.asked), utilisation.closed) == (1, 1)
    source.close()
    assert utilisation.closed == 1


# -- NVML ----------------------------------------------------------------------------------------


def test_nvml_is_percent_of_the_time_that_passed(utilisation: FakeUtilisation) -> None:
    clock = Clock()
    source = NvmlUsage(utilisation, clock, clock.steady)
    assert source.name == "nvml"
    utilisation.of_processes = [ProcessSample(7, int(clock.now * 1e6) + 400_000, 60), ProcessSample(8, 1, 50)]
    clock.now += 0.5
    reading = source.read()
    assert reading.usage[7].held_s == pytest.approx(0.3)
    assert set(reading.usage) == {7}
    assert (reading.usage[7].turns, reading.residencies, reading.until) == (0, [], clock.now)
    clock.now += 0.1
    assert source.read().usage[7].held_s == pytest.approx(0.06)  # the sample holds until there is a newer one
    assert len(utilisation.asked) == 2


def test_nvmls_samples_never_add_up_to_more_than_the_gpu(utilisation: FakeUtilisation) -> None:
    clock = Clock()
    source = NvmlUsage(utilisation, clock, clock.steady)
    utilisation.of_processes = [ProcessSample(pid, int(clock.now * 1e6) + 1, 80) for pid in (7, 8)]
    clock.now += 1
    assert [held.held_s for held in source.read().usage.values()] == pytest.approx([0.5, 0.5])


def test_nvmls_old_samples_are_forgotten(utilisation: FakeUtilisation) -> None:
    clock = Clock()
    utilisation.of_processes = [ProcessSample(7, int(clock.now * 1e6), 100)]
    source = NvmlUsage(utilisation, clock, clock.steady)
    clock.now += 1
    assert source.read().usage[7].held_s == pytest.approx(1)
    clock.now += 1.5
    assert source.read().usage == {}


@pytest.mark.parametrize("set_by_s", [-3600, 1, 3600])
def test_a_clock_that_is_set_is_no_time(utilisation: FakeUtilisation, set_by_s: float) -> None:
    clock = Clock()
    utilisation.of_processes = [ProcessSample(7, int((clock.now + max(0, set_by_s)) * 1e6), 100)]
    source = NvmlUsage(utilisation, clock, clock.steady)
    clock.ahead, clock.now = set_by_s, clock.now + 0.2
    assert source.read().usage[7].held_s == pytest.approx(0.2)
    assert len(utilisation.asked) == 2


# -- the book ------------------------------------------------------------------------------------


def test_the_book_divides_time_among_who_is_enabled() -> None:
    clock = Clock()
    book = BookUsage(clock)
    clock.now += 5
    book.set_enabled(1, True)
    clock.now += 1
    book.set_enabled(2, True)
    book.set_enabled(2, True)
    clock.now += 2
    book.set_enabled(1, False)
    clock.now += 1
    reading = book.read()
    assert {pid: held.held_s for pid, held in reading.usage.items()} == {1: pytest.approx(2), 2: pytest.approx(2)}
    assert [held.turns for held in reading.usage.values()] == [1, 1]
    clock.now += 1
    assert {pid: held.held_s for pid, held in book.read().usage.items()} == {2: pytest.approx(1)}
    book.set_enabled(9, False)
    book.close()
    assert book.read().usage == {}


# -- the choice ----------------------------------------------------------------------------------


def test_the_switch_log_comes_first(driver: Any, utilisation: FakeUtilisation) -> None:
    source, refusals = open_source(NvidiaPlane(driver), UUIDS[0])
    assert (source.name, refusals) == ("switch log", ())
    source.close()


def test_nvml_comes_second_and_says_why(driver: Any, utilisation: FakeUtilisation) -> None:
    driver.bind_status, driver.reason = 0x1B, 4
    source, refusals = open_source(NvidiaPlane(driver), UUIDS[0])
    assert source.name == "nvml"
    (line,) = refusals
    assert line.startswith("switch log: the driver refuses the switch log: NV_ERR_INSUFFICIENT_PERMISSIONS (0x1B)")
    source.close()


def test_the_book_is_always_there(driver: Any, utilisation: FakeUtilisation) -> None:
    driver.bind_status = 0x56
    utilisation.error = "NVML: Not Supported"
    source, refusals = open_source(NvidiaPlane(driver), UUIDS[0])
    assert source.name == "book"
    assert [line.partition(":")[0] for line in refusals] == ["switch log", "nvml"]
    assert utilisation.closed == 1


# -- runlist.planes.nvidia.nvml --------------------------------------------------------------------------------


def test_nvmls_ways_to_say_that_there_are_no_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
    code = pynvml.NVML_SUCCESS

    def refuse(*_: object) -> None:
        raise pynvml.NVMLError(code)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetSamples", refuse)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetProcessUtilization", refuse)
    used = nvml.Utilisation(NvidiaDriver(), UUIDS[0])
    assert used.device(0) == used.processes(0) == []
    code = pynvml.NVML_ERROR_NOT_FOUND
    assert used.device(0) == used.processes(0) == []
    code = pynvml.NVML_ERROR_NOT_SUPPORTED
    for ask in (used.device, used.processes):
        with pytest.raises(NvmlError, match="Not Supported"):
            ask(0)
    used.close()


def test_samples_are_asked_for_in_microseconds_and_one_answer_at_a_time() -> None:
    asked: list[tuple[object, int]] = []
    answers = [SimpleNamespace(done=lambda: False)]
    world: Any = SimpleNamespace(
        _answer=None,
        _idle=SimpleNamespace(wants_samples=lambda until_ns: until_ns == 9, sampled_ns=5_000_999, may_presume=False),
        _submit=lambda device, since_us: asked.append((device, since_us)) or answers[0],
    )  # fmt: skip
    utilisation: Any = SimpleNamespace(device="a device")
    SwitchLogUsage._find_idle_time(world, utilisation, Reading(0.0), 8)  # they would tell nothing
    assert asked == []
    for _ in range(3):
        SwitchLogUsage._find_idle_time(world, utilisation, Reading(0.0), 9)
    assert asked == [("a device", 5000)]
