"""What processes say of their clients, read from a region: whatever they write."""

from __future__ import annotations

import json
import math
import os
import random
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from runlist.daemon.requests.clients import beside, client_views
from runlist.planes.process.region import Region, RegionError, create
from runlist.planes.process.region.format import CLIENT, CLIENTS, OPERATIONS, OPERATIONS_AT, SLOT, SLOTS_AT
from runlist.planes.process.region.operations import MAX_COUNT, Rule
from runlist.proc.process import start_of
from runlist.views.structs import ClientView

# As they are to be: taken from the code they would hold whatever it says.
MOST_PER_S = 1000000000.0
MOST_SHARE = 10.0

MANY = (1 << 64) - 1
ALL, COMPLEMENTS, KNOWN = 0o777, 0o357, 0o240


@pytest.fixture
def region(tmp_path: Path) -> Iterator[Region]:
    """A new one, in which this process has the third slot."""
    tmp_path.chmod(0o700)
    _, made = create(tmp_path, strict=False)
    at = SLOTS_AT + 2 * SLOT.size
    os.pwrite(made.fileno(), struct.pack("<2Q", os.getpid() | 1 << 32, start_of(os.getpid()) or 0), at)
    os.pwrite(made.fileno(), (3).to_bytes(4, "little"), 96)
    yield made
    made.close()


def tell(region: Region, bits: int, clients: dict[int, dict[str, int]], slot: int = 2, **more: int) -> None:
    """As the library does."""
    head = {"written_ns": time.time_ns(), "window_ns": 10**9, "gate_ns": MANY, "beside": ALL, "most_sms": 1 << 31}
    packed = bytes(OPERATIONS.pack(**(head | more)))[: OPERATIONS.offsets["clients"]]
    for index in range(CLIENTS):
        packed += bytes(CLIENT.pack(**clients.get(index, {})))
    os.pwrite(region.fileno(), packed, OPERATIONS_AT + slot * OPERATIONS.size)
    os.pwrite(region.fileno(), struct.pack("<Q", bits), SLOTS_AT + slot * SLOT.size + SLOT.offsets["clients"])


def seen(region: Region) -> list[ClientView]:
    quota = SimpleNamespace(operations=region.operations)
    managed: Any = SimpleNamespace(
        root=SimpleNamespace(quota=quota), task=SimpleNamespace(key=SimpleNamespace(pid=os.getpid()))
    )
    return client_views(managed)


HIGH = {"launched": 50_000, "lately_launched": 12_000, "lately_sm_ns": 3 * 10**9}
LOW = {
    "launched": 900, "deferred": 300, "opened": 1, "queued": 7, "oldest_ns": 2_500_000, "lately_launched": 200,
    "lately_deferred": 100, "lately_wait_ns": 45_600,
}  # fmt: skip


def test_a_process_without_a_slot_tells_nothing(region: Region) -> None:
    tell(region, 0b11, {0: HIGH, 1: LOW})
    assert region.operations(os.getppid()) is None


def test_a_process_without_such_clients_tells_nothing(region: Region) -> None:
    assert region.operations(os.getpid()) is None
    assert region.operations(1) is None
    assert seen(region) == []


def test_two_clients_are_seen_with_the_rule_between_them(region: Region) -> None:
    tell(
        region,
        0b11,
        {0: HIGH, 1: LOW},
        window_ns=2 * 10**9,
        beside=COMPLEMENTS,
        most_sms=66,
        gate_ns=20_000,
        ahead_ns=500_000,
        rest_ns=30_000,
        copies=1,
        sms=100,
    )
    first, other = seen(region)
    assert first == ClientView(
        client=0, operations=50_000, operations_deferred=0, bounds_reached=0, operations_per_s=6_000.0,
        deferred_per_s=0.0, queued=0, wait_us=None, oldest_us=None, sms_share=0.015, beside="at once",
    )  # fmt: skip
    assert other == ClientView(
        client=1, operations=900, operations_deferred=300, bounds_reached=1, operations_per_s=100.0,
        deferred_per_s=50.0, queued=7, wait_us=45.6, oldest_us=2_500.0, sms_share=None,
        beside="complements, to 66 SMs, to 20 µs, 500 µs ahead, after 30 µs",
    )  # fmt: skip


def test_a_client_of_mps_is_one_with_a_number(region: Region) -> None:
    tell(region, 1 << 5, {5: LOW})
    assert [one.client for one in seen(region)] == [5]


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (Rule(0, 0, False, None), "nothing"),
        (Rule(0, 0, True, None), "copies"),
        (Rule(ALL, MANY & 0xFFFFFFFF, True, None), "anything"),
        (Rule(KNOWN, 0xFFFFFFFF, True, None), "known complements"),
        (Rule(COMPLEMENTS, 0xFFFFFFFF, True, 0), "complements, to 0 µs"),
        (Rule(1, 4, False, None), "some, to 4 SMs, no copies"),
        (Rule(0, 0, False, None, 10**6, 300_000), "nothing, 1 ms ahead, after 300 µs"),
        (Rule(0, 0, False, None, 10**12, 0), "nothing, 1000 s ahead"),
        (Rule(ALL | 1 << 31, 0xFFFFFFFF, True, MAX_COUNT), "anything, to 9.22337e+09 s"),
    ],
)
def test_a_rule_is_told_in_words(rule: Rule, words: str) -> None:
    assert beside(rule) == words


