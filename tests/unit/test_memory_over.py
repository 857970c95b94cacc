"""Trees that hold more than their limit, whatever their region says."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from runlist.daemon.tree import memory_guard
from runlist.model import TaskKey
from runlist.planes.process.region import Region
from tests.fixtures.memory_world import GPU, PID, GiB, World


@pytest.fixture
def strict(tree: World) -> World:
    """A tree that was started with a limit of 2 GiB."""
    tree.quota.set_limit(2 * GiB, keeps=False)
    tree.held[PID] = GiB
    tree.claim(held=GiB)
    tree.look()
    assert not tree.task.task.suspended
    return tree


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
    for _ in range(2 * memory_guard.SEARCHES):
        strict.look()
    assert strict.sought == [strict.root] * memory_guard.SEARCHES  # a look may come too early
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
