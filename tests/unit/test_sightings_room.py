"""For whom others go off before it is managed: who is to be latency-critical, at its first channel group on a GPU."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from runlist.model import TaskClass
from runlist.protocol.kernel_autogen import MOST_GPUS, Kind
from tests.unit.test_sightings import PID, World


@pytest.mark.parametrize("task_class", [TaskClass.LATENCY, TaskClass.DEADLINE])
def test_room_is_made_for_a_latency_critical_one_at_its_first_group_and_once(task_class: TaskClass) -> None:
    async def run() -> None:
        world = World()
        world.task_class = task_class
        world.made(Kind.CLIENT)
        assert world.rooms == 0
        made = world.made(Kind.GROUP)
        assert (world.rooms, world.room_of) == (1, (1000, ""))
        assert world.looks == []  # nothing is known of it yet
        world.made(Kind.GROUP)
        world.made(Kind.COMPUTE)
        await world.looked(1)
        await asyncio.sleep(0)
        assert world.rooms == 1
        (task,) = world.managed[PID].tasks.values()
        assert 0 < task.room_ms <= (time.monotonic() - made) * 1e3
        world.sightings.close()

    asyncio.run(run())


def test_what_a_process_is_to_be_is_known_by_its_first_group() -> None:
    """Questions about it take a third of a ms, and then the driver is at work for it."""

    async def run() -> None:
        world = World()
        world.made(Kind.CLIENT)
        world.made(Kind.DEVICE)
        asked = world.questions
        world.made(Kind.DEVICE)
        world.made(Kind.GROUP)
        assert world.rooms == 1
        assert world.questions == asked > 0
        world.sightings.close()

    asyncio.run(run())


def test_one_that_somebody_makes_latency_critical_after_its_device_has_room() -> None:
    async def run() -> None:
        world = World()
        world.task_class = TaskClass.NORMAL
        world.made(Kind.DEVICE)
        world.task_class = TaskClass.LATENCY
        world.made(Kind.GROUP)
        assert world.rooms == 1
        world.sightings.close()

    asyncio.run(run())


def test_what_rules_give_is_known_by_its_first_group_too() -> None:
    async def run() -> None:
        world = World()
        world.rule_names_it = True
        world.made(Kind.DEVICE)
        assert (world.questions, world.rooms) == (1, 0)
        world.made(Kind.GROUP)
        assert (world.questions, world.rooms) == (1, 1)
        world.sightings.close()

    asyncio.run(run())


def test_rules_are_asked_once_about_what_uses_a_gpu_and_only_where_that_may_matter() -> None:
    """By looks at the process: monitors make devices every few seconds."""

    def nobody_gives_room(world: World) -> None:
        world.gpu.gives_room = False

    def no_rule_gives_it(world: World) -> None:
        world.rules.give_critical = False

    def user_had_it_put_back(world: World) -> None:
        world.left_alone = True

    async def run() -> None:
        for reason in (nobody_gives_room, no_rule_gives_it, user_had_it_put_back):
            world = World()
            world.rule_names_it = True
            reason(world)
            world.made(Kind.DEVICE)
            world.made(Kind.GROUP)
            assert (world.questions, world.rooms) == (0, 0)
            world.sightings.close()
        world = World()
        world.rule_names_it, world.task_class = True, TaskClass.NORMAL
        for kind in (Kind.DEVICE, Kind.DEVICE, Kind.GROUP):
            world.made(kind)
        assert (world.questions, world.rooms) == (1, 0)
        world.sightings.close()

    asyncio.run(run())


def test_what_the_kernel_tells_of_rules_at_the_group_counts() -> None:
    async def run() -> None:
        world = World()
        world.rule_names_it, world.task_class = True, TaskClass.NORMAL
        world.made(Kind.DEVICE)
        world.task_class = TaskClass.LATENCY
        match = SimpleNamespace()
        world.entry = SimpleNamespace(match=lambda: match)
        world.sightings.hear([msgspec.structs.replace(world.event(Kind.GROUP), entry=7)])
        assert world.rooms == 1
        world.sightings.close()

    asyncio.run(run())


def test_one_that_was_let_go_has_no_room() -> None:
    async def run() -> None:
        world = World()
        cast("Any", world.root).excluded.add(PID)
        world.made(Kind.DEVICE)
        world.made(Kind.GROUP)
        assert world.rooms == 0
        world.sightings.close()

    asyncio.run(run())


def _other_class(world: World) -> None:
    world.task_class = TaskClass.NORMAL


def _bad_settings(world: World) -> None:
    world.task_class = TaskClass.BATCH


def _nobodys(world: World) -> None:
    world.root, world.task_class = None, TaskClass.NORMAL


def _has_work(world: World) -> None:
    world.managed[PID] = world.takes_in


def _one_of_two_gpus(world: World) -> None:
    """Nobody saw which."""
    world.machine = ["GPU-0", "GPU-1"]


def _another_gpu(world: World) -> None:
    world.machine = ["GPU-1"]


def _nobody_there(world: World) -> None:
    world.gpu.gives_room = False


@pytest.mark.parametrize(
    "change", [_other_class, _bad_settings, _nobodys, _has_work, _one_of_two_gpus, _another_gpu, _nobody_there]
)
def test_room_is_made_for_nobody_else(change: Callable[[World], None]) -> None:
    async def run() -> None:
        world = World()
        change(world)
        world.made(Kind.GROUP)
        assert world.rooms == 0
        world.sightings.close()

    asyncio.run(run())


def test_of_several_gpus_those_have_room_to_which_it_comes() -> None:
    async def run() -> None:
        world = World()
        world.machine = ["GPU-0", "GPU-1"]
        world.takes_in.tasks["GPU-1"] = SimpleNamespace(room_ms=None)
        for number, rooms in ((0, 0), (5, 0), (1, 0), (2, 1), (2, 1), (1, 1)):  # one more than its number
            world.made(Kind.GROUP, number)
            assert world.rooms == rooms
        world.made(Kind.COMPUTE)
        await world.looked(1)
        await asyncio.sleep(0)
        first, second = world.managed[PID].tasks.values()
        assert first.room_ms > 0
        assert second.room_ms is None
        world.sightings.close()

    asyncio.run(run())


def test_who_says_that_it_comes_to_ever_more_gpus_is_not_listened_to() -> None:
    async def run() -> None:
        world = World()
        for number in range(2 * MOST_GPUS):
            world.made(Kind.GROUP, number)
        assert world.rooms == MOST_GPUS
        world.sightings.close()

    asyncio.run(run())


def test_where_no_room_was_made_none_is_told() -> None:
    async def run() -> None:
        world = World()
        world.gpu.make_room = lambda _: False
        world.made(Kind.GROUP)
        world.made(Kind.COMPUTE)
        await world.looked(1)
        await asyncio.sleep(0)
        assert [task.room_ms for task in world.managed[PID].tasks.values()] == [None]
        world.sightings.close()

    asyncio.run(run())
