"""Limits of trees as the daemon sees to them: set, told, held from outside, and capped from inside."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from runlist.daemon.memory import quota as quota_module
from runlist.daemon.memory.enforcement import enforcement
from runlist.daemon.memory.quota import Quota
from runlist.daemon.requests.memory_limits import limit_notes
from runlist.daemon.tasks.managed import SuspendedBy
from runlist.errors import NotSupportedError
from runlist.model import Cap
from runlist.planes.process.region import Enforced, Region, gpu_key
from runlist.planes.process.region.format import DEVICE, DEVICES_AT, HEADER, SLOT, SLOTS_AT
from runlist.proc.process import pid_namespace, start_of
from tests.fixtures.daemon import wait_for
from tests.fixtures.memory_world import GPU, OWN_LIMIT, PID, GiB, World

# -- setting ----------------------------------------------------------------------------------------


def test_a_limit_goes_into_the_region(tree: World, region: Region) -> None:
    tree.quota.set_limit(2 * GiB)
    assert (region.read().memory, tree.quota.limit, tree.quota.limit_on(GPU)) == (2 * GiB, 2 * GiB, 2 * GiB)
    tree.quota.set_limit(None)
    assert (region.read().memory, tree.quota.limit_on(GPU)) == (None, None)


def test_without_a_region_a_user_is_refused_and_a_rule_holds_from_outside() -> None:
    quota = Quota()
    with pytest.raises(NotSupportedError, match="start it with `runlist run --memory`"):
        quota.set_limit(GiB)
    for limit in (2 * GiB, GiB, 3 * GiB, None):
        quota.follow(limit)
        assert (quota.limit, quota.limit_on(GPU)) == (limit, limit)


def test_a_region_that_a_process_cuts_short_is_dropped_and_the_limit_stays(tree: World, region: Region) -> None:
    tree.quota.set_limit(GiB)
    os.ftruncate(region.fileno(), 10)
    tree.quota._snapshot = None
    assert tree.quota.look() is None
    assert not tree.quota.has_region
    assert "10 bytes" in tree.quota.trouble
    assert tree.quota.limit_on(GPU) == GiB
    with pytest.raises(NotSupportedError, match="of no more use"):
        tree.quota.set_limit(2 * GiB)
    tree.look()
    assert SuspendedBy.MEMORY in tree.task.suspended_by  # nothing in it sees to it any more


def test_a_region_that_a_process_brings_along_says_what_holds(region: Region) -> None:
    region.set_memory(5 * GiB)
    quota = Quota()
    quota.take(region)
    assert (quota.has_region, quota.limit) == (True, 5 * GiB)
    quota.close()


def test_what_was_refused_is_known_after_the_end_and_never_shrinks(tree: World, region: Region) -> None:
    def refuse(count: int) -> None:
        os.pwrite(region.fileno(), DEVICE.pack(key=gpu_key(GPU), refusals=count), DEVICES_AT)

    assert tree.quota.refused(GPU) == 0
    for written, told in ((3, 3), (1, 3), (7, 7)):
        refuse(written)
        tree.quota._snapshot = None
        assert tree.quota.refused(GPU) == told
    assert tree.quota.refused("GPU-of another") == 0
    refuse(9)  # the last word of a tree that ends
    tree.quota.close()
    assert tree.quota.refused(GPU) == 9


def test_who_was_held_is_let_go_once_nothing_is_guarded_any_more_and_then_nobody_is_looked_at() -> None:
    unlimited = World(None)
    unlimited.root.quota.follow(GiB)
    asyncio.run(unlimited.holding.check())
    assert SuspendedBy.MEMORY in unlimited.task.suspended_by
    unlimited.root.quota.follow(None)
    asyncio.run(unlimited.holding.check())
    assert SuspendedBy.MEMORY not in unlimited.task.suspended_by
    assert unlimited.ran[-1] == {GPU}
    ran = len(unlimited.ran)
    asyncio.run(unlimited.holding.check())
    assert len(unlimited.ran) == ran
    unlimited.root.quota.follow(GiB)
    asyncio.run(unlimited.holding.check())
    assert SuspendedBy.MEMORY in unlimited.task.suspended_by


def test_what_a_person_is_told(tree: World) -> None:
    def told(limit: int | None) -> list[str]:
        tree.quota.set_limit(limit)
        return limit_notes(tree.root, tree, tree)  # type: ignore[arg-type]

    tree.claim(held=3 * GiB)
    assert told(None) == told(4 * GiB) == []
    assert told(200 * GiB) == ["a limit of 200.0 GiB has no effect: the GPU has 140.0 GiB"]
    assert told(3 * GiB) == []
    assert told(140 * GiB) == []
    (line,) = told(2 * GiB)
    assert line == (f"process {PID} holds 3.0 GiB, more than its new limit: new allocations are refused until it frees")


def test_a_tree_of_several_that_hold_too_much_is_told_as_one(tree: World, region: Region) -> None:
    tree.claim(held=2 * GiB)
    with subprocess.Popen(["sleep", "60"]) as other:
        slot = SLOT.pack(
            identity=other.pid | 1 << 32, start_time=start_of(other.pid) or 0, pid_namespace=pid_namespace(),
            enforced=3, use=[GiB],
        )  # fmt: skip
        os.pwrite(region.fileno(), slot, SLOTS_AT + SLOT.size)
        os.pwrite(region.fileno(), (2).to_bytes(4, "little"), HEADER.offsets["slots_used"])
        tree.quota.set_limit(2 * GiB)
        tree.quota._snapshot = None
        assert limit_notes(tree.root, tree, tree) == [  # type: ignore[arg-type]
            "the processes under 1 hold 3.0 GiB, more than their new limit: new allocations are refused until they free"
        ]
        other.kill()


def test_what_keeps_a_limit_is_told_for_people(region: Region) -> None:
    slot = SimpleNamespace(enforced=Enforced.MEMORY | Enforced.QUERIES)
    bare = SimpleNamespace(enforced=Enforced(0))
    told = [enforcement(PID, one, by_driver=by) for by in (True, False) for one in (slot, bare)]  # type: ignore[arg-type]
    assert told == ["memory (by the driver), queries", "memory (by the driver)", "memory, queries",
                    "nothing: it could not start"]  # fmt: skip
    assert enforcement(PID, None, by_driver=True) == "memory (by the driver)"


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({}, "LD_PRELOAD does not name it"),
        ({"LD_PRELOAD": "/x.so"}, "LD_PRELOAD does not name it"),
        ({"LD_PRELOAD": "librunlist.so", "RUNLIST_DISABLE": "1"}, "RUNLIST_DISABLE is set"),
        ({"LD_PRELOAD": "librunlist.so"}, "RUNLIST_REGION is not set"),
        ({"LD_PRELOAD": "librunlist.so", "RUNLIST_REGION": "/r"}, "it is not in its tree's region"),
    ],
)
def test_why_the_library_is_not_in_a_process(environment: dict[str, str], why: str) -> None:
    with subprocess.Popen(["sleep", "60"], env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            # The kernel shows words and environment a moment after exec.
            wait_for(lambda: Path(f"/proc/{process.pid}/cmdline").read_bytes().startswith(b"sleep\0"))
            assert enforcement(process.pid, None) == f"not loaded: {why}"
        finally:
            process.kill()


# -- holding ----------------------------------------------------------------------------------------


def test_what_is_limited_from_inside_is_left_alone(tree: World) -> None:
    tree.quota.set_limit(GiB)
    tree.claim()
    tree.look()
    assert (tree.task.suspended_by, tree.ran) == ({}, [])


@pytest.mark.parametrize("enforced", [None, 0, 2])
def test_what_is_not_is_suspended_while_its_tree_holds_too_much(tree: World, enforced: int | None) -> None:
    tree.quota.set_limit(2 * GiB)
    if enforced is not None:
        tree.claim(enforced)
    tree.look()
    assert tree.task.task.suspended
    why = tree.task.remark
    assert why.startswith(
        "suspended: its tree holds 3.0 GiB with a limit of 2.0 GiB, which nothing in this process keeps ("
    )
    tree.look()
    assert tree.ran == [{GPU}]  # nothing new
    tree.held[PID] = GiB
    if enforced is not None:
        tree.claim(enforced, GiB)
    tree.look()
    assert (tree.task.task.suspended, tree.task.remark, tree.ran) == (False, "", [{GPU}, {GPU}])


def test_what_came_past_the_library_is_as_if_it_were_not_there(tree: World) -> None:
    tree.quota.set_limit(2 * GiB)
    tree.claim(held=GiB)
    for _ in range(3):
        assert not tree.task.task.suspended  # the driver's list and the region are not of one moment
        tree.look()
    assert "2.0 GiB came past the library" in tree.task.remark
    tree.claim(held=3 * GiB)  # it was the limit that shrank
    tree.look()
    assert not tree.task.task.suspended


def test_what_is_given_and_taken_between_two_readings_came_not_past_the_library(tree: World) -> None:
    """Of a tree at its limit whose processes take from each other what they can."""
    tree.quota.set_limit(3 * GiB)
    for look in range(20):
        tree.held[PID] = 4 * GiB if look % 3 else GiB  # its own and what another one took meanwhile
        tree.claim(held=GiB)
        tree.holding.look(set())
        assert not tree.task.task.suspended
    assert tree.ran == []


def test_what_a_process_gives_back_after_the_driver_was_asked_came_not_past_the_library(
    tree: World, region: Region
) -> None:
    """At each look again, as one does that takes and gives without end. Regions are read anew after 50 ms."""
    tree.quota.set_limit(2 * GiB)
    for _ in range(5):
        tree.claim(held=3 * GiB)
        stock = tree.holding._stock()
        tree.claim(held=GiB)
        tree.holding.look(set(), stock)
        assert not tree.task.task.suspended
        device = region.read().device(GPU)
        assert device is not None
        assert device.unseen == 0


def test_a_tree_does_not_change_its_own_limit(tree: World, region: Region) -> None:
    tree.quota.set_limit(2 * GiB)
    tree.claim(held=GiB)
    for tamper in (
        lambda: region.set_memory(None),
        lambda: region.set_memory(9 * GiB),
        lambda: os.pwrite(region.fileno(), OWN_LIMIT, DEVICES_AT),
    ):
        tamper()
        tree.quota._snapshot = None
        assert tree.quota.limit_on(GPU) == 2 * GiB
        tree.look()
        assert region.read().limit(GPU) == 2 * GiB
    region.set_memory(GiB)  # less may be
    tree.look()
    assert (region.read().memory, tree.quota.limit_on(GPU)) == (GiB, GiB)


def test_what_a_tree_brought_along_is_its_own_until_somebody_limits_it(region: Region) -> None:
    region.set_memory(3 * GiB)
    os.pwrite(region.fileno(), OWN_LIMIT, DEVICES_AT)  # its environment gives this GPU more than the others
    quota = Quota()
    quota.take(region)
    quota.put_back()
    assert (quota.limit, quota.limit_on(GPU)) == (3 * GiB, 9 * GiB)
    quota.follow(8 * GiB)
    assert (quota.limit_on(GPU), region.read().limit(GPU)) == (3 * GiB, 3 * GiB)
    os.pwrite(region.fileno(), OWN_LIMIT, DEVICES_AT)
    quota._snapshot = None
    quota.put_back()
    assert region.read().limit(GPU) == 3 * GiB


def test_a_rule_gives_no_gpu_more_than_its_tree_does(region: Region) -> None:
    os.pwrite(region.fileno(), OWN_LIMIT, DEVICES_AT)  # 9 GiB on this GPU, no limit on the others
    quota = Quota()
    quota.take(region)
    quota.follow(10 * GiB)
    assert (quota.limit_on(GPU), region.read().limit(GPU)) == (9 * GiB, 9 * GiB)


def test_a_limit_that_was_set_holds_for_what_a_tree_brings_along(region: Region) -> None:
    quota = Quota()
    quota.follow(GiB)
    region.set_memory(3 * GiB)
    quota.take(region)
    quota.put_back()
    assert (quota.limit_on(GPU), region.read().limit(GPU)) == (GiB, GiB)


def test_what_its_user_suspended_stays_so(tree: World) -> None:
    tree.quota.set_limit(2 * GiB)
    tree.task.suspend_for(SuspendedBy.USER)
    tree.look()
    tree.quota.set_limit(None)
    tree.look()
    assert tree.task.task.suspended
    tree.task.let_go(SuspendedBy.USER)
    assert not tree.task.task.suspended


def test_the_whole_tree_counts(tree: World) -> None:
    tree.quota.set_limit(4 * GiB)
    tree.look()
    assert not tree.task.task.suspended
    tree.held[1] = 2 * GiB  # another process of it, managed or not
    tree.look()
    assert tree.task.task.suspended


def test_without_a_limit_nothing_is_held(tree: World) -> None:
    tree.look()
    assert not tree.task.task.suspended


def test_what_was_held_is_let_go_where_nothing_is_limited_any_more() -> None:
    tree = World(None)
    tree.quota.follow(2 * GiB)
    tree.look()
    assert tree.task.task.suspended
    tree.quota.follow(None)
    tree.look()
    assert (tree.task.task.suspended, tree.ran) == (False, [{GPU}, {GPU}])


# -- out of reach -----------------------------------------------------------------------------------


def test_the_library_keeps_a_cap_where_nobody_else_can(
    tree: World, region: Region, later: Callable[[float], None]
) -> None:
    tree.claim()
    tree.cap = Cap.of_percent(30)
    tree.look()
    assert region.read().cap is None  # it is managed
    tree.managed.clear()
    tree.look()
    later(9)
    tree.look()
    assert region.read().cap == 0.3
    tree.managed[PID] = tree.process
    tree.look()
    assert region.read().cap is None


def test_a_cap_that_somebody_else_wrote_stays(tree: World, region: Region) -> None:
    region.set_cap(0.5)
    tree.look()
    assert region.read().cap == 0.5
    tree.root.settings = {"cap": "40"}  # which the driver sees to
    tree.look()
    assert region.read().cap is None


def test_processes_that_a_region_names_and_that_are_not_of_its_tree_do_not_count(
    tree: World, later: Callable[[float], None]
) -> None:
    tree.claim(held=100 * GiB)
    tree.held.clear()
    tree.managed.clear()
    tree.look()
    later(9)
    tree.look()
    assert tree.holding.outside == {}


def test_checking_asks_the_driver_only_for_trees_that_have_something(tree: World) -> None:
    asked = 0

    async def refresh() -> None:
        nonlocal asked
        asked += 1

    tree.refresh = refresh  # type: ignore[method-assign]
    asyncio.run(tree.holding.check())
    tree.quota.close()
    asyncio.run(tree.holding.check())
    assert asked == 1


# -- looking at the region -------------------------------------------------------------------------


def test_a_region_is_read_now_and_then(tree: World, region: Region, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, read, clock = [], region.read, SimpleNamespace(now=0.0)
    monkeypatch.setattr(quota_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(region, "read", lambda: reads.append(clock.now) or read())
    for clock.now in (50.0, 50.01, 51.0, 51.01):
        tree.quota.look()
    assert reads == [50.0, 51.0]
    tree.quota.look(kept_s=0.0)
    assert reads == [50.0, 51.0, 51.01]


def test_a_limit_that_did_not_get_into_the_region_is_refused(tree: World, region: Region) -> None:
    tree.quota.set_limit(2 * GiB)
    os.ftruncate(region.fileno(), 10)
    with pytest.raises(NotSupportedError, match=r"of no more use \(.*10 bytes"):
        tree.quota.set_limit(GiB)
    assert tree.quota.limit == 2 * GiB
    assert not tree.quota.has_region


@pytest.mark.parametrize(
    "use",
    [
        lambda quota: quota.activity(PID),
        lambda quota: quota.ask_for_work(PID, asked=True),
        lambda quota: quota.operations(PID),
    ],
)
def test_a_region_that_was_cut_short_is_dropped_whoever_looks(
    tree: World, region: Region, use: Callable[[Quota], object]
) -> None:
    os.ftruncate(region.fileno(), 10)
    assert use(tree.quota) is None
    assert not tree.quota.has_region
    assert "cut short" in tree.quota.trouble


def test_a_tree_that_is_gone_has_no_region_open(tree: World, region: Region) -> None:
    fd = region.fileno()
    tree.quota.close()
    assert not os.path.realpath(f"/proc/self/fd/{fd}").endswith(".region")
    tree.quota.close()  # again: nothing


def test_a_limit_of_the_rules_holds_for_what_is_there(tree: World) -> None:
    assert not tree.quota.take_note(GPU, 3 * GiB)
    tree.quota.follow(2 * GiB)
    assert tree.quota.take_note(GPU, 3 * GiB)
    tree.quota.follow(4 * GiB)
    assert not tree.quota.take_note(GPU, 3 * GiB)


def test_when_the_rules_limit_goes_what_the_tree_brought_along_counts_again(region: Region) -> None:
    region.set_memory(3 * GiB)
    quota = Quota()
    quota.take(region)
    for limit, counts in ((GiB, GiB), (2 * GiB, 2 * GiB), (8 * GiB, 3 * GiB), (GiB, GiB), (None, 3 * GiB)):
        quota.follow(limit)
        assert (quota.limit_on(GPU), region.read().memory) == (counts, counts)
    assert quota.firm is None  # its own, as before
    quota.follow(GiB, keeps=True)
    assert quota.firm == GiB
