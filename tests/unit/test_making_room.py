"""Who goes off for a latency-critical task that is about to come, for how long, and how often."""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from runlist.daemon.gpu import room
from runlist.daemon.gpu.book import BookUsage
from runlist.daemon.tasks.managed import GAVE_WAY, Count
from runlist.errors import RunlistError
from runlist.model import Owner, Share, TaskKey
from runlist.policies import Decision
from tests.fixtures.fake_rm import UUIDS, Call
from tests.fixtures.scheduler import DISABLE, World

# As they are to be: taken from the code they would hold whatever it says.
LONGEST_S = 0.1
REST = 10
ENOUGH_S = 0.025

REFUSED = 0x1F


def key(pid: int) -> TaskKey:
    return TaskKey(pid, UUIDS[0])


def computes(world: World) -> list[bool]:
    return [tenant.computes for tenant in world.tenants.values()]


ONE, OTHER, THIRD = (1000, ""), (1001, ""), (0, "docker-1")


def make(world: World, owner: Owner = ONE) -> bool:
    """Somebody's program comes. Returns whether there is room for it."""
    return world.do(lambda: world.scheduler.make_room(owner))


def disabled(call: Call) -> list[tuple[int, int]]:
    """The clients and channels that a control is to disable."""
    if call.command != DISABLE:
        return []
    (count,), numbers = struct.unpack_from("<I", call.params, 4), struct.unpack_from("<128I", call.params, 24)
    return list(zip(numbers[:64], numbers[64:], strict=True))[:count]


