"""What a tenant says, from its datagram to the shares that the driver has: hints, segments and latencies. Time is the
test's own.
"""

from __future__ import annotations

import time

import pytest

from runlist.daemon.requests.messages import Effect, Kind, TenantMessage, parse
from runlist.daemon.requests.tenants import hear
from runlist.daemon.tasks.managed import ManagedTask
from runlist.model import Hint, Report, Segment, TaskClass, TaskKey
from runlist.policies import Decision, PolicySpec, load_policy
from tests.fixtures.scheduler import START_S, World

# As they are to be: taken from the code they would hold whatever it says.
AHEAD_S = 0.0025
WAIT_S = 0.005

LATENCY, BATCH = TaskClass.LATENCY, TaskClass.BATCH


def says(world: World, managed: ManagedTask, kind: Kind, *, priority: int = 0, nanoseconds: int = 0) -> list[Effect]:
    """A record as a tenant sends it; returns a list to which each answer to it is added."""
    message = parse(TenantMessage(kind, priority, 1, nanoseconds).encode(), b"")
    assert message is not None
    answers: list[Effect] = []

    def answer(effect: Effect) -> bool:
        answers.append(effect)
        return True

    world.do(lambda: hear({world.scheduler: managed}, message, answer))
    return answers


@pytest.mark.parametrize("in_s", [0.006, 0.3, 1.5])
def test_a_hint_keeps_the_gpu_free_at_the_time_that_it_names_and_not_before(world: World, in_s: float) -> None:
    service = world.add(1, LATENCY)
    world.add(2, BATCH)
    world.use(load_policy(PolicySpec("priority")), "priority")
    world.run()
    assert world.tenants[2].enabled
    says(world, service, Kind.HINT, nanoseconds=round(in_s * 1e9))

    def background_at(seconds: float) -> bool:
        world.pass_time(START_S + seconds - world.clock.now)
        return world.tenants[2].enabled

    assert background_at(in_s - AHEAD_S - 0.0011)
    assert not background_at(in_s - AHEAD_S + 0.0004)
    assert not background_at(in_s + WAIT_S - 0.0004)
    assert background_at(in_s + WAIT_S + 0.003)
    assert world.tenants[1].enabled


def test_a_policy_is_told_what_the_tenant_said(world: World) -> None:
    managed = world.add(1)
    key = managed.task.key
    world.policy.events.clear()
    says(world, managed, Kind.HINT, nanoseconds=1_250_000_000)
    says(world, managed, Kind.REPORT_LATENCY, nanoseconds=2_500_000)
    begun = says(world, managed, Kind.SEGMENT_BEGIN, priority=-3)
    assert managed.task.segment == -3
    assert world.policy.events == [Hint(key, 1.25), Report(key, 0.0025), Segment(key, -3)]
    world.pass_time(0.1)
    world.policy.events.clear()
    ended = says(world, managed, Kind.SEGMENT_END)
    assert managed.task.segment is None
    assert world.policy.events == [Segment(key, None)]
    world.pass_time(0.1)
    assert (begun, ended) == ([Effect.NOT_IN_FORCE], [])  # only a beginning is answered: this policy counts no segment
    assert managed.tail.p99_s(time.monotonic()) == 0.0025


def test_a_tenant_is_told_the_effect_of_its_segment_whenever_that_changes_until_it_ends(world: World) -> None:
    managed = world.add(1)
    key = managed.task.key
    world.decide(Decision({}, segments=frozenset({key})))
    answers = says(world, managed, Kind.SEGMENT_BEGIN)
    for segments in (frozenset({key}), frozenset({key}), frozenset[TaskKey](), frozenset({key})):
        world.decide(Decision({}, segments=segments))
        world.run()
    assert answers == [Effect.IN_FORCE, Effect.NOT_IN_FORCE, Effect.IN_FORCE]
    says(world, managed, Kind.SEGMENT_END)
    world.decide(Decision({}))
    world.run()
    assert len(answers) == 3
