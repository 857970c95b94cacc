"""Clients of one MPS server are suspended by the channels of one of them, their carrier, and by none twice."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from runlist.daemon.tasks.managed import Count, ManagedTask, SuspendedBy
from runlist.errors import RunlistError
from runlist.model import Share, TaskClass, TaskKey
from runlist.planes.nvidia.context import GpuContext
from runlist.policies import Decision
from tests.fixtures.scheduler import DISABLE, GPU, World
from tests.unit.test_arms import DONE, FAILED, IDLE_S, Actuator, add, armed_by

pytestmark = pytest.mark.timeout(method="thread")  # a watchdog takes SIGALRM for itself

SERVER = 700
REFUSED = 0x1B


def key(pid: int) -> TaskKey:
    return TaskKey(pid, GPU)


def serve(world: World, *pids: int, server: int = SERVER) -> None:
    """These are clients of one server, as the driver tells it."""
    for pid in pids:
        context = world.tenants[pid].context
        context._ids = dict.fromkeys((group.handle for group in context.groups.values()), server)
    world.do(world.scheduler.bind)


def clients(world: World, *pids: int) -> list[ManagedTask]:
    found = [world.add(pid) for pid in pids]
    serve(world, *pids)
    return found


def let(world: World, enabled: bool, *but: int) -> None:
    """All that there are, but those, are to run, or none of them."""
    world.decide(
        lambda now: Decision(
            {
                each: Share(10_000, one := (enabled != (each.pid in but)), None if one else now + 5.0)
                for each in world.scheduler.tasks
            }
        )
    )
    assert world.run() == {}


def on_the_gpu(world: World, pid: int) -> bool:
    """As the GPU has it: where channels of one client are disabled, none of its server's runs."""
    ids = world.tenants[pid].context.group_ids
    fellows = [each for each in world.tenants if set(ids) & set(world.tenants[each].context.group_ids)]
    return all(world.tenants[each].enabled for each in fellows or [pid])


def end(world: World, pid: int, *, restore: bool = False) -> None:
    """A process ends, or is let go of."""
    managed = world.scheduler.tasks[key(pid)]
    managed.settle()
    if restore:
        assert world.tenants[pid].context.put_back() == []
    else:
        del world.tenants[pid]
    world.do(lambda: world.scheduler.remove(key(pid)))


def test_one_control_suspends_all_and_one_resumes_them(world: World) -> None:
    tasks = clients(world, 1, 2, 3)
    world.add(4)
    let(world, False, 4)
    assert [world.tenants[pid].count(DISABLE) for pid in (1, 2, 3, 4)] == [1, 0, 0, 0]
    assert [on_the_gpu(world, pid) for pid in (1, 2, 3, 4)] == [False, False, False, True]
    assert [task.share.enabled for task in tasks] == [False] * 3
    assert [task.counts[Count.SUSPENSIONS] for task in tasks] == [1] * 3
    let(world, True)
    assert [world.tenants[pid].count(DISABLE) for pid in (1, 2, 3, 4)] == [2, 0, 0, 0]
    assert all(on_the_gpu(world, pid) for pid in (1, 2, 3, 4))


@pytest.mark.parametrize("restore", [False, True])
def test_when_the_carrier_goes_another_one_carries(world: World, restore: bool) -> None:
    _, second, third = clients(world, 1, 2, 3)
    let(world, False)
    end(world, 1, restore=restore)
    assert (second.share.enabled, third.share.enabled) == (True, True)  # as it is
    assert world.run() == {}
    assert [world.tenants[pid].count(DISABLE) for pid in (2, 3)] == [1, 0]
    assert not on_the_gpu(world, 2)
    let(world, True)
    assert on_the_gpu(world, 3)


@pytest.mark.parametrize("pids", [(1, 2), (1, 2, 3)])
def test_a_policy_may_decide_as_soon_as_the_carrier_is_gone(world: World, pids: tuple[int, ...]) -> None:
    """With two the other one is told to be by itself, too."""
    clients(world, *pids)
    let(world, False)
    world.pass_time(1)
    world.policy.broken["on_event"] = lambda: True
    end(world, 1)
    world.pass_time(0.01)
    assert not on_the_gpu(world, 2)


def test_when_another_one_goes_nothing_changes(world: World) -> None:
    clients(world, 1, 2, 3)
    let(world, False)
    end(world, 2)
    world.run()
    assert [world.tenants[pid].count(DISABLE) for pid in (1, 3)] == [1, 0]
    assert not on_the_gpu(world, 3)


def test_those_that_were_suspended_before_they_were_known_to_be_one_all_come_back(world: World) -> None:
    for pid in (1, 2):
        world.add(pid)
    let(world, False)
    serve(world, 1, 2)
    assert [world.tenants[pid].count(DISABLE) for pid in (1, 2)] == [1, 1]
    let(world, True)
    assert on_the_gpu(world, 2)
    let(world, False)
    assert [world.tenants[pid].count(DISABLE) for pid in (1, 2)] == [3, 2]


