"""Trees that hold more than their limit, whatever their region says."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from runlist.daemon.tasks.managed import Root
from runlist.daemon.tree import memory_guard
from runlist.model import TaskKey
from runlist.planes.process.region import Region
from tests.fixtures.memory_world import GPU, PID, GiB, World

# As they are to be: taken from the code they would hold whatever it says.
SEARCHES = 5


@pytest.fixture
def strict(tree: World) -> World:
    """A tree that was started with a limit of 2 GiB."""
    tree.quota.set_limit(2 * GiB, keeps=False)
    tree.held[PID] = GiB
    tree.claim(held=GiB)
    tree.look()
    assert not tree.task.task.suspended
    return tree


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits before a tree is looked at again."""
    monkeypatch.setattr(memory_guard, "LOOKS_AGAIN_S", (0.0, 0.0))
    monkeypatch.setattr(memory_guard, "GONE_S", 0.0)


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
    strict.held[PID] = GiB
    strict.look()
    strict.look()
    assert len(suspended) == 2  # whatever else keeps it off is no matter of its memory


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
    strict.look()
    strict.look()
    strict.held.clear()
    strict.look()
    strict.held[PID] = 2 * GiB
    strict.look()
    assert unseen() == 0  # what was seen before it had nothing does not count
    for _ in range(3):
        strict.look()
    assert (unseen(), region.read().used(GPU)) == (GiB, 2 * GiB)
    again = Region(os.dup(region.fileno()))
    strict.quota.close()  # nobody looks any more
    assert again.read().used(GPU) == GiB


def test_what_a_process_of_another_pid_namespace_holds_is_counted_once(strict: World, region: Region) -> None:
    strict.claim(held=2 * GiB, namespace=42)
    strict.held[PID] = 2 * GiB
    for _ in range(4):
        strict.look()
    assert region.read().used(GPU) == 2 * GiB
    strict.held[PID] = GiB  # the driver may know of less
    strict.look()
    assert not strict.task.task.suspended
    assert strict.holding._stock()[1] == {TaskKey(PID, GPU): 2 * GiB}


@pytest.mark.usefixtures("at_once")
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
    for _ in range(2 * SEARCHES):
        strict.look()
    assert strict.sought == [strict.root] * SEARCHES  # a look may come too early
    strict.managed[PID] = strict.process
    strict.look()
    assert strict.heirs == {gone: PID}
    assert strict.by_pid(GPU) == {PID: 3 * GiB}
    assert strict.task.task.suspended


def test_nobody_pays_for_what_a_stranger_left(strict: World) -> None:
    strict.held = {PID: GiB, 1 << 30: 9 * GiB}
    strict.look()
    assert not strict.task.task.suspended


@pytest.mark.parametrize(("mib", "times"), [(63, 0), (65, 1), (1024, 1)])
def test_what_nobody_holds_is_in_the_log_once(
    strict: World, capsys: pytest.CaptureFixture[str], mib: int, times: int
) -> None:
    strict.nobodys = mib << 20
    for _ in range(5):
        strict.look()
    assert capsys.readouterr().out.count("memory is in use that no process is known to hold") == times


def test_what_is_kept_of_who_ended_is_looked_for_as_often_when_its_number_comes_again(strict: World) -> None:
    gone = 1 << 30
    strict.ended[gone] = strict.root
    strict.managed.clear()
    for _ in range(2):
        strict.held = {gone: GiB}
        for _ in range(2 * SEARCHES):
            strict.look()
        strict.held = {}
        strict.look()
    assert strict.sought == [strict.root] * 2 * SEARCHES


def test_what_one_left_of_whom_nothing_is_known_is_of_the_only_tree_that_can_have_it(strict: World) -> None:
    gone = 1 << 30
    strict.held = {gone: 3 * GiB}
    strict.look()
    assert strict.heirs == {gone: PID}
    assert strict.task.task.suspended


