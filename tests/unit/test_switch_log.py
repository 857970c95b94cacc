"""The switch log's reader against bytes: opening it, the ring, and whatever a header may say."""

from __future__ import annotations

import struct
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runlist.errors import NotSupportedError
from runlist.planes.nvidia.rm.status import RmError
from runlist.planes.nvidia.switch_log import Ring, SwitchLog
from tests.fixtures.fake_rm import UUIDS
from tests.fixtures.switch_log import CLIENT, END, START, FakeLogDriver, Producer


def _ring(producer: Producer) -> Ring:
    return Ring(producer.header, producer.ring)


def _write(producer: Producer, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        producer.write((START, END)[number % 2], 100 + number, 5, 1000 + number)


def _numbers(ring: Ring) -> list[int]:
    return [pid - 100 for _, _, _, pid, _ in ring.take()[0]]


def _filled(count: int, records: int = 8) -> tuple[Producer, Ring]:
    producer = Producer(records)
    ring = _ring(producer)
    _write(producer, count)
    return producer, ring


def test_records_are_read_once_and_in_order() -> None:
    producer, ring = _filled(3)
    assert ring.take() == ([(START, 0, 5, 100, 1000), (END, 1, 5, 101, 1001), (START, 2, 5, 102, 1002)], [])
    assert ring.take() == ([], [])
    _write(producer, 4, 3)
    assert _numbers(ring) == [3, 4, 5, 6]
    _write(producer, 5, 7)  # over the ring's end
    assert ring.take()[0][0] == (END, 7, 5, 107, 1007)
    assert _numbers(ring) == []


@pytest.mark.parametrize("size", [7, 8])
def test_a_ring_as_full_as_can_be_has_lost_nothing(size: int) -> None:
    producer, ring = _filled(2)
    ring.take()
    _write(producer, size, 2)
    records, gaps = ring.take()
    assert [record[1] for record in records] == list(range(2, 2 + size))
    assert gaps == []


@pytest.mark.parametrize("count", [9, 15, 16, 17, 24, 1000, 65_535])
def test_a_reader_that_was_lapped_gets_the_newest_and_knows_what_it_lost(count: int) -> None:
    producer, ring = _filled(2)
    ring.take()
    _write(producer, count, 2)
    records, gaps = ring.take()
    assert [record[3] for record in records] == list(range(102 + count - 8, 102 + count))
    assert gaps == [(0, count - 8)]
    assert ring.take() == ([], [])
    _write(producer, 1, 2 + count)
    assert _numbers(ring) == [2 + count]


@pytest.mark.parametrize("count", [8, 9, 20])
def test_being_lapped_before_the_first_record_was_read(count: int) -> None:
    _, ring = _filled(count)
    records, gaps = ring.take()
    assert [record[3] - 100 for record in records] == list(range(count - 8, count))
    assert gaps == ([(0, count - 8)] if count > 8 else [])


@pytest.mark.parametrize("lost", range(1, 6))
@pytest.mark.parametrize("after", range(1, 4))
def test_each_lost_record_is_known(lost: int, after: int) -> None:
    producer, ring = _filled(1)
    ring.take()
    producer.drop(lost)
    _write(producer, after)
    records, gaps = ring.take()
    assert (len(records), gaps) == (after, [(0, lost)])


def test_gaps_of_sequence_numbers() -> None:
    producer, ring = _filled(1)
    ring.take()
    producer.drop(2)
    _write(producer, 2)
    producer.drop(300)
    _write(producer, 1)
    records, gaps = ring.take()
    assert len(records) == 3
    assert gaps == [(0, 2), (2, 300)]


def test_sequence_numbers_wrap_at_16_bits() -> None:
    producer = Producer(8)
    producer.sequence = 0xFFFE
    ring = _ring(producer)
    _write(producer, 3)
    assert [record[1] for record in ring.take()[0]] == [0xFFFE, 0xFFFF, 0]
    producer.sequence = 0xFFFF
    _write(producer, 1)
    ring.take()
    producer.drop(3)
    _write(producer, 2)
    assert ring.take()[1] == [(0, 3)]


def test_records_overwritten_while_they_are_read_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    producer, ring = _filled(2)
    ring.take()
    _write(producer, 9, 2)
    copy = ring._slice

    def slow(first: int, end: int) -> bytes:
        data = copy(first, end)
        if end - first > 1 and producer.sequence == 11:
            _write(producer, 2, 11)
        return data

    monkeypatch.setattr(ring, "_slice", slow)
    assert _numbers(ring) == [5, 6, 7, 8, 9, 10]
    assert _numbers(ring) == [11, 12]


@pytest.mark.parametrize("put", [8, 9, 1 << 31, 0xFFFFFFFF])
def test_a_header_beyond_the_ring_is_one_line(put: int) -> None:
    producer, ring = _filled(2)
    producer.set_put(put)
    with pytest.raises(NotSupportedError, match="header is damaged"):
        ring.take()


@given(st.lists(st.tuples(st.integers(0, 7), st.binary(min_size=256, max_size=256)), max_size=4))
def test_whatever_is_in_the_memory_there_is_an_answer(states: list[tuple[int, bytes]]) -> None:
    producer = Producer(8)
    ring = _ring(producer)
    for put, content in states:
        producer.ring[:] = content
        producer.set_put(put)
        records, gaps = ring.take()
        assert len(records) <= 8
        assert all(0 <= index < len(records) and 0 < missing < 1 << 16 for index, missing in gaps)


# -- opening -------------------------------------------------------------------------------------


def test_the_right_gpu_is_found_by_its_uuid() -> None:
    driver = FakeLogDriver({0: UUIDS[0], 3: UUIDS[1]})  # numbers need not be dense
    log = SwitchLog.open(driver, UUIDS[1], records=16)
    (file,) = driver.files
    assert struct.unpack_from("<I", file.objects[0xA0000001][2]) == (3,)
    log.close()
    assert not file.objects
    assert file.client == 0
    assert file.closed == 1


def test_what_is_sent_is_what_the_driver_was_seen_to_take() -> None:
    """Byte for byte as a known-good reader on an H200 sent it."""
    driver = FakeLogDriver({0: UUIDS[0]}, records=16384)
    log = SwitchLog.open(driver, UUIDS[0])
    (file,) = driver.files
    device, subdevice, header, ring, buffer = range(0xA0000001, 0xA0000006)
    assert file.objects[device] == (
        0x80, CLIENT, struct.pack("<IIIIIxxxxQQQIxxxx", 0, CLIENT, 0, 0, 0, 0, 0, 0, 0)
    )  # fmt: skip
    assert file.objects[subdevice] == (0x2080, device, bytes(4))
    for handle, size in ((header, 4096), (ring, 16384 * 32)):
        memory = bytearray(128)
        struct.pack_into("<II", memory, 24, 1 << 29, 1 << 22)
        struct.pack_into("<Q", memory, 64, size)
        assert file.objects[handle] == (0x90CE, CLIENT, bytes(memory))
    assert file.objects[buffer] == (
        0x90CD,
        CLIENT,
        struct.pack("<QQIIQIIQIIIIII", 0, 0, 32, 16384, 0, 0, 0, 0, 0, subdevice, 0, header, ring, 0),
    )
    assert [call[:2] for call in file.calls] == [
        (0x201, CLIENT), (0x2080014A, subdevice), (0x20801238, subdevice), (0x90CD0101, buffer),
        (0x20800403, subdevice), (0x90CD0104, buffer),
    ]  # fmt: skip
    assert file.calls[2][2] == struct.pack("<IIIIBxxxI", buffer, 32, 1, 0, 1, 0)
    assert file.calls[3][2] == struct.pack("<BxxxI", 1, 2)
    assert file.calls[5][2] == b""  # a flush has no parameters
    log.close()


def test_nothing_of_the_log_is_lost_between_opening_and_reading() -> None:
    driver = FakeLogDriver({0: UUIDS[0]})
    _write(driver.producer, 2)
    log = SwitchLog.open(driver, UUIDS[0], records=16)
    assert len(log.read().records) == 2
    log.close()


@pytest.mark.parametrize(
    ("reason", "line"),
    [
        (1, "the GPU is too old"),
        (2, "not enabled for this GPU"),
        (3, "not enabled in this driver"),
        (4, "only root may read it"),
        (5, "a capability is missing"),
        (77, "reason 77"),
    ],
)
def test_a_refused_log_says_status_and_reason(reason: int, line: str) -> None:
    driver = FakeLogDriver({0: UUIDS[0]})
    driver.bind_status, driver.reason = 0x1B, reason
    with pytest.raises(NotSupportedError, match=rf"INSUFFICIENT_PERMISSIONS \(0x1B\): .*{line}"):
        SwitchLog.open(driver, UUIDS[0], records=16)
    assert [file.closed for file in driver.files] == [1]


@pytest.mark.parametrize(
    ("number", "what"),
    [
        (0x80, "check `nvidia-smi -L`"),
        (0x2080, "class 0x2080"),
        (0x90CE, "class 0x90ce"),
        (0x90CD, "class 0x90cd"),
        (0x90CD0101, "EVENT_BUFFER_ENABLE"),
        (0x90CD0104, "EVENT_BUFFER_FLUSH"),
        (0x20800403, "TIMER_GET_TIME"),
        (0x201, "GET_ATTACHED_IDS"),
    ],
)
def test_whatever_is_refused_is_named_and_all_is_freed(number: int, what: str) -> None:
    driver = FakeLogDriver({0: UUIDS[0]})
    driver.refuse[number] = 0x56
    with pytest.raises((RmError, NotSupportedError), match=what):
        SwitchLog.open(driver, UUIDS[0], records=16)
    assert [file.closed for file in driver.files] == [1]
    assert not driver.files[0].client


def test_a_gpu_that_is_not_there() -> None:
    driver = FakeLogDriver({0: UUIDS[0]})
    with pytest.raises(NotSupportedError, match="no GPU GPU-nope"):
        SwitchLog.open(driver, "GPU-nope", records=16)


class Clocks:
    """The machine's clock and the GPU's. After each question to the GPU's the processor is gone for as long as
    `gone_ns` says.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *gone_ns: int) -> None:
        self.driver = FakeLogDriver({0: UUIDS[0]})
        self.driver.time_ns = self._gpu
        self.now, self.gone = 1_000_000_000_000, list(gone_ns)
        monkeypatch.setattr(time, "monotonic_ns", lambda: self.now)

    @property
    def gpu(self) -> int:
        return self.now + 5_000_000_000

    def _gpu(self) -> int:
        told = self.gpu
        self.now += self.gone.pop(0) if self.gone else 5_000
        return told

    @property
    def asked(self) -> int:
        return [command for command, _, _ in self.driver.files[0].calls].count(0x20800403)


def test_the_gpus_clock_is_asked_rarely_and_never_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks(monkeypatch)
    log = SwitchLog.open(clocks.driver, UUIDS[0], records=16)
    for _ in range(10):
        clocks.now += 50_000_000
        assert 0 <= clocks.gpu - log.read().until_ns < 10_000
    assert clocks.asked == 1
    clocks.now += 1_000_000_000
    log.read()
    assert clocks.asked == 2
    log.close()


@pytest.mark.parametrize("gone_ms", [(20,), (20, 30), (30, 20, 25)])
def test_the_gpus_clock_is_not_late_for_a_second_because_we_had_no_processor(
    monkeypatch: pytest.MonkeyPatch, gone_ms: tuple[int, ...]
) -> None:
    """What had run just before it was suspended was taken for one that enabled itself."""
    clocks = Clocks(monkeypatch, *(1_000_000 * each for each in gone_ms))
    log = SwitchLog.open(clocks.driver, UUIDS[0], records=16)
    late_ns = clocks.gpu - log.read().until_ns
    assert 0 <= late_ns <= (10_000 if len(gone_ms) < 3 else 20_000_000)
    log.close()


def test_a_driver_that_goes_away_is_an_error_and_closing_still_works() -> None:
    driver = FakeLogDriver({0: UUIDS[0]})
    log = SwitchLog.open(driver, UUIDS[0], records=16)
    driver.refuse[0x90CD0104] = 0x0F
    with pytest.raises(RmError, match="EVENT_BUFFER_FLUSH"):
        log.read()
    log.close()
    log.close()
    assert driver.files[0].closed == 1
