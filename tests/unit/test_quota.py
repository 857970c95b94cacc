"""The limit of a tree whose group leaves it less, and what counts again when it does not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from runlist.daemon.memory import quota as quotas
from runlist.daemon.memory.quota import Quota
from runlist.errors import NotSupportedError
from runlist.planes.process.region import Region, Words, gpu_key
from runlist.planes.process.region.format import DEVICE, DEVICES_AT
from tests.fixtures.memory_world import GPU, OWN_LIMIT, GiB


@pytest.fixture
def quota(region: Region) -> Iterator[Quota]:
    """Of a tree that has used a GPU, and brought no limit along."""
    os.pwrite(region.fileno(), DEVICE.pack(key=gpu_key(GPU)), DEVICES_AT)
    made = Quota(region)
    yield made
    made.close()


def told(region: Region) -> tuple[int | None, int | None]:
    """The limits that the library keeps: on any GPU, and on this one."""
    snapshot = region.read()
    return snapshot.memory, snapshot.limit(GPU)


@pytest.mark.parametrize("own", [None, 3 * GiB])
def test_a_group_leaves_a_tree_so_much_and_no_more_than_its_own_limit(
    quota: Quota, region: Region, own: int | None
) -> None:
    quota.set_limit(own)
    for most, left in ((GiB, 0), (GiB, GiB // 2), (2 * GiB, GiB), (8 * GiB, 5 * GiB)):
        quota.allow(most, {GPU: left, "GPU-of another": 0})
        assert told(region) == (min(most, own or most), min(left, own or left))
        assert (quota.limit, quota.own_limit) == (own, own)
    quota.allow(None, {})
    assert told(region) == (own, own)


def test_what_a_tree_brought_along_counts_again_when_its_group_goes(region: Region) -> None:
    region.set_memory(3 * GiB)
    os.pwrite(region.fileno(), DEVICE.pack(key=gpu_key(GPU)), DEVICES_AT)
    quota = Quota()
    quota.take(region)
    assert quota.own_limit == 3 * GiB
    for most in (GiB, 2 * GiB, 4 * GiB):
        quota.allow(most, {GPU: most // 2})
        assert told(region) == (min(most, 3 * GiB), most // 2)
        assert (quota.own_limit, quota.firm, quota.limit_on(GPU)) == (3 * GiB, None, most // 2)
    quota.allow(None, {})
    assert (told(region), quota.own_limit) == ((3 * GiB, 3 * GiB), 3 * GiB)
    quota.close()


def test_without_a_group_the_region_is_the_trees(quota: Quota, region: Region) -> None:
    for again in (False, True):
        region.set_memory(9 * GiB)
        quota.allow(None, {})
        assert told(region) == (9 * GiB, 9 * GiB)
        if not again:
            quota.allow(GiB, {})
            quota.allow(None, {})
            assert told(region) == (None, None)


def test_a_tree_that_writes_over_what_its_group_leaves_has_that_written_again(quota: Quota, region: Region) -> None:
    quota.allow(2 * GiB, {GPU: GiB})
    for tamper in (
        lambda: region.set_memory(None),
        lambda: region.set_memory(9 * GiB),
        lambda: os.pwrite(region.fileno(), OWN_LIMIT, DEVICES_AT),
    ):
        tamper()
        quota.look(kept_s=0.0)
        quota.allow(2 * GiB, {GPU: GiB})
        assert told(region) == (2 * GiB, GiB)


def test_what_is_left_is_written_where_it_changed_alone(
    quota: Quota, region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the library would for a moment keep to more than the group leaves."""
    written: list[object] = []
    monkeypatch.setattr(region, "set_memory", written.append)
    monkeypatch.setattr(region, "set_memory_on", lambda index, limit: written.append((index, limit)))
    quota.allow(GiB, {GPU: GiB})
    assert written == [GiB, (0, GiB)]
    monkeypatch.undo()
    quota.allow(GiB, {GPU: GiB})
    monkeypatch.setattr(region, "set_memory", written.append)
    monkeypatch.setattr(region, "set_memory_on", lambda index, limit: written.append((index, limit)))
    quota.look(kept_s=0.0)
    quota.allow(GiB, {GPU: GiB})
    quota.allow(GiB, {GPU: GiB // 2})
    assert written[2:] == [(0, GiB // 2)]


def test_what_was_written_is_known_at_once(quota: Quota) -> None:
    quota.allow(2 * GiB, {GPU: GiB})
    assert quota.limit_on(GPU) == GiB
    quota.allow(2 * GiB, {GPU: GiB // 2})
    assert quota.limit_on(GPU) == GiB // 2


def test_without_a_region_the_limit_is_the_daemons(region: Region) -> None:
    quota = Quota()
    quota.follow(4 * GiB)
    quota.allow(GiB, {GPU: 0})
    assert (quota.limit_on(GPU), quota.own_limit) == (4 * GiB, 4 * GiB)
    quota.take(region)
    os.ftruncate(region.fileno(), 10)
    quota.allow(GiB, {GPU: 0})
    assert (quota.has_region, quota.limit_on(GPU)) == (False, 4 * GiB)


@pytest.mark.parametrize("own", [None, 3 * GiB])
def test_what_a_tree_brings_along_after_there_was_a_rule_counts_when_that_goes(region: Region, own: int | None) -> None:
    quota = Quota()
    quota.follow(4 * GiB)
    region.set_memory(own)
    quota.take(region)
    quota.follow(8 * GiB)
    assert quota.limit == (own or 8 * GiB)
    quota.follow(None)
    assert (quota.limit, region.read().memory) == (own, own)
    quota.close()


@pytest.mark.parametrize("brings", [False, True])
def test_a_rule_for_the_tree_in_place_of_its_group_leaves_its_own_limit_in_force(region: Region, brings: bool) -> None:
    quota = Quota(None if brings else region)
    if brings:
        region.set_memory(3 * GiB)
        quota.take(region)
    else:
        quota.set_limit(3 * GiB)
    quota.allow(GiB, {})
    for limit, counts in ((2 * GiB, 2 * GiB), (8 * GiB, 3 * GiB), (None, 3 * GiB)):
        quota.follow(limit)
        quota.allow(None, {})
        assert (quota.limit, quota.limit_on(GPU), region.read().memory) == (counts, counts, counts)
        quota.allow(GiB, {})
    quota.close()


def test_what_was_set_since_stays_while_the_rules_say_the_same(quota: Quota) -> None:
    quota.follow(4 * GiB)
    quota.set_limit(2 * GiB)
    quota.follow(4 * GiB)
    assert quota.limit == 2 * GiB


def test_what_a_tree_that_is_let_go_is_left_with_is_its_own(quota: Quota, region: Region) -> None:
    again = Region(os.dup(region.fileno()))
    quota.allow(GiB, {GPU: 0})
    quota.charge_unseen(GPU, GiB)
    assert (told(again), again.read().used(GPU)) == ((GiB, 0), GiB)
    quota.close()
    assert (told(again), again.read().used(GPU)) == ((None, None), 0)
    again.close()


def test_a_driver_that_limits_memory_is_told_and_let_go_of(region: Region) -> None:
    said: list[object] = []

    class Group:
        def set(self, limit: int | None) -> None:
            said.append(limit)

        def members(self) -> list[int]:
            return [1, 2]

        def close(self) -> None:
            said.append("closed")

    quota = Quota(group=Group)
    quota.set_limit(GiB)
    assert (quota.by_driver, quota.firm, quota.limit_on(GPU)) == (True, None, GiB)
    for pids, firm in (([1, 2], None), ([1, 3], GiB), ([], None)):
        quota.see_who_left(pids)
        assert (quota.by_driver, quota.firm) == (firm is None, firm)
    quota.close()
    quota.close()
    assert said == [GiB, "closed"]
    with pytest.raises(NotSupportedError):
        Quota().set_limit(GiB)


# -- how often it is read --------------------------------------------------------------------------


class Reads:
    """What a user's regions may be read yet, and how much was."""

    def __init__(self) -> None:
        self.left = 100.0
        self.spent: list[float] = []

    def spend(self, amount: float) -> None:
        self.spent.append(amount)


@pytest.mark.parametrize("slots", [1, 65])
def test_reading_a_region_costs_its_user_something_for_each_slot(
    region: Region, monkeypatch: pytest.MonkeyPatch, slots: int
) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(quotas.time, "monotonic", lambda: clock.now)
    reads: Any = Reads()
    quota = Quota(region, reads=reads)
    first = msgspec.structs.replace(region.read(), slots=(None,) * slots)  # as it was at the first look
    monkeypatch.setattr(Region, "read", lambda _: first)
    assert quota.look() is first
    assert reads.spent == []  # somebody has to look once
    second = msgspec.structs.replace(first)
    monkeypatch.setattr(Region, "read", lambda _: second)
    clock.now += 0.04
    assert quota.look() is first  # it is young
    clock.now += 0.02
    assert quota.look() is second
    assert reads.spent == [slots]
    reads.left = 0.0
    clock.now += 0.06
    third = msgspec.structs.replace(first)
    monkeypatch.setattr(Region, "read", lambda _: third)
    assert quota.look() is second
    assert quota.look(10.0) is second
    monkeypatch.undo()
    quota.close()


def test_what_no_process_tells_is_written_where_it_changed(quota: Quota, region: Region) -> None:
    def unseen() -> int:
        return int.from_bytes(os.pread(region.fileno(), 8, DEVICES_AT + DEVICE.offsets["unseen"]), "little")

    quota.charge_unseen(GPU, 5 << 20)
    assert unseen() == 5 << 20
    os.pwrite(region.fileno(), bytes(8), DEVICES_AT + DEVICE.offsets["unseen"])  # a process of it wrote there
    quota.look(0.0)
    quota.charge_unseen(GPU, 5 << 20)
    assert unseen() == 5 << 20
    quota.look(0.0)
    quota.charge_unseen(GPU, 0)
    assert unseen() == 0
    quota.charge_unseen("GPU-of another", 7)
    assert unseen() == 0
    Quota().charge_unseen(GPU, 7)  # no region, nothing to tell


def test_a_region_that_is_none_any_more_is_let_go_of(quota: Quota, region: Region) -> None:
    quota.set_limit(GiB)
    os.ftruncate(region.fileno(), 10)
    assert quota.watched_at(os.getpid()) is None
    assert not quota.has_region
    assert quota.trouble == "it was cut short"
    assert (quota.limit, quota.look()) == (GiB, None)
    quota.ask_for_work(os.getpid(), asked=True)
    assert quota.activity(os.getpid()) is None
    assert quota.operations(os.getpid()) is None


# -- what is for the time of the daemon alone ------------------------------------------------------


OWN = 5 * GiB


class Keeper:
    """Notes what it has to write into the region, by key."""

    def __init__(self) -> None:
        self.kept: dict[int, Words] = {}
        self.told = 0

    def guard_region(self, region: Region, words: Words, key: int | None = None) -> int:
        key = 7 if key is None else key
        self.kept[key] = words
        self.told += 1
        return key

    def unguard(self, key: int) -> None:
        del self.kept[key]

    def put_back(self, region: Region) -> None:
        """The daemon was killed."""
        for words in self.kept.values():
            region.write(words)


def unseen(region: Region) -> int:
    device = region.read().device(GPU)
    assert device is not None
    return device.unseen


@pytest.fixture
def watched(region: Region) -> tuple[Quota, Keeper]:
    """The quota of a tree with a limit of its own, and its keeper."""
    os.pwrite(region.fileno(), DEVICE.pack(key=gpu_key(GPU)), DEVICES_AT)
    keeper = Keeper()
    quota = Quota(region, keeper=keeper)
    quota.set_limit(OWN)
    return quota, keeper


def test_the_keeper_puts_back_what_is_for_the_time_of_the_daemon_alone(
    watched: tuple[Quota, Keeper], region: Region
) -> None:
    quota, keeper = watched
    assert keeper.kept == {}  # the limit stays
    quota.allow(GiB, {GPU: GiB // 2})
    quota.set_cap(0.3, asked=True)
    quota.charge_unseen(GPU, GiB)
    assert (told(region), region.read().cap, unseen(region)) == ((GiB, GiB // 2), 0.3, GiB)
    keeper.put_back(region)
    assert (told(region), region.read().cap, unseen(region)) == ((OWN, OWN), None, 0)


def test_the_keeper_is_told_once_what_stays_the_same(watched: tuple[Quota, Keeper]) -> None:
    quota, keeper = watched
    for left in (GiB, GiB // 2, GiB // 4):
        quota.allow(GiB, {GPU: left})
        quota.charge_unseen(GPU, left)
    assert keeper.told == 2


def test_the_keeper_knows_a_limit_that_changes_while_a_group_leaves_less(
    watched: tuple[Quota, Keeper], region: Region
) -> None:
    quota, keeper = watched
    quota.allow(GiB, {GPU: GiB // 2})
    quota.set_limit(2 * OWN)
    keeper.put_back(region)
    assert told(region) == (2 * OWN, 2 * OWN)


def test_who_lets_go_of_a_tree_puts_back_the_same(
    watched: tuple[Quota, Keeper], region: Region, request: pytest.FixtureRequest
) -> None:
    quota, keeper = watched
    copy = Region(os.dup(region.fileno()))
    request.addfinalizer(copy.close)
    quota.allow(GiB, {GPU: GiB // 2})
    quota.set_cap(0.3, asked=True)
    quota.charge_unseen(GPU, GiB)
    quota.close()
    assert (told(copy), copy.read().cap, unseen(copy)) == ((OWN, OWN), None, 0)
    assert keeper.kept == {}


def test_caps_that_a_tree_brought_along_stay_when_nobody_set_one(
    watched: tuple[Quota, Keeper], region: Region, request: pytest.FixtureRequest
) -> None:
    quota, _ = watched
    copy = Region(os.dup(region.fileno()))
    request.addfinalizer(copy.close)
    copy.set_cap(0.4)
    quota.set_cap(None, asked=False)
    quota.close()
    assert copy.read().cap == 0.4