def test_a_client_that_comes_while_they_are_off_is_off_without_a_control(world: World) -> None:
    clients(world, 1, 2)
    let(world, False)
    world.add(3)
    serve(world, 1, 2, 3)
    assert world.run() == {}
    assert world.tenants[3].count(DISABLE) == 0
    assert world.scheduler.tasks[key(3)].share.enabled is False


def test_one_that_is_no_client_any_more_is_suspended_itself(world: World) -> None:
    clients(world, 1, 2)
    let(world, False)
    serve(world, 2, server=SERVER + 1)
    world.run()
    assert not world.tenants[2].enabled
    let(world, True)
    assert on_the_gpu(world, 2)


def test_one_with_work_beside_the_servers_is_suspended_itself(world: World) -> None:
    tasks = clients(world, 1, 2)
    own: Any = SimpleNamespace(group_ids=[9], suspend=lambda: sent.append("off"), resume=lambda: sent.append("on"))
    sent: list[str] = []
    tasks[1].contexts[99] = own
    world.do(world.scheduler.bind)
    let(world, False)
    assert (tasks[1].carrier, sent, world.tenants[2].enabled) == (None, ["off"], False)
    tasks[1].contexts.pop(99)


def test_a_carrier_that_lost_its_client_in_between_is_replaced_at_once(world: World) -> None:
    clients(world, 1, 2, 3)
    let(world, True)
    world.tenants[1].context.forget_groups()
    let(world, False)
    assert [world.tenants[pid].count(DISABLE) for pid in (2, 3)] == [1, 0]
    assert world.scheduler.tasks[key(3)].carrier is world.scheduler.tasks[key(2)]


def test_what_fails_is_told_of_the_carrier_and_tried_again(world: World) -> None:
    clients(world, 1, 2)
    let(world, True)
    world.tenants[1].file.on_control = lambda call: REFUSED if call.command == DISABLE else None
    world.decide(lambda now: Decision({key(pid): Share(10_000, False, now + 5.0) for pid in (1, 2)}))
    assert set(world.run()) == {key(1)}
    world.tenants[1].file.on_control = lambda call: None
    assert world.run() == {}
    assert not on_the_gpu(world, 2)


def test_what_was_suspended_halfway_is_resumed_all_the_same(world: World) -> None:
    for pid in (1, 2):
        world.add(pid)
    context = world.tenants[2].context

    def halfway() -> None:
        GpuContext.suspend(context)
        raise RunlistError("the driver refused")

    context.suspend = halfway  # type: ignore[method-assign]
    world.decide(lambda now: Decision({key(pid): Share(10_000, False, now + 5.0) for pid in (1, 2)}))
    assert set(world.run()) == {key(2)}
    serve(world, 1, 2)
    let(world, True)
    world.scheduler.tasks[key(2)].set_enabled(True)
    assert world.tenants[2].enabled


def test_channels_that_come_to_a_carried_task_are_left_as_they_are(world: World) -> None:
    first, second = clients(world, 1, 2)
    let(world, False)
    for managed, pid in ((first, 1), (second, 2)):
        managed.take_in(world.tenants[pid].context)
    assert [world.tenants[pid].count(DISABLE) for pid in (1, 2)] == [2, 0]
    second.suspend_again()  # it had enabled itself
    assert second.disabled
    let(world, True)
    assert world.tenants[2].enabled


def test_one_that_is_gone_is_carried_by_nobody(world: World) -> None:
    _, second = clients(world, 1, 2)
    end(world, 2)
    assert second.carrier is None


# -- at once ---------------------------------------------------------------------------------------


@pytest.fixture
def watched(world: World, monkeypatch: pytest.MonkeyPatch) -> tuple[World, Actuator]:
    """A latency task 1, and clients 2, 3 and 4 of a server, which go off when it begins to work."""
    actuator = Actuator()
    armed_by(world, actuator, monkeypatch)
    add(world, 1, TaskClass.LATENCY)
    for pid in (2, 3, 4):
        add(world, pid, TaskClass.BATCH)
    serve(world, 2, 3, 4)
    world.decide(
        Decision(
            {key(pid): Share(10_000) for pid in (1, 2, 3, 4)},
            watch={key(1): IDLE_S},
            off_on_work=frozenset(map(key, (2, 3, 4))),
        )
    )
    world.run()
    return world, actuator


def test_the_actuator_suspends_the_carrier_alone(watched: tuple[World, Actuator]) -> None:
    world, actuator = watched
    assert actuator.off() == 1
    world.do(lambda: actuator.fire(DONE))
    tasks = [world.scheduler.tasks[key(pid)] for pid in (2, 3, 4)]
    assert [task.share.enabled for task in tasks] == [False] * 3
    assert [task.disabled for task in tasks] == [True, False, False]
    world.run()  # the policy thinks otherwise
    assert [task.share.enabled for task in tasks] == [True] * 3
    assert [world.tenants[pid].count(DISABLE) for pid in (2, 3, 4)] == [1, 0, 0]
    world.do(world.scheduler._arms.disarm)