@pytest.mark.parametrize(
    "more",
    [
        {"written_ns": 0},
        {"written_ns": MANY},
        {"window_ns": 0},
        {"window_ns": 1},
        {"window_ns": MANY},
    ],
)
def test_what_is_old_or_no_statement_counts_as_none(region: Region, more: dict[str, int]) -> None:
    tell(region, 0b11, {0: HIGH, 1: LOW}, **more)
    assert seen(region) == []


@pytest.mark.parametrize(("age_s", "counts"), [(4.9, True), (5.1, False), (-4.9, True), (-5.1, False)])
def test_what_a_process_says_counts_for_five_seconds(
    region: Region, monkeypatch: pytest.MonkeyPatch, age_s: float, counts: bool
) -> None:
    """As docs/operations.md says; clocks may be set."""
    tell(region, 0b11, {0: HIGH, 1: LOW}, written_ns=10**18)
    monkeypatch.setattr(time, "time_ns", lambda: 10**18 + int(age_s * 1e9))
    assert bool(seen(region)) == counts


def test_what_a_process_of_another_slot_says_is_not_this_ones(region: Region) -> None:
    tell(region, 0b11, {0: HIGH}, slot=1)
    assert seen(region) == []


def test_the_largest_numbers_are_bounded(region: Region) -> None:
    every = dict.fromkeys(CLIENT.names, MANY)
    tell(
        region,
        MANY,
        dict.fromkeys(range(CLIENTS), every),
        beside=0xFFFFFFFF,
        copies=0xFFFFFFFF,
        sms=1,
        most_sms=0xFFFFFFFF,
    )
    found = seen(region)
    assert [one.client for one in found] == list(range(CLIENTS))
    assert {one.operations for one in found} == {MAX_COUNT}
    assert {one.operations_per_s for one in found} == {MOST_PER_S}
    assert {one.sms_share for one in found} == {MOST_SHARE}
    assert json.loads(msgspec.json.encode(found))[15]["beside"] == "anything"
    tell(region, MANY, {}, sms=0xFFFFFFFF)
    assert {one.sms_share for one in seen(region)} == {None}


def test_random_bytes_are_numbers_and_never_text_of_theirs(region: Region) -> None:
    """All that a hostile process can have shown is numbers of a size that a screen and a JSON reader take."""
    numbers = random.Random(1)
    for _ in range(500):
        at = OPERATIONS_AT + 2 * OPERATIONS.size
        os.pwrite(region.fileno(), numbers.randbytes(OPERATIONS.size), at)
        if numbers.random() < 0.9:
            os.pwrite(region.fileno(), struct.pack("<2Q", time.time_ns(), numbers.randrange(10**7, 10**9)), at)
        where = SLOTS_AT + 2 * SLOT.size + SLOT.offsets["clients"]
        os.pwrite(region.fileno(), numbers.randbytes(8), where)
        for one in seen(region):
            assert all(math.isfinite(value) and 0 <= value <= MAX_COUNT for value in numbers_of(one))
            assert one.beside.replace("µ", "u").isascii()
            assert one.beside.isprintable()
            assert len(one.beside) < 100


def numbers_of(one: ClientView) -> list[float]:
    return [value for value in msgspec.structs.astuple(one) if isinstance(value, int | float)]


def test_a_region_that_is_cut_behind_the_slots_is_refused(region: Region) -> None:
    tell(region, 0b11, {0: HIGH, 1: LOW})
    assert len(seen(region)) == 2
    os.ftruncate(region.fileno(), OPERATIONS_AT + 10)
    with pytest.raises(RegionError, match="cut short"):
        region.operations(os.getpid())


def test_a_process_whose_slot_goes_while_it_is_read_tells_nothing(
    region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(region, 0b11, {0: HIGH, 1: LOW})
    read: Callable[[int, int], bytes] = region._pread

    def taken_back(at: int, size: int) -> bytes:
        data = read(at, size)
        if at >= OPERATIONS_AT:
            os.pwrite(region.fileno(), bytes(SLOT.size), SLOTS_AT + 2 * SLOT.size)
        return data

    monkeypatch.setattr(region, "_pread", taken_back)
    assert region.operations(os.getpid()) is None


def test_most_regions_take_no_room_for_it(region: Region) -> None:
    assert os.fstat(region.fileno()).st_blocks * 512 < OPERATIONS_AT + 64 * 1024
