"""Limits of trees as the daemon sees to them: set, told, held from outside, and capped from inside."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runlist.daemon.memory.driver_limits import DriverLimits
from runlist.daemon.memory.quota import Quota
from runlist.daemon.requests.limit_notes import limit_notes
from runlist.daemon.tasks.managed import ManagedTask, Root, SuspendedBy
from runlist.daemon.tree import memory_guard
from runlist.daemon.tree.memory_guard import MemoryGuard
from runlist.errors import NotSupportedError
from runlist.model import Cap, Task, TaskClass, TaskKey
from runlist.planes.process.region import Region, create
from runlist.planes.process.region.file import gpu_key
from runlist.planes.process.region.format import DEVICE, DEVICES_AT, HEADER, NO_LIMIT, SLOT, SLOTS_AT
from runlist.proc.process import pid_namespace, start_of

GPU = "GPU-00000000-0000-0000-0000-000000000001"
GiB = 1 << 30
OWN_LIMIT = DEVICE.pack(key=gpu_key(GPU), memory_value=9 * GiB, memory_check=9 * GiB ^ NO_LIMIT)
PID = os.getpid()


class World:
    """One tree with one process on one GPU, as the daemon knows it."""

    def __init__(self, region: Region | None) -> None:
        self.region = region
        self.quota = Quota(region)
        self.root = Root(1, -1, 0, {}, quota=self.quota)
        self.task = ManagedTask(task(PID), root=self.root, reached_by="own right")
        self.process = SimpleNamespace(pid=PID, root=self.root, tasks={GPU: self.task})
        self.managed = {PID: self.process}
        self.roots = {1: self.root}
        self.left: dict[int, str] = {}
        self.held = {PID: 3 * GiB}
        self.size = 140 * GiB
        self.ran: list[set[str]] = []
        self.cap: Cap | None = None
        self.ended: dict[int, Root] = {}
        self.heirs: dict[int, int] = {}
        self.answering = True
        self.nobodys = 0
        self.sought: list[Root] = []
        self.let_go = 0
        self.holding = MemoryGuard(self, self, self, self, self.close_files, self.sought.append)  # type: ignore[arg-type]

    # -- as Processes, Gpus, Memory and Placement --------------------------------------------------

    def under(self, pid: int) -> list[Any]:
        return list(self.managed.values())

    def tasks(self) -> list[ManagedTask]:
        return [task for process in self.managed.values() for task in process.tasks.values()]

    def root_of(self, pid: int) -> Root | None:
        return self.root if pid in self.held and pid < 1 << 30 else None

    def chain(self, root: Root | None) -> list[Root]:
        return [] if root is None else [root]

    def forget_ended(self, but: Any) -> None:
        pass

    def close_files(self) -> None:
        self.let_go += 1

    def all(self) -> list[Any]:
        return []

    def run(self, gpus: set[str], asked_for: set[TaskKey]) -> None:
        if gpus:
            self.ran.append(set(gpus))

    def gpus(self) -> list[str]:
        return [GPU]

    def listed(self, gpu: str) -> dict[int, int]:
        return self.held

    def by_pid(self, gpu: str) -> dict[int, int]:
        return {self.heirs.get(pid, pid): octets for pid, octets in self.held.items()}

    def answers(self, gpu: str) -> bool:
        return self.answering

    def unowned(self, gpu: str) -> int:
        return self.nobodys

    def size_of(self, gpu: str) -> int:
        return self.size

    async def refresh(self) -> None:
        pass

    def new_task(self, pid: int, gpu: str, root: Root) -> ManagedTask:
        return ManagedTask(task(pid, self.cap), root=root)

    # ----------------------------------------------------------------------------------------------

    def claim(self, enforced: int = 3, held: int = 3 * GiB) -> None:
        """The library in the process is at work."""
        assert self.region is not None
        fd = self.region.fileno()
        os.pwrite(fd, DEVICE.pack(key=gpu_key(GPU)), DEVICES_AT)
        slot = SLOT.pack(
            identity=PID | 1 << 32, start_time=start_of(PID) or 0, pid_namespace=pid_namespace(), enforced=enforced,
            use=[held],
        )  # fmt: skip
        os.pwrite(fd, slot, SLOTS_AT)
        os.pwrite(fd, (1).to_bytes(4, "little"), HEADER.offsets["slots_used"])
        self.quota._snapshot = None

    def look(self) -> None:
        self.quota._snapshot = None
        self.holding.look()


def task(pid: int, cap: Cap | None = None) -> Task:
    return Task(TaskKey(pid, GPU), TaskClass.NORMAL, "x", 0, 0.0, cap=cap)


@pytest.fixture
def region(tmp_path: Path) -> Region:
    return create(tmp_path, strict=True)[1]


@pytest.fixture
def world(region: Region) -> Iterator[World]:
    made = World(region)
    yield made
    made.quota.close()


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the clock of the module."""
    now = 1000.0

    def move(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(memory_guard, "time", SimpleNamespace(monotonic=lambda: now))
    return move


# -- setting ----------------------------------------------------------------------------------------


def test_a_limit_goes_into_the_region(world: World, region: Region) -> None:
    world.quota.set_limit(2 * GiB)
    assert (region.read().memory, world.quota.limit, world.quota.limit_on(GPU)) == (2 * GiB, 2 * GiB, 2 * GiB)
    world.quota.set_limit(None)
    assert (region.read().memory, world.quota.limit_on(GPU)) == (None, None)


def test_without_a_region_a_user_is_refused_and_a_rule_holds_from_outside() -> None:
    quota = Quota()
    with pytest.raises(NotSupportedError, match="start it with `runlist run --memory`"):
        quota.set_limit(GiB)
    quota.tighten(2 * GiB)
    quota.tighten(GiB)
    quota.tighten(3 * GiB)
    quota.tighten(None)
    assert (quota.limit, quota.limit_on(GPU)) == (GiB, GiB)


def test_a_region_that_a_process_cuts_short_is_dropped_and_the_limit_stays(world: World, region: Region) -> None:
    world.quota.set_limit(GiB)
    os.ftruncate(region.fileno(), 10)
    world.quota._snapshot = None
    assert world.quota.look() is None
    assert not world.quota.has_region
    assert "10 bytes" in world.quota.trouble
    assert world.quota.limit_on(GPU) == GiB
    with pytest.raises(NotSupportedError, match="of no more use"):
        world.quota.set_limit(2 * GiB)
    world.look()
    assert SuspendedBy.MEMORY in world.task.suspended_by  # nothing in it sees to it any more


def test_a_region_that_a_process_brings_along_says_what_holds(region: Region) -> None:
    region.set_memory(5 * GiB)
    quota = Quota()
    quota.take(region)
    assert (quota.has_region, quota.limit) == (True, 5 * GiB)
    quota.close()


def test_what_was_refused_is_known_after_the_end_and_never_shrinks(world: World, region: Region) -> None:
    def refuse(count: int) -> None:
        os.pwrite(region.fileno(), DEVICE.pack(key=gpu_key(GPU), refusals=count), DEVICES_AT)

    assert world.quota.refused(GPU) == 0
    for written, told in ((3, 3), (1, 3), (7, 7)):
        refuse(written)
        world.quota._snapshot = None
        assert world.quota.refused(GPU) == told
    assert world.quota.refused("GPU-of another") == 0
    refuse(9)  # the last word of a tree that ends
    world.quota.close()
    assert world.quota.refused(GPU) == 9


def test_what_a_person_is_told(world: World) -> None:
    def told(limit: int | None) -> list[str]:
        world.quota.set_limit(limit)
        return limit_notes(world.root, world, world)  # type: ignore[arg-type]

    world.claim(held=3 * GiB)
    assert told(None) == told(4 * GiB) == []
    assert told(200 * GiB) == ["a limit of 200.0 GiB has no effect: the GPU has 140.0 GiB"]
    (line,) = told(2 * GiB)
    assert line == (f"process {PID} holds 3.0 GiB, more than its new limit: new allocations are refused until it frees")


# -- holding ----------------------------------------------------------------------------------------


def test_what_is_limited_from_inside_is_left_alone(world: World) -> None:
    world.quota.set_limit(GiB)
    world.claim()
    world.look()
    assert (world.task.suspended_by, world.ran) == ({}, [])


@pytest.mark.parametrize("enforced", [None, 0, 2])
def test_what_is_not_is_suspended_while_its_tree_holds_too_much(world: World, enforced: int | None) -> None:
    world.quota.set_limit(2 * GiB)
    if enforced is not None:
        world.claim(enforced)
    world.look()
    assert world.task.task.suspended
    why = world.task.remark
    assert why.startswith(
        "suspended: its tree holds 3.0 GiB with a limit of 2.0 GiB, which nothing in this process keeps ("
    )
    world.look()
    assert world.ran == [{GPU}]  # nothing new
    world.held[PID] = GiB
    if enforced is not None:
        world.claim(enforced, GiB)
    world.look()
    assert (world.task.task.suspended, world.task.remark, world.ran) == (False, "", [{GPU}, {GPU}])


def test_what_came_past_the_library_is_as_if_it_were_not_there(world: World) -> None:
    world.quota.set_limit(2 * GiB)
    world.claim(held=GiB)
    world.look()
    assert "2.0 GiB came past the library" in world.task.remark
    world.claim(held=3 * GiB)  # it was the limit that shrank
    world.look()
    assert not world.task.task.suspended


def test_a_tree_does_not_change_its_own_limit(world: World, region: Region) -> None:
    world.quota.set_limit(2 * GiB)
    world.claim(held=GiB)
    for tamper in (
        lambda: region.set_memory(None),
        lambda: region.set_memory(9 * GiB),
        lambda: os.pwrite(region.fileno(), OWN_LIMIT, DEVICES_AT),
    ):
        tamper()
        world.quota._snapshot = None
        assert world.quota.limit_on(GPU) == 2 * GiB
        world.look()
        assert region.read().limit(GPU) == 2 * GiB
    region.set_memory(GiB)  # less may be
    world.look()
    assert (region.read().memory, world.quota.limit_on(GPU)) == (GiB, GiB)


def test_what_a_tree_brought_along_is_its_own_until_somebody_limits_it(region: Region) -> None:
    region.set_memory(3 * GiB)
    os.pwrite(region.fileno(), OWN_LIMIT, DEVICES_AT)  # its environment gives this GPU more than the others
    quota = Quota()
    quota.take(region)
    quota.put_back()
    assert (quota.limit, quota.limit_on(GPU)) == (3 * GiB, 9 * GiB)
    quota.tighten(8 * GiB)
    assert (quota.limit_on(GPU), region.read().limit(GPU)) == (3 * GiB, 3 * GiB)
    os.pwrite(region.fileno(), OWN_LIMIT, DEVICES_AT)
    quota._snapshot = None
    quota.put_back()
    assert region.read().limit(GPU) == 3 * GiB


def test_a_rule_gives_no_gpu_more_than_its_tree_does(region: Region) -> None:
    os.pwrite(region.fileno(), OWN_LIMIT, DEVICES_AT)  # 9 GiB on this GPU, no limit on the others
    quota = Quota()
    quota.take(region)
    quota.tighten(10 * GiB)
    assert (quota.limit_on(GPU), region.read().limit(GPU)) == (9 * GiB, 9 * GiB)


def test_a_limit_that_was_set_holds_for_what_a_tree_brings_along(region: Region) -> None:
    quota = Quota()
    quota.tighten(GiB)
    region.set_memory(3 * GiB)
    quota.take(region)
    quota.put_back()
    assert (quota.limit_on(GPU), region.read().limit(GPU)) == (GiB, GiB)


def test_what_its_user_suspended_stays_so(world: World) -> None:
    world.quota.set_limit(2 * GiB)
    world.task.suspend_for(SuspendedBy.USER)
    world.look()
    world.quota.set_limit(None)
    world.look()
    assert world.task.task.suspended
    world.task.let_go(SuspendedBy.USER)
    assert not world.task.task.suspended


def test_the_whole_tree_counts(world: World) -> None:
    world.quota.set_limit(4 * GiB)
    world.look()
    assert not world.task.task.suspended
    world.held[1] = 2 * GiB  # another process of it, managed or not
    world.look()
    assert world.task.task.suspended


def test_without_a_limit_nothing_is_held(world: World) -> None:
    world.look()
    assert not world.task.task.suspended


# -- whatever the region says ----------------------------------------------------------------------


@pytest.fixture
def strict(world: World) -> World:
    """A tree that was started with a limit of 2 GiB."""
    world.quota.set_limit(2 * GiB, keeps=False)
    world.held[PID] = GiB
    world.claim(held=GiB)
    world.look()
    assert not world.task.task.suspended
    return world


def test_a_tree_with_more_than_its_limit_is_off_whatever_its_library_tells(strict: World, region: Region) -> None:
    strict.held[PID] = 3 * GiB
    strict.claim(held=3 * GiB)  # the library knows of all of it
    strict.look()
    assert strict.task.remark == "suspended: its tree holds 3.0 GiB with a limit of 2.0 GiB"
    assert strict.ran[-1] == {GPU}
    strict.claim(held=0)
    region.set_memory(GiB)
    strict.look()
    assert strict.task.task.suspended
    strict.held[PID] = 2 * GiB
    strict.claim(held=2 * GiB)
    strict.look()
    assert not strict.task.task.suspended


def test_a_library_that_tells_of_more_than_the_driver_is_believed(strict: World) -> None:
    strict.claim(held=3 * GiB)
    strict.look()
    assert strict.task.task.suspended


def test_what_it_had_when_its_limit_was_lowered_it_keeps(strict: World, later: Callable[[float], None]) -> None:
    strict.quota.set_limit(GiB // 2)
    strict.look()
    later(1)
    strict.look()
    assert not strict.task.task.suspended


def test_who_enables_itself_is_suspended_again_at_every_look(strict: World) -> None:
    suspended: list[object] = []
    strict.task.contexts[1] = SimpleNamespace(suspend=lambda: suspended.append(1))  # type: ignore[assignment]
    strict.held[PID] = 3 * GiB
    strict.look()
    strict.task.share = replace(strict.task.share, enabled=False)  # as the scheduler does
    strict.look()
    strict.look()
    assert len(suspended) == 2


def test_a_census_that_fails_lets_nobody_go(strict: World) -> None:
    strict.held[PID] = 3 * GiB
    strict.look()
    strict.answering = False
    strict.held.clear()
    strict.look()
    assert strict.task.task.suspended
    strict.answering = True
    strict.look()
    assert not strict.task.task.suspended


def test_what_came_past_the_library_is_counted_by_it_from_then_on(strict: World, region: Region) -> None:
    def unseen() -> int:
        device = region.read().device(GPU)
        assert device is not None
        return device.unseen

    for held, counted in ((1.5, 0), (1.75, 0), (1.5, 0.5), (1.75, 0.5), (1.75, 0.5), (1.75, 0.75), (1, 0)):
        strict.held[PID] = int(held * GiB)
        strict.look()
        assert unseen() == counted * GiB
    assert region.read().used(GPU) == GiB
    strict.held[PID] = 2 * GiB
    for _ in range(3):
        strict.look()
    assert (unseen(), region.read().used(GPU)) == (GiB, 2 * GiB)
    again = Region(os.dup(region.fileno()))
    strict.quota.close()  # nobody looks any more
    assert again.read().used(GPU) == GiB


def test_one_list_that_counts_twice_what_was_handed_over_does_no_harm(strict: World) -> None:
    looks = iter([{PID: GiB, 1: 2 * GiB}, {PID: GiB}])

    async def refresh() -> None:
        strict.held = next(looks, strict.held)

    strict.refresh = refresh  # type: ignore[method-assign]
    asyncio.run(strict.holding.check())
    assert not strict.task.task.suspended
    assert strict.let_go == 1  # it may have been we who kept it
    assert strict.held == {PID: GiB}
    strict.held = {PID: GiB, 1: 2 * GiB}
    asyncio.run(strict.holding.check())
    assert strict.task.task.suspended


def test_what_a_process_kept_that_ended_is_its_trees(strict: World) -> None:
    gone = 1 << 30
    strict.held = {gone: 3 * GiB}
    strict.ended[gone] = strict.root
    strict.managed.clear()
    strict.look()
    assert strict.quota.is_over(GPU)
    assert strict.sought == [strict.root]  # somebody must have it
    strict.look()
    assert len(strict.sought) == 1
    strict.managed[PID] = strict.process
    strict.look()
    assert strict.heirs == {gone: PID}
    assert strict.by_pid(GPU) == {PID: 3 * GiB}
    assert strict.task.task.suspended


def test_nobody_pays_for_what_a_stranger_left(strict: World) -> None:
    strict.held = {PID: GiB, 1 << 30: 9 * GiB}
    strict.look()
    assert not strict.task.task.suspended


def test_what_nobody_holds_is_in_the_log_once(strict: World, capsys: pytest.CaptureFixture[str]) -> None:
    strict.nobodys = GiB
    for _ in range(5):
        strict.look()
    assert capsys.readouterr().out.count("memory is in use that no process is known to hold") == 1


# -- out of reach -----------------------------------------------------------------------------------


def test_who_is_not_managed_is_shown_after_a_while(world: World, later: Callable[[float], None]) -> None:
    world.managed.clear()
    world.look()
    assert world.holding.outside == {}
    later(memory_guard.PATIENCE_S)
    world.left[PID] = "no right"
    world.look()
    (shown,) = world.holding.outside.values()
    assert (shown.reached_by, shown.remark) == ("", "not managed: no right")
    world.managed[PID] = world.process
    world.look()
    assert world.holding.outside == {}


def test_those_detached_by_name_are_not_shown(world: World, later: Callable[[float], None]) -> None:
    world.managed.clear()
    world.root.excluded.add(PID)
    world.look()
    later(9)
    world.look()
    assert world.holding.outside == {}


def test_the_library_keeps_a_cap_where_nobody_else_can(
    world: World, region: Region, later: Callable[[float], None]
) -> None:
    world.claim()
    world.cap = Cap.of_percent(30)
    world.look()
    assert region.read().cap is None  # it is managed
    world.managed.clear()
    world.look()
    later(9)
    world.look()
    assert region.read().cap == 0.3
    world.managed[PID] = world.process
    world.look()
    assert region.read().cap is None


def test_a_cap_that_somebody_else_wrote_stays(world: World, region: Region) -> None:
    region.set_cap(0.5)
    world.look()
    assert region.read().cap == 0.5
    world.root.settings = {"cap": "40"}  # which the driver sees to
    world.look()
    assert region.read().cap is None


def test_processes_that_a_region_names_and_that_are_not_of_its_tree_do_not_count(
    world: World, later: Callable[[float], None]
) -> None:
    world.claim(held=100 * GiB)
    world.held.clear()
    world.managed.clear()
    world.look()
    later(9)
    world.look()
    assert world.holding.outside == {}


# -- by the driver ----------------------------------------------------------------------------------


class Group:
    def __init__(self) -> None:
        self.limits: list[int | None] = []
        self.closed = False

    def set(self, limit: int | None) -> None:
        self.limits.append(limit)

    def close(self) -> None:
        self.closed = True


def test_where_the_driver_has_limits_it_keeps_them_and_the_region_says_so(region: Region) -> None:
    group = Group()
    world = World(region)
    world.quota = world.root.quota = Quota(region, lambda: group)
    world.quota.set_limit(GiB)
    assert (group.limits, region.read().memory, world.quota.by_driver) == ([GiB], GiB, True)
    world.look()
    assert not world.task.task.suspended
    world.quota.close()
    assert group.closed


def test_then_also_what_was_not_started_by_us_can_be_limited() -> None:
    group = Group()
    quota = Quota(group=lambda: group)
    quota.set_limit(GiB)
    assert (quota.limit, group.limits) == (GiB, [GiB])


@pytest.fixture
def childless() -> Iterator[int]:
    """A process of the test's own; nothing else starts or ends below it."""
    process = subprocess.Popen(["sleep", "60"])
    yield process.pid
    process.kill()
    process.wait()


def test_a_tree_gets_a_cgroup_below_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, childless: int) -> None:
    calls: list[tuple[str, Path, int | None]] = []
    monkeypatch.setattr("runlist.daemon.memory.driver_limits.cgroup_of", lambda pid: ("/a.slice", ""))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (tmp_path / "a.slice").mkdir()
    memory: Any = SimpleNamespace(
        limits_supported=lambda cgroup: True, gpus=lambda: [GPU], limit=lambda *call: calls.append(call)
    )
    limits = DriverLimits(memory, tmp_path)
    assert not limits.work  # not the unified hierarchy
    (tmp_path / "cgroup.controllers").touch()
    limits = DriverLimits(memory, tmp_path)
    assert limits.work
    group = limits.enter(childless)
    path = tmp_path / "a.slice" / f"runlist-{childless}"
    assert (path / "cgroup.procs").read_text() == str(childless)
    group.set(GiB)
    group.set(None)
    assert calls == [(GPU, path, GiB), (GPU, path, None)]
    group.close()
    assert (tmp_path / "a.slice" / "cgroup.procs").read_text() == str(childless)  # moved back
    with pytest.raises(NotSupportedError, match="cannot be made"):
        DriverLimits(memory, tmp_path / "none").enter(childless)


def test_checking_asks_the_driver_only_for_trees_that_have_something(world: World) -> None:
    asked = 0

    async def refresh() -> None:
        nonlocal asked
        asked += 1

    world.refresh = refresh  # type: ignore[method-assign]
    asyncio.run(world.holding.check())
    world.quota.close()
    asyncio.run(world.holding.check())
    assert asked == 1
