"""Who goes off for a latency-critical task that is about to come, for how long, and how often."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from runlist.daemon.gpu import room
from runlist.daemon.gpu.book import BookUsage
from runlist.daemon.tasks.managed import GAVE_WAY, Count
from runlist.errors import RunlistError
from runlist.model import Share, TaskKey
from runlist.policies import Decision
from tests.fixtures.fake_rm import UUIDS, Call
from tests.fixtures.scheduler import DISABLE, World

# As they are to be: taken from the code they would hold whatever it says.
LONGEST_S = 0.1
REST = 10

REFUSED = 0x1F


def key(pid: int) -> TaskKey:
    return TaskKey(pid, UUIDS[0])


def computes(world: World) -> list[bool]:
    return [tenant.computes for tenant in world.tenants.values()]


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
    assert roomy.do(roomy.scheduler.make_room)
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
    roomy.do(roomy.scheduler.make_room)
    asked = len(roomy.policy.asked)
    roomy.pass_time(LONGEST_S / 2)
    assert (computes(roomy), len(roomy.policy.asked)) == ([False, False, True], asked)
    roomy.pass_time(LONGEST_S / 2 + 0.001)
    assert (computes(roomy), len(roomy.policy.asked)) == ([True] * 3, asked + 1)
    roomy.pass_time(LONGEST_S / 4)
    assert len(roomy.policy.asked) == asked + 2  # and its timer goes on


def test_who_makes_room_on_and_on_runs_most_of_the_time(roomy: World) -> None:
    assert roomy.do(roomy.scheduler.make_room)
    assert not roomy.do(roomy.scheduler.make_room)  # it is made
    roomy.pass_time(LONGEST_S + 0.001)
    assert not roomy.do(roomy.scheduler.make_room)
    roomy.pass_time(REST * LONGEST_S - 0.01)
    assert not roomy.do(roomy.scheduler.make_room)
    assert computes(roomy) == [True] * 3
    roomy.pass_time(0.02)
    assert roomy.do(roomy.scheduler.make_room)
    roomy.pass_time(LONGEST_S / 2)
    roomy.run()
    roomy.pass_time(REST * LONGEST_S / 2 + 0.01)
    assert roomy.do(roomy.scheduler.make_room)  # it had been made for half as long


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
    assert not roomy.do(roomy.scheduler.make_room)
    assert computes(roomy) == [True] * 3
    assert refusals == []
    roomy.pass_time(REST * LONGEST_S + 0.01)
    assert roomy.do(roomy.scheduler.make_room)


def test_nobody_makes_room_who_is_off_or_gone_or_where_nobody_is_to(roomy: World) -> None:
    roomy.do(lambda: roomy.scheduler.remove(key(2)))
    roomy.scheduler.tasks[key(1)].share = Share(10_000, enabled=False)
    assert not roomy.do(roomy.scheduler.make_room)
    roomy.decide(Decision({}))
    roomy.run()
    assert not roomy.scheduler.gives_room
    assert not roomy.do(roomy.scheduler.make_room)


def test_of_clients_of_a_server_one_control_stops_all(roomy: World) -> None:
    tasks = [roomy.scheduler.tasks[key(pid)] for pid in (1, 2)]
    tasks[1].carrier = tasks[0]
    assert roomy.do(roomy.scheduler.make_room)
    assert computes(roomy) == [False, True, True]
    assert [task.share.enabled for task in tasks] == [False, False]


def test_what_may_go_off_at_once_for_another_reason_is_settled_first(roomy: World) -> None:
    settled: list[Any] = []
    task = roomy.scheduler.tasks[key(1)]
    task.on_settle = lambda: settled.append(task.share.enabled)
    assert roomy.do(roomy.scheduler.make_room)
    assert settled == [True]


def test_the_book_counts_no_time_of_who_makes_room(roomy: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BookUsage.__init__, "__defaults__", (roomy.clock.monotonic,))
    roomy.source.error = RunlistError("no")
    roomy.pass_time(0.01)
    roomy.run()
    before = [roomy.scheduler.accounting.of(pid).usage.held_s for pid in (1, 2, 3)]
    roomy.do(roomy.scheduler.make_room)
    roomy.pass_time(LONGEST_S / 2)
    roomy.run()
    after = [roomy.scheduler.accounting.of(pid).usage.held_s for pid in (1, 2, 3)]
    assert [round(now - was, 6) for now, was in zip(after, before, strict=True)] == [0.0, 0.0, LONGEST_S / 2]


def test_after_closing_nobody_comes_on(roomy: World) -> None:
    roomy.do(roomy.scheduler.make_room)
    asked = len(roomy.policy.asked)
    roomy.do(roomy.scheduler.close)
    roomy.pass_time(2 * LONGEST_S)
    assert len(roomy.policy.asked) == asked