@pytest.fixture
def roomy(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """Tasks 1 and 2, which make room, and 3, which does not."""
    monkeypatch.setattr(room, "time", SimpleNamespace(monotonic=world.clock.monotonic))
    for pid in (1, 2, 3):
        world.add(pid)
    shares = {key(pid): Share(10_000) for pid in (1, 2, 3)}
    world.decide(Decision(shares, again_after_s=LONGEST_S / 4, off_on_arrival=frozenset({key(1), key(2), key(9)})))
    world.run()
    return world


def test_they_go_off_by_one_control_until_a_run_decides(roomy: World) -> None:
    for tenant in roomy.tenants.values():
        tenant.file.calls.clear()
    assert roomy.scheduler.gives_room
    assert make(roomy)
    assert computes(roomy) == [False, False, True]
    assert sum(len(tenant.file.sent(DISABLE)) for tenant in roomy.tenants.values()) == 1
    tasks = [roomy.scheduler.tasks[key(pid)] for pid in (1, 2, 3)]
    assert [task.remark for task in tasks] == [GAVE_WAY, GAVE_WAY, ""]
    assert [task.counts[Count.SUSPENSIONS] for task in tasks] == [1, 1, 0]
    roomy.run()
    assert [tenant.enabled for tenant in roomy.tenants.values()] == [True] * 3
    assert [task.remark for task in tasks] == [""] * 3


def test_timers_do_not_decide_meanwhile(roomy: World) -> None:
    """The policy asked to be asked again, and does not know who comes."""
    make(roomy)
    asked = len(roomy.policy.asked)
    roomy.pass_time(LONGEST_S / 2)
    assert (computes(roomy), len(roomy.policy.asked)) == ([False, False, True], asked)
    roomy.pass_time(LONGEST_S / 2 + 0.001)
    assert (computes(roomy), len(roomy.policy.asked)) == ([True] * 3, asked + 1)
    roomy.pass_time(LONGEST_S / 4)
    assert len(roomy.policy.asked) == asked + 2  # and its timer goes on


def test_who_makes_room_on_and_on_runs_most_of_the_time(roomy: World) -> None:
    assert make(roomy)
    roomy.pass_time(LONGEST_S + 0.001)
    assert not make(roomy)
    assert computes(roomy) == [True] * 3
    roomy.pass_time(REST * ENOUGH_S - 0.01)
    assert not make(roomy)
    assert computes(roomy) == [True] * 3
    roomy.pass_time(0.02)
    assert make(roomy)
    roomy.pass_time(ENOUGH_S + 0.002)
    assert computes(roomy) == [True] * 3
    roomy.pass_time(2 * REST * LONGEST_S)
    for _ in range(4):  # each is there soon, as most are
        assert make(roomy)
        roomy.pass_time(LONGEST_S / 5)
        roomy.run()
    assert not make(roomy)


def test_one_user_leaves_others_their_room(roomy: World) -> None:
    """Also in a container that root made."""
    lasts_s, step_s = 30.0, 0.02
    began = roomy.clock.now
    made: Counter[Owner] = Counter()
    off = 0.0
    while roomy.clock.now < began + lasts_s:
        made[ONE] += make(roomy)
        if int(roomy.clock.now - began) % 5 == 0:
            for owner in (OTHER, THIRD):
                made[owner] += make(roomy, owner)
        off += step_s * (computes(roomy) == [False, False, True])
        roomy.pass_time(step_s)
    assert off <= lasts_s / REST + 3 * LONGEST_S  # each has saved some up as it comes
    assert made[OTHER] >= 6 <= made[THIRD]


def test_who_comes_while_there_is_room_has_it_for_as_long_as_alone(roomy: World) -> None:
    assert make(roomy)
    roomy.pass_time(LONGEST_S - 0.01)
    assert make(roomy, OTHER)
    roomy.pass_time(0.02)
    assert computes(roomy) == [False, False, True]
    roomy.pass_time(LONGEST_S)
    assert computes(roomy) == [True] * 3


def test_where_the_driver_refuses_they_run_on(roomy: World) -> None:
    refusals = [REFUSED]
    objects = roomy.tenants[2].client.objects

    def refuse(call: Call) -> int | None:
        """A list that names what is no channel is done up to that."""
        if not refusals or call.command != DISABLE:
            return None
        for channel in roomy.tenants[2].client.of_class(0xC86F)[:8]:
            objects[channel].enabled = False
        return refusals.pop()

    for tenant in roomy.tenants.values():
        tenant.file.on_control = refuse
    assert not make(roomy)
    assert computes(roomy) == [True] * 3
    assert refusals == []
    roomy.pass_time(REST * LONGEST_S + 0.01)
    assert make(roomy)


def test_whose_channels_the_driver_refuses_has_its_own_tasks_alone_stay(roomy: World) -> None:
    """It may free some all the time."""
    whose = roomy.scheduler.tasks[key(2)]
    whose.task = replace(whose.task, owned_by=OTHER)
    client = roomy.tenants[2].client
    gone = client.handle, client.of_class(0xC86F)[0]
    for tenant in roomy.tenants.values():
        tenant.file.on_control = lambda call: REFUSED if gone in disabled(call) else None
    assert make(roomy)
    assert computes(roomy) == [False, True, True]
    assert [roomy.scheduler.tasks[key(pid)].share.enabled for pid in (1, 2)] == [False, True]
    roomy.run()
    for tenant in roomy.tenants.values():
        tenant.file.calls.clear()
    roomy.pass_time(0.5)
    assert make(roomy)  # of whom nothing is tried again so soon
    assert sum(len(tenant.file.sent(DISABLE)) for tenant in roomy.tenants.values()) == 1


def test_nobody_makes_room_who_is_off_or_gone_or_where_nobody_is_to(roomy: World) -> None:
    roomy.do(lambda: roomy.scheduler.remove(key(2)))
    roomy.scheduler.tasks[key(1)].share = Share(10_000, enabled=False)
    assert not make(roomy)
    roomy.decide(Decision({}))
    roomy.run()
    assert not roomy.scheduler.gives_room
    assert not make(roomy)


def test_of_clients_of_a_server_one_control_stops_all(roomy: World) -> None:
    tasks = [roomy.scheduler.tasks[key(pid)] for pid in (1, 2)]
    tasks[1].carrier = tasks[0]
    assert make(roomy)
    assert computes(roomy) == [False, True, True]
    assert [task.share.enabled for task in tasks] == [False, False]


def test_what_may_go_off_at_once_for_another_reason_is_settled_first(roomy: World) -> None:
    settled: list[Any] = []
    task = roomy.scheduler.tasks[key(1)]
    task.on_settle = lambda: settled.append(task.share.enabled)
    assert make(roomy)
    assert settled == [True]


def test_the_book_counts_no_time_of_who_makes_room(roomy: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BookUsage.__init__, "__defaults__", (roomy.clock.monotonic,))
    roomy.source.error = RunlistError("no")
    roomy.pass_time(0.01)
    roomy.run()
    before = [roomy.scheduler.accounting.of(pid).usage.held_s for pid in (1, 2, 3)]
    make(roomy)
    roomy.pass_time(LONGEST_S / 2)
    roomy.run()
    after = [roomy.scheduler.accounting.of(pid).usage.held_s for pid in (1, 2, 3)]
    assert [round(now - was, 6) for now, was in zip(after, before, strict=True)] == [0.0, 0.0, LONGEST_S / 2]


def test_after_closing_nobody_comes_on(roomy: World) -> None:
    make(roomy)
    asked = len(roomy.policy.asked)
    roomy.do(roomy.scheduler.close)
    roomy.pass_time(2 * LONGEST_S)
    assert len(roomy.policy.asked) == asked
