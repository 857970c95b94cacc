"""Memory limits of groups: whose they are, when a group is over, and what its trees may have meanwhile."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from runlist.daemon.memory.ceiling import OFTEN, TOLERANCE
from runlist.daemon.memory.quota import Quota
from runlist.daemon.tasks.managed import ManagedTask, Root
from runlist.daemon.tree.group_memory import GroupMemory
from runlist.model import TaskKey
from runlist.planes.process.region import create, gpu_key
from runlist.planes.process.region.format import DEVICE, DEVICES_AT
from tests.fixtures.memory_world import GPU, GiB, task

OTHER_GPU = "GPU-00000000-0000-0000-0000-000000000002"
TREES = {10: 11, 20: 21}
"""A process of each tree, by the pid of its root."""


class World:
    """Two trees, each with a region and a process, whose rule gives the group "team" 4 GiB together."""

    def __init__(self, folder: Path) -> None:
        self.groups = GroupMemory()
        self.roots = {pid: Root(pid, -1, 0, {}, quota=Quota(create(folder, strict=True)[1])) for pid in TREES}
        self.tasks = {pid: self.member(pid, root) for root, pid in TREES.items()}
        for root in self.roots.values():
            assert root.quota._region is not None
            os.pwrite(root.quota._region.fileno(), DEVICE.pack(key=gpu_key(GPU)), DEVICES_AT)

    def member(self, pid: int, root: int, limit: int | None = 4 * GiB, group: str = "team") -> ManagedTask:
        return ManagedTask(replace(task(pid), group=group), root=self.roots[root], shared_memory=limit)

    def update(self) -> None:
        self.groups.update(self.tasks.values())

    def hold(self, *held: float, gpu: str = GPU) -> None:
        """The processes hold so many GiB on a GPU."""
        stock = {
            root: {TaskKey(pid, gpu): int(gib * GiB)} for (root, pid), gib in zip(TREES.items(), held, strict=True)
        }
        self.groups.take_stock(stock, lambda pid: pid in self.tasks)

    def take_note(self, *held: float, sure: bool = True, answers: bool = True) -> None:
        self.hold(*held)
        self.groups.take_note(
            [GPU, OTHER_GPU], lambda name, gpu: sure and (name, gpu) == ("team", GPU), lambda gpu: answers
        )

    def off(self, kept_inside: Callable[[], bool] = lambda: True) -> list[str]:
        """Why each process is to be off, as one who is shown it reads it."""
        return [self.groups.why_off(pid, GPU, kept_inside) for pid in TREES.values()]

    def left(self) -> list[int | None]:
        """What the library of each tree is told to keep to."""
        return [root.quota.look(kept_s=0.0).limit(GPU) for root in self.roots.values()]  # type: ignore[union-attr]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    made.update()
    made.take_note(0, 0)  # what a group holds at the first look it keeps
    yield made
    for root in made.roots.values():
        root.quota.close()


def test_a_group_is_over_once_its_trees_hold_more_together(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.take_note(2, 2)
    assert world.off() == ["", ""]
    world.take_note(2, 3, sure=False)
    assert world.off() == ["", ""]
    world.take_note(2, 3)
    assert world.off() == ["suspended: its group holds 5.0 GiB with a limit of 4.0 GiB"] * 2
    world.take_note(2, 2)
    assert world.off() == ["", ""]
    said = capsys.readouterr().out
    assert re.findall(r"a group holds (more|no more) than its memory limit", said) == ["more", "no more"]


def test_who_does_not_keep_the_limit_is_off_also_where_the_group_was_only_given_less(world: World) -> None:
    world.take_note(2, 2)
    for member in world.tasks.values():
        member.shared_memory = 3 * GiB
    world.update()
    world.take_note(2, 2)
    assert world.off(lambda: True) == ["", ""]
    assert world.off(lambda: False) == ["suspended: its group holds 4.0 GiB with a limit of 3.0 GiB"] * 2
    world.take_note(2, 1)
    assert world.off(lambda: False) == ["", ""]


def test_a_list_that_fails_lets_no_group_go_and_holds_none_back(world: World) -> None:
    world.take_note(2, 3)
    world.take_note(0, 0, answers=False)
    assert all(world.off())
    world.take_note(0, 0)
    assert not any(world.off())
    world.take_note(2, 3, answers=False)  # by what the libraries say
    assert all(world.off())


def test_a_group_that_is_over_again_and_again_is_off_for_a_while(world: World) -> None:
    for look in range(1, OFTEN + 1):
        world.hold(2, 3)
        assert world.groups.breaking([GPU, OTHER_GPU]) == {("team", GPU)}
        often = world.groups.breaking([GPU, OTHER_GPU], Quota.breaks_often)
        assert often == (set() if look < OFTEN else {("team", GPU)})
        world.take_note(2, 2, sure=bool(often))
    assert world.off() == ["suspended for a while: its group held more than its 4.0 GiB again and again"] * 2


@pytest.mark.parametrize("octets", [4 * GiB + TOLERANCE, 4 * GiB + TOLERANCE + 1])
def test_what_two_readings_may_differ_by_breaks_nothing(world: World, octets: int) -> None:
    world.groups.take_stock({10: {TaskKey(11, GPU): octets}}, lambda _: True)
    assert bool(world.groups.breaking([GPU])) is (octets > 4 * GiB + TOLERANCE)


def test_each_tree_may_have_what_the_others_leave(world: World) -> None:
    world.take_note(1, 2.5)
    assert world.left() == [1.5 * GiB, 3 * GiB]
    world.take_note(1, 5)
    assert world.left() == [0, 3 * GiB]
    world.tasks.clear()  # of another group, or of none
    world.update()
    assert world.left() == [None, None]
    assert not world.groups
    assert world.off(lambda: False) == ["", ""]


def test_a_tree_with_processes_of_two_groups_may_have_what_either_leaves(world: World) -> None:
    for limit in (1, 8):
        world.tasks[12] = world.member(12, 10, limit=limit * GiB, group="others")
        world.update()
        world.take_note(0.5, 2)
        assert world.left() == [min(limit, 2) * GiB, 3.5 * GiB]
        assert world.roots[10].quota.look(kept_s=0.0).memory == min(limit, 4) * GiB  # type: ignore[union-attr]


def test_who_leaves_a_group_is_not_held_for_it(world: World) -> None:
    world.take_note(2, 3)
    del world.tasks[11]
    world.update()
    world.take_note(2, 5)
    assert world.off() == ["", "suspended: its group holds 5.0 GiB with a limit of 4.0 GiB"]


def test_the_smallest_limit_counts_for_all_of_a_group(world: World) -> None:
    for first, second in ((4, 3), (3, 4)):
        world.tasks[11].shared_memory, world.tasks[21].shared_memory = first * GiB, second * GiB
        world.update()
        world.take_note(2, 2)
        assert world.off(lambda: False)[0] == "suspended: its group holds 4.0 GiB with a limit of 3.0 GiB"


def test_who_is_in_no_group_with_a_limit_is_limited_by_none(world: World) -> None:
    others = [
        world.member(31, 10, limit=None),
        world.member(32, 10, group=""),
        world.member(33, 10),
        ManagedTask(replace(task(34), group="team"), shared_memory=GiB),  # of no tree
    ]
    others[2].task = replace(others[2].task, group_of=1000)  # a user's own, of the same name
    groups = GroupMemory()
    groups.update(others)
    assert (bool(groups), groups.roots) == (False, set())
    groups.update([*others, *world.tasks.values()])
    assert (bool(groups), groups.roots) == (True, {10, 20})
    groups.take_note([GPU], lambda *_: True, lambda _: True)
    groups.take_stock({10: {TaskKey(pid, GPU): 5 * GiB for pid in (31, 32, 33)}}, {31, 32, 33}.__contains__)
    assert groups.breaking([GPU]) == set()
    groups.take_stock({10: {TaskKey(99, GPU): 5 * GiB}}, lambda _: False)
    assert groups.breaking([GPU]) == {("team", GPU)}  # one that nobody has reached yet is of its tree's group


def test_gpus_are_counted_by_themselves(world: World) -> None:
    world.hold(2, 3, gpu=OTHER_GPU)
    assert world.groups.breaking([GPU, OTHER_GPU]) == {("team", OTHER_GPU)}