def test_who_came_after_a_look_has_not_kept_what_one_left(strict: World) -> None:
    """It is not in the list of that look: whoever lets a stranger's memory stand there would have each newcomer pay."""
    gone = 1 << 30
    strict.held = {gone: 3 * GiB}
    strict.task.there_since = strict.looked_at + 0.001
    strict.look()
    assert strict.heirs == {}
    strict.looked_at += 1.0
    strict.held[PID] = GiB
    strict.look()
    assert not strict.task.task.suspended
    assert strict.by_pid(GPU) == {PID: GiB, gone: 3 * GiB}


def test_of_two_trees_that_can_have_it_none_pays(strict: World) -> None:
    other = SimpleNamespace(pid=PID + 1, root=Root(2, -1, 0, {}), tasks={GPU: strict.task})
    strict.managed[PID + 1] = other
    strict.held = {1 << 30: 3 * GiB}
    strict.look()
    assert strict.heirs == {}
    assert not strict.task.task.suspended


def test_a_tree_that_gets_over_and_back_is_in_the_log_with_its_processes(
    strict: World, capsys: pytest.CaptureFixture[str]
) -> None:
    for held in (3, 3, 3, 1):
        strict.held[PID] = held * GiB
        strict.look()
    said = re.findall(
        r"(\w+) *\].* a tree (holds more|is within) .*limit='?([^ ']+ [^ ']+)'? processes=\[(\d+)\]",
        re.sub("\x1b[^m]*m", "", capsys.readouterr().out),
    )
    assert said == [("warning", "holds more", "2.0 GiB", str(PID)), ("info", "is within", "2.0 GiB", str(PID))]


def test_who_is_not_limited_from_inside_is_in_the_log_once(strict: World, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        strict.look()
    assert "not limited from inside" not in capsys.readouterr().out
    strict.claim(enforced=0, held=GiB)
    for _ in range(3):
        strict.look()
    assert capsys.readouterr().out.count("a process is not limited from inside") == 1


def test_who_is_ending_is_not_in_the_log(
    strict: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its slot is another's already, and the driver still lists it."""
    monkeypatch.setattr(memory_guard, "peak_of", lambda pid: 0)
    for _ in range(3):
        strict.look()
    strict.claim(enforced=0, held=GiB)
    strict.look()
    assert "not limited from inside" not in capsys.readouterr().out


@pytest.mark.usefixtures("at_once")
def test_a_group_that_holds_more_is_off_once_that_is_sure(tree: World) -> None:
    looks = iter([GiB, 3 * GiB, GiB, 3 * GiB])

    async def refresh() -> None:
        tree.held = {PID: next(looks, tree.held[PID])}
        tree.claim(held=tree.held[PID])  # its library knows of all of it

    tree.refresh = refresh  # type: ignore[method-assign]
    tree.task.task = replace(tree.task.task, group="team")
    tree.task.shared_memory = 2 * GiB
    for off in (False, False, True):
        asyncio.run(tree.holding.check())
        assert tree.task.remark == ("suspended: its group holds 3.0 GiB with a limit of 2.0 GiB" if off else "")
    assert tree.holding.hurries
    tree.task.shared_memory = None  # the rule went
    asyncio.run(tree.holding.check())
    assert (tree.task.task.suspended, tree.holding.hurries) == (False, False)


def test_a_look_by_itself_is_sure(tree: World) -> None:
    tree.task.task = replace(tree.task.task, group="team")
    tree.task.shared_memory = 2 * GiB
    for gib, off in ((1, False), (3, True), (1, False)):
        tree.held[PID] = gib * GiB
        tree.claim(held=gib * GiB)
        tree.holding._groups.update([tree.task])
        tree.look()
        assert tree.task.task.suspended is off


@pytest.mark.usefixtures("at_once")
def test_what_was_held_is_let_go_at_the_next_check_where_nothing_is_limited_any_more() -> None:
    tree = World(None)
    tree.quota.follow(2 * GiB)
    asyncio.run(tree.holding.check())
    assert tree.task.task.suspended
    tree.quota.follow(None)
    asyncio.run(tree.holding.check())
    assert not tree.task.task.suspended


def test_it_hurries_while_any_tree_has_a_limit(strict: World) -> None:
    strict.roots[2] = Root(2, -1, 0, {})
    assert strict.holding.hurries
    del strict.roots[1]
    assert not strict.holding.hurries
