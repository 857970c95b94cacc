"""Controls of the driver for processes that are taken over: they hold for a tree, or fail whoever waits for them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from runlist.daemon.placement.rules import Limits, Match
from runlist.planes.nvidia.rm.status import InsufficientPermissions
from tests.fixtures.adoption import (
    FOUND,
    OF_CHILD,
    PID,
    SET_INTERLEAVE,
    World,
    child,
    in_a_daemon,
    levels,
    own_usage,
    slices,
    until,
)
from tests.fixtures.fake_rm import INVALID_ARGUMENT

pytestmark = pytest.mark.usefixtures("own_usage")
__all__ = ["own_usage"]


def test_controls_hold_for_every_context_and_process_of_a_tree() -> None:
    async def test(world: World) -> None:
        client = world.tenant()
        root = world.root(interleave="high")
        await world.adopt(root)
        assert levels(client) == [2] * 4
        assert world.keeping.renewed == list(world.keeping.guarded)
        later = world.tenant(fd=9)
        await world.adopt(root, new_only=True)
        assert levels(later) == [2] * 4
        with child() as pid:
            other = world.tenant(pid, OF_CHILD)
            await world.adopt(root, pid, new_only=True)
            assert levels(other) == [2] * 4
            assert [task.controls for task in world.tasks()] == [{"interleave": "high"}] * 2
            assert world.processes.remove_root(root) == []
        assert levels(client) == levels(later) == levels(other) == [0] * 4

        world.keeping.renewed.clear()
        await world.adopt(world.root(interleave="low"))
        assert (world.keeping.renewed, [task.controls for task in world.tasks()]) == ([], [{}])

    in_a_daemon(test)


def test_a_control_that_the_driver_refuses_fails_the_request_that_asked_for_it() -> None:
    async def test(world: World) -> None:
        client = world.tenant()
        world.rm.privileged = False
        root = world.root(interleave="high")
        root.awaited = True
        with pytest.raises(InsufficientPermissions, match="root or CAP_SYS_NICE"):
            await world.adopt(root)
        assert world.nothing_is_left()
        assert slices(client) == FOUND

    in_a_daemon(test)


def test_a_process_that_nobody_waits_for_is_managed_without_a_control_that_the_driver_refuses() -> None:
    """The log says so once for its tree."""

    async def test(world: World) -> None:
        client = world.tenant()
        world.rm.privileged = False
        root = world.root(interleave="high")
        with capture_logs() as log:
            await world.adopt(root, new_only=True)
            with child() as pid:
                world.tenant(pid, OF_CHILD)
                await world.adopt(root, pid, new_only=True)
                assert [task.controls for task in world.tasks()] == [{}] * 2
            await until(lambda: len(world.tasks()) == 1)
        assert [line["control"] for line in log] == ["interleave"]
        assert "INSUFFICIENT_PERMISSIONS" in log[0]["reason"]
        assert slices(client) != FOUND
        world.rm.privileged = True  # the task goes on without; the next one is asked again
        world.tenant(fd=9)
        with child() as pid:
            other = world.tenant(pid, OF_CHILD)
            await world.adopt(root, new_only=True)
            await world.adopt(root, pid, new_only=True)
            assert [task.controls for task in world.tasks()] == [{}, {"interleave": "high"}]
            assert levels(other) == [2] * 4

    in_a_daemon(test)


def test_a_rules_control_that_the_driver_refuses_does_not_fail_a_request() -> None:
    async def test(world: World) -> None:
        world.tenant()
        world.rm.privileged = False
        rule = Match({"interleave": "high"}, "rules.toml:1")
        world.placement.rules = SimpleNamespace(match=lambda facts: rule, limits=Limits(), variables=())  # type: ignore[assignment]
        root = world.root()
        root.awaited = True
        await world.adopt(root)
        assert [(task.controls, task.rule) for task in world.tasks()] == [({}, "rules.toml:1")]

    in_a_daemon(test)


def test_a_new_context_that_refuses_a_control_takes_it_from_its_task() -> None:
    """A control holds for all contexts of a task or for none, as `ps` says it."""

    async def test(world: World) -> None:
        client = world.tenant()
        root = world.root(interleave="high")
        await world.adopt(root)
        later = world.tenant(fd=9)
        world.rm.tenant(PID, 9).on_control = lambda call: INVALID_ARGUMENT if call.command == SET_INTERLEAVE else None
        await world.adopt(root, new_only=True)
        assert (levels(client), levels(later)) == ([0] * 4, [])
        assert [task.controls for task in world.tasks()] == [{}]

    in_a_daemon(test)


def test_a_context_that_was_closed_does_not_take_a_control_from_the_next_one() -> None:
    async def test(world: World) -> None:
        world.tenant()
        root = world.root(interleave="high")
        await world.adopt(root)
        world.rm.processes[PID][8].clients.clear()
        later = world.tenant(fd=9)
        await world.adopt(root, new_only=True)
        assert levels(later) == [2] * 4
        assert [task.controls for task in world.tasks()] == [{"interleave": "high"}]

    in_a_daemon(test)
