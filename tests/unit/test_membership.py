"""Which tree a process is of: by its parents, by who manages it, and by where it was seen."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from runlist.daemon.tasks.managed import Root
from runlist.daemon.tree import membership
from runlist.daemon.tree.membership import Membership
from runlist.daemon.tree.processes import Processes

GONE = 1 << 30
"""No process has such an id."""


class World:
    """Real processes, and the books of a daemon that has no GPU."""

    def __init__(self) -> None:
        loop = asyncio.new_event_loop()
        gpus: Any = SimpleNamespace(tree_ended=lambda root: None, run_all=lambda: None, remove=lambda task: None)
        loop.run_until_complete(self._open(gpus))
        self.loop = loop
        self.members = Membership(self.processes)

    async def _open(self, gpus: Any) -> None:
        self.processes = Processes(gpus, SimpleNamespace(), SimpleNamespace(work=False))  # type: ignore[arg-type]

    def trees(self, pid: int) -> list[int]:
        return [root.pid for root in self.members.trees_of(pid)]

    def manage(self, pid: int, root: Root) -> None:
        entered: Any = SimpleNamespace(pid=pid, root=root)
        self.processes.managed[pid] = entered

    def close(self) -> None:
        self.processes.managed.clear()
        self.processes.close()
        self.loop.close()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


@pytest.fixture
def family() -> Iterator[list[int]]:
    """A process, its child, and the child of that; the last goes on when those above it end."""
    code = (
        "import os, sys\nprint(os.getpid(), flush=True)\n"
        "if int(sys.argv[1]): os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, '-c', sys.orig_argv[2], "
        "str(int(sys.argv[1]) - 1)])\nsys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, "2"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    yield [int(process.stdout.readline()) for _ in range(3)]
    process.communicate()


def test_a_process_is_of_the_trees_above_it(world: World, family: list[int]) -> None:
    top, middle, bottom = family
    world.processes.add_root(top, {})
    world.processes.add_root(middle, {})
    world.members.update(family)
    assert [world.trees(pid) for pid in family] == [[top], [middle, top], [middle, top]]
    assert world.trees(os.getpid()) == []
    world.processes.remove_root(world.processes.roots[middle])
    world.members.update(family)
    assert world.trees(bottom) == [top]


def test_who_was_seen_in_a_tree_is_of_it_wherever_it_goes(world: World, family: list[int]) -> None:
    top, middle, bottom = family
    world.processes.add_root(top, {})
    world.members.update([bottom])
    os.kill(middle, 9)
    while _parent(bottom) == middle:
        pass
    assert world.processes.root_of(bottom) is None
    world.members.update([bottom])
    assert world.trees(bottom) == [top]
    world.members.update([])  # it has no GPU memory now, and nobody remembers it
    world.members.update([bottom])
    assert world.trees(bottom) == []


def test_one_of_no_tree_is_of_the_one_that_comes_and_of_the_next_once_that_is_gone(
    world: World, family: list[int]
) -> None:
    top, _, bottom = family
    world.members.update([bottom])
    assert world.trees(bottom) == []
    first = world.processes.add_root(top, {})
    world.members.update([bottom])
    assert world.trees(bottom) == [top]
    other = world.processes.add_root(os.getpid(), {})  # who manages it meanwhile, though it was seen in the first
    world.manage(bottom, other)
    world.members.update([bottom])
    assert world.trees(bottom) == [top]
    world.processes.remove_root(first)
    world.members.update([bottom])
    assert world.trees(bottom) == [os.getpid()]


def test_below_a_process_that_is_managed_is_its_tree(world: World, family: list[int]) -> None:
    top, middle, bottom = family
    root = world.processes.add_root(top, {})
    world.manage(middle, root)
    os.kill(top, 9)
    while _parent(middle) == top:
        pass
    world.members.update([bottom])
    assert world.trees(bottom) == [top]


def test_a_process_that_ended_is_of_the_tree_that_it_was_in(world: World, family: list[int]) -> None:
    top, _, bottom = family
    root = world.processes.add_root(top, {})
    world.members.update([bottom, os.getpid()])
    assert not world.members.has_ended(bottom)
    os.kill(bottom, 9)
    while not world.members.has_ended(bottom):
        world.members.update([bottom, os.getpid()])
    assert (world.trees(bottom), world.members.has_ended(os.getpid())) == ([top], False)
    world.processes.ended[GONE] = root
    world.members.update([GONE, GONE + 1])
    assert (world.trees(GONE), world.trees(GONE + 1)) == ([top], [])
    world.members.adopt(GONE + 1, root)
    assert world.trees(GONE + 1) == [top]
    world.members.update([])
    assert world.processes.ended == {}


def test_one_of_no_tree_is_of_that_which_knew_it_when_it_ended(world: World, family: list[int]) -> None:
    *_, bottom = family
    world.members.update([bottom])
    assert world.trees(bottom) == []
    with subprocess.Popen(["sleep", "60"]) as elsewhere:
        world.processes.ended[bottom] = world.processes.add_root(elsewhere.pid, {})
        os.kill(bottom, 9)
        while not world.members.has_ended(bottom):
            world.members.update([bottom])
        assert world.trees(bottom) == [elsewhere.pid]
        elsewhere.kill()


def test_a_tree_stays_while_somebody_keeps_the_memory_of_its_last_process(world: World, family: list[int]) -> None:
    root = world.processes.add_root(family[0], {})
    world.processes.ended[GONE] = root
    world.processes._root_ended(root)
    assert world.processes.roots == {root.pid: root}
    world.members.update([GONE])
    assert world.processes.roots == {root.pid: root}
    world.members.update([])
    assert world.processes.roots == {}


def _parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def test_who_is_of_no_tree_is_asked_about_again_when_the_trees_change(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    roots: dict[int, object] = {7: "a tree"}
    processes: Any = SimpleNamespace(
        roots=roots, managed={}, ended={}, forget_ended=lambda known: None, chain=lambda root: [],
        root_of=asked.append,
    )  # fmt: skip
    monkeypatch.setattr(membership, "walks", lambda: 3)
    members = Membership(processes)
    for _ in range(3):
        members.update([os.getpid()])
    assert asked == [os.getpid()]
    roots[8] = "another"
    for _ in range(2):
        members.update([os.getpid()])
    assert asked == [os.getpid()] * 2
    monkeypatch.setattr(membership, "walks", lambda: 4)  # /proc was walked: it may be known now whose it is
    for _ in range(2):
        members.update([os.getpid()])
    assert asked == [os.getpid()] * 3