def test_who_is_carried_keeps_its_channels_when_all_are_suspended_after_they_went_off_at_once(
    watched: tuple[World, Actuator],
) -> None:
    """The carrier's may copy still, and are all off then: no other control is needed."""
    world, actuator = watched
    world.do(lambda: actuator.fire(DONE))
    tasks = [world.scheduler.tasks[key(pid)] for pid in (2, 3, 4)]
    for task in tasks:
        task.suspend_for(SuspendedBy.USER)
    world.decide(Decision({key(1): Share(10_000), **{key(pid): Share(10_000, enabled=False) for pid in (2, 3, 4)}}))
    world.run()
    assert [task.disabled for task in tasks] == [True, False, False]
    assert [world.tenants[pid].count(DISABLE) for pid in (2, 3, 4)] == [1, 0, 0]
    world.do(world.scheduler._arms.disarm)


def test_what_the_actuator_could_not_do_is_done_once(watched: tuple[World, Actuator]) -> None:
    world, actuator = watched
    world.do(lambda: actuator.fire(FAILED))
    assert [world.tenants[pid].count(DISABLE) for pid in (2, 3, 4)] == [1, 0, 0]
    assert not on_the_gpu(world, 4)
    world.do(world.scheduler._arms.disarm)


def test_a_new_carrier_is_armed_in_place_of_the_old_one(watched: tuple[World, Actuator]) -> None:
    world, actuator = watched
    ((_, (first, *_), _),) = actuator.armed.values()
    end(world, 2)
    world.run()
    ((_, (second, *others), _),) = actuator.armed.values()
    assert (second != first, others) == (True, [])
    world.do(world.scheduler._arms.disarm)


def test_without_the_carrier_among_them_nothing_is_armed(watched: tuple[World, Actuator]) -> None:
    world, actuator = watched
    world.scheduler._arms.set([key(1)], [key(3)])
    assert actuator.armed == {}

    world.add(5)
    world.scheduler._arms.set([key(1)], [key(3), key(5)])
    assert actuator.armed == {}


def test_a_client_that_comes_is_armed_with_the_others(watched: tuple[World, Actuator]) -> None:
    world, actuator = watched
    fifth = add(world, 5, TaskClass.BATCH)
    serve(world, 5)
    world.scheduler._arms.set([key(1)], map(key, (2, 3, 4, 5)))
    world.do(lambda: actuator.fire(DONE))
    assert fifth.share.enabled is False


def test_who_changes_the_carriers_settles_first(watched: tuple[World, Actuator]) -> None:
    """The word comes while it is disarmed: what the actuator did is in the books as it was when it was armed."""
    world, actuator = watched

    def fire(number: int) -> None:
        actuator.on_disarm = lambda number: None
        actuator.fire(DONE)

    actuator.on_disarm = fire
    serve(world, 3, server=SERVER + 1)
    tasks = [world.scheduler.tasks[key(pid)] for pid in (2, 3, 4)]
    assert [(task.share.enabled, task.disabled) for task in tasks] == [(False, True), (True, False), (False, False)]


# -- whatever happens ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_the_books_are_right_whatever_happens(world: World, seed: int) -> None:
    """Clients of two servers and of none come, go, change their server, lose their work, are suspended and resumed."""
    chance, pid = random.Random(seed), 0
    for _ in range(60):
        there = sorted(each.pid for each in world.scheduler.tasks)
        match chance.choice(["come", "come", "go", "detach", "move", "off", "on", "some", "lose"]):
            case "come" if len(there) < 7:
                pid += 1
                world.add(pid)
                serve(world, pid, server=chance.choice((SERVER, SERVER + 1, 1000 + pid)))
            case ("go" | "detach") as how if there:
                end(world, one := chance.choice(there), restore=how == "detach")
                world.tenants.pop(one, None)
            case "move" if there:
                serve(world, chance.choice(there), server=chance.choice((SERVER, SERVER + 1, 2000 + pid)))
            case "off":
                let(world, False)
            case "on":
                let(world, True)
            case "some":
                let(world, True, *(each for each in there if chance.random() < 0.5))
            case "lose" if there:
                one = chance.choice(there)
                world.tenants[one].context.forget_groups()
                world.run()
                end(world, one)
        world.run()
        for each, managed in world.scheduler.tasks.items():
            assert managed.share.enabled is on_the_gpu(world, each.pid), each
            assert managed.carrier is None or managed.carrier.carrier is None
    let(world, True)
    assert all(tenant.enabled for tenant in world.tenants.values())
