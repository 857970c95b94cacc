"""One GPU's scheduler: what a policy is told, when it is asked, and what comes of its decisions."""

from __future__ import annotations

import itertools
from functools import partial
from types import SimpleNamespace

import pytest

from runlist.daemon.gpu.accounting import Account
from runlist.daemon.gpu.book import BookUsage
from runlist.daemon.tasks.managed import SuspendedBy
from runlist.errors import RunlistError
from runlist.model import (
    Announce,
    Appear,
    Event,
    Hint,
    Report,
    Segment,
    Share,
    TaskKey,
    Tick,
    Usage,
    Used,
    Vanish,
)
from runlist.policies import Decision
from tests.fixtures.scheduler import DISABLE, GPU, PREEMPT, SET_TIMESLICE, World

pytestmark = pytest.mark.timeout(method="thread")  # a watchdog takes SIGALRM for itself

KEY = TaskKey(1, GPU)
BEGIN = Segment(KEY, 3)


# -- what the policy is told -----------------------------------------------------------------------


def test_tasks_come_and_go(world: World) -> None:
    managed = world.add(1)
    assert world.policy.events == [Appear(managed.task)]
    world.do(lambda: world.scheduler.remove(KEY))
    assert world.policy.events[1:] == [Vanish(KEY)]
    world.do(lambda: world.scheduler.remove(KEY))  # again: nothing
    assert len(world.policy.events) == 2
    assert world.policy.asked == []  # events alone decide nothing


def test_the_policy_hears_all_that_one_used_which_goes_before_it_is_asked(world: World) -> None:
    world.add(1)
    world.pass_time(0.1)
    world.source.hold(1, 0.05, turns=4)
    world.do(lambda: world.scheduler.remove(KEY))
    assert world.policy.events[1:] == [Used({KEY: 0.05}), Vanish(KEY, Usage(0.05, 4))]
    assert world.policy.asked == []


def test_one_that_comes_back_begins_at_nothing(world: World) -> None:
    """It closed its contexts for a while: what it used before was given back to its cap when it worked again."""
    managed = world.add(1)
    world.pass_time(0.1)
    world.source.hold(1, 0.05, turns=4)
    world.run()
    world.do(lambda: world.scheduler.remove(KEY))
    world.do(lambda: world.scheduler.add(managed))
    world.run()
    (_, (task,)) = world.policy.asked[-1]
    assert task.usage == Usage()


def test_who_is_on_the_gpu_is_made_known_to_a_log_that_is_opened_again(world: World) -> None:
    world.add(1)
    before = world.tenants[1].count(PREEMPT)
    world.do(world.scheduler.accounting.on_renewed)
    assert world.tenants[1].count(PREEMPT) == before + 1


def test_the_earliest_ring_counts_and_none_comes_after_the_end(world: World) -> None:
    rings: list[float] = []
    world.scheduler.loop.ring = lambda: rings.append(1)  # type: ignore[method-assign]

    def ring() -> None:
        for after_s in (5.0, 1.0, 3.0):
            world.scheduler.ring_in(after_s)

    world.do(ring)
    timer = world.scheduler._timer
    assert timer is not None
    world.do(world.scheduler.close)
    assert timer.cancelled()
    assert world.scheduler._timer is None


def test_of_another_process_of_that_number_nothing_is_known(world: World) -> None:
    world.add(1)
    world.pass_time(0.1)
    world.source.hold(1, 0.05, turns=4)
    world.run()
    assert world.scheduler.accounting.of(1).usage == Usage(0.05, 4)
    world.do(lambda: world.scheduler.remove(KEY))
    assert world.scheduler.accounting.of(1) == Account()


def test_the_book_knows_who_is_enabled_when_no_source_tells_any_more(world: World) -> None:
    world.add(7)
    world.source.error = RunlistError("no")
    world.pass_time(0.1)
    world.run()
    world.pass_time(0.5)
    world.run()
    assert world.scheduler.accounting.source_name == BookUsage().name
    assert world.scheduler.accounting.of(7).usage.held_s > 0


def held(world: World, pid: int) -> float:
    return round(world.scheduler.accounting.of(pid).usage.held_s, 6)


def test_the_book_counts_no_time_of_who_is_off(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BookUsage.__init__, "__defaults__", (world.clock.monotonic,))
    world.source.error = RunlistError("no")
    for pid in (7, 8, 9):
        world.add(pid)
    keys = [TaskKey(pid, GPU) for pid in (7, 8, 9)]
    world.decide(Decision({key: Share(10_000, enabled=key.pid == 7) for key in keys}, again_after_s=60.0))
    world.pass_time(0.1)
    world.run()
    before = [held(world, pid) for pid in (7, 8, 9)]
    world.pass_time(0.5)
    world.decide(Decision({key: Share(10_000, enabled=key.pid != 7) for key in keys}, again_after_s=60.0))
    world.run()
    assert [held(world, pid) - was for pid, was in zip((7, 8, 9), before, strict=True)] == [0.5, 0.0, 0.0]
    world.pass_time(0.5)
    world.run()
    assert [held(world, pid) - was for pid, was in zip((7, 8, 9), before, strict=True)] == [0.5, 0.25, 0.25]


def test_what_is_told_is_passed_on(world: World) -> None:
    told: list[Event] = [Segment(KEY, 3), Segment(KEY, None), Hint(KEY, 0.001), Report(KEY, 0.01)]
    for event in told:
        world.do(lambda event=event: world.scheduler.tell(event))  # type: ignore[misc]
    assert world.policy.events == told


def test_usage_is_told_of_managed_tasks_alone(world: World) -> None:
    world.add(1)
    world.add(2)
    world.pass_time(0.1)
    world.source.hold(1, 0.05, turns=4)
    world.source.hold(9, 0.05, turns=4)
    world.run()
    assert world.policy.events[2:] == [Used({KEY: 0.05})]
    (_, tasks), *_ = world.policy.asked
    assert [task.usage for task in tasks] == [Usage(0.05, 4), Usage()]
    world.pass_time(0.1)
    world.source.hold(1, 0.02, turns=1, idle_s=0.01)
    world.do(world.scheduler.loop.read_usage)
    assert world.scheduler.tasks[KEY].task.usage == Usage(0.07, 5, 0.01)
    assert len(world.policy.asked) == 1


def test_tasks_that_share_a_channel_group_run_together(world: World) -> None:
    tasks = [world.add(pid) for pid in (1, 2, 3, 4)]
    world.policy.events.clear()
    for managed, groups in zip(tasks, ([100, 7], [100], [101, 9], [9]), strict=True):
        managed.contexts[99] = SimpleNamespace(group_ids=groups)  # type: ignore[assignment]
    world.do(world.scheduler.bind)
    assert [managed.task.together for managed in tasks] == [100, 100, 9, 9]
    assert [world.scheduler.fellows(managed.task) for managed in tasks] == [[2], [1], [4], [3]]
    assert [event.task.key.pid for event in world.policy.events if isinstance(event, Appear)] == [1, 2, 3, 4]
    del tasks[1].contexts[99]
    world.policy.events.clear()
    world.do(world.scheduler.bind)
    assert [managed.task.together for managed in tasks] == [None, None, 9, 9]
    assert world.scheduler.fellows(tasks[0].task) == []
    assert [event.task.key.pid for event in world.policy.events if isinstance(event, Appear)] == [1, 2]
    for managed in tasks:
        managed.contexts.pop(99, None)


def test_each_run_reads_anew_and_a_look_takes_what_was_read_lately(world: World) -> None:
    world.add(1)
    world.pass_time(0.1)
    world.run()
    reads = world.source.reads
    world.pass_time(0.1)
    world.run()
    assert world.source.reads == reads + 1
    for kept_s in (10.0, 0.05):
        world.do(lambda kept_s=kept_s: world.scheduler.loop.read_usage(kept_s))
    assert world.source.reads == reads + 1
    world.pass_time(0.1)
    world.do(world.scheduler.loop.read_usage)
    assert world.source.reads == reads + 2


def test_what_a_task_used_before_it_was_managed_is_its_past(world: World) -> None:
    """A cap that took it for use of now would hold the task off for minutes."""
    world.add(1)
    world.pass_time(0.1)
    world.source.hold(2, 500.0, turns=1000)
    world.run()
    world.pass_time(0.1)
    managed = world.add(2)
    assert managed.task.usage == Usage()
    assert world.policy.events[-1] == Appear(managed.task)
    world.source.hold(2, 0.5, turns=1)
    world.pass_time(0.1)
    world.run()
    assert managed.task.usage == Usage(0.5, 1)


def test_one_that_the_log_does_not_know_is_preempted_once(world: World) -> None:
    world.source.hold(2, 0.5, turns=1)
    world.pass_time(0.01)
    world.add(1)
    world.add(2)
    assert world.tenants[1].count(PREEMPT) == 1
    assert world.tenants[2].count(PREEMPT) == 0


# -- when it is asked, and what comes of it --------------------------------------------------------


def test_without_tasks_nobody_is_asked(world: World) -> None:
    world.decide(Decision({}, again_after_s=0.01))
    assert world.run() == {}
    world.pass_time(1)
    assert world.policy.asked == []
    assert world.source.reads == 0


def test_shares_are_applied_and_what_is_in_force_is_left_alone(world: World) -> None:
    world.add(1)
    world.add(2)
    other, found_us = TaskKey(2, GPU), world.tenants[2].slice_us
    world.decide(Decision({KEY: Share(5_000), other: Share(7_000, enabled=False)}))
    for _ in range(3):
        assert world.run() == {}
    assert world.shares() == {1: (5_000, True), 2: (found_us, False)}  # its slice means nothing until it comes on
    assert [world.tenants[pid].count(SET_TIMESLICE) for pid in (1, 2)] == [1, 0]
    assert [world.tenants[pid].count(DISABLE) for pid in (1, 2)] == [0, 1]
    world.decide(Decision({KEY: Share(5_000), other: Share(7_000)}))
    for _ in range(3):
        assert world.run() == {}
    assert world.shares() == {1: (5_000, True), 2: (7_000, True)}
    assert [world.tenants[pid].count(SET_TIMESLICE) for pid in (1, 2)] == [1, 1]
    assert [world.tenants[pid].count(DISABLE) for pid in (1, 2)] == [0, 2]


def test_asking_again(world: World) -> None:
    world.add(1)
    world.decide(Decision({}, again_after_s=0.1))
    world.run()
    world.pass_time(0.35)
    assert world.policy.times == [0.0, 0.1, 0.2, 0.3]
    assert world.policy.events[1:] == [Tick()] * 3
    world.decide(Decision({}))
    world.pass_time(10)
    assert world.policy.times[4:] == [0.4]  # now it wants to be asked on change alone
    world.run()
    assert len(world.policy.asked) == 6


def test_a_request_moves_the_timer(world: World) -> None:
    world.add(1)
    world.decide(Decision({}, again_after_s=0.1))
    world.run()
    world.pass_time(0.07)
    world.run()
    world.pass_time(0.12)
    assert world.policy.times == [0.0, 0.07, 0.17]


def test_a_task_that_is_off_until_some_time_is_looked_at_then(world: World) -> None:
    world.add(1)
    start = world.clock.now
    world.decide(lambda now: Decision({KEY: Share(enabled=False, until=start + 0.2)} if now < start + 0.19 else {}))
    world.run()
    assert world.shares()[1][1] is False
    world.pass_time(0.19)
    assert world.shares()[1][1] is False
    world.pass_time(0.02)
    assert world.shares()[1][1] is True
    assert world.policy.times == [0.0, 0.2]


@pytest.mark.parametrize(("again_s", "until_s", "times"), [(0.3, 0.1, [0.0, 0.1]), (0.1, 0.3, [0.0, 0.1])])
def test_the_earlier_of_both_counts(world: World, again_s: float, until_s: float, times: list[float]) -> None:
    world.add(1)
    start = world.clock.now
    first = Decision({KEY: Share(enabled=False, until=start + until_s)}, again_after_s=again_s)
    world.decide(lambda now: first if now == start else Decision({}))
    world.run()
    world.pass_time(1)
    assert world.policy.times == times


def test_asking_again_at_once_is_not_a_loop_without_a_pause(world: World) -> None:
    world.add(1)
    world.decide(Decision({}, again_after_s=-1.0))
    world.run()
    world.pass_time(0.1)
    assert 150 < len(world.policy.asked) < 250


def test_a_task_is_preempted_once(world: World) -> None:
    world.add(1)
    world.add(2)
    before = [tenant.count(PREEMPT) for tenant in world.tenants.values()]
    gone = TaskKey(77, GPU)
    decisions = iter([Decision({}, again_after_s=0.1, preempt=frozenset({KEY, gone})), Decision({}, 0.1), Decision({})])
    world.decide(lambda now: next(decisions))
    world.run()
    world.pass_time(1)
    assert [tenant.count(PREEMPT) for tenant in world.tenants.values()] == [before[0] + 1, before[1]]


def test_a_flood_of_events_is_few_decisions(world: World) -> None:
    world.add(1)
    for _ in range(1000):
        world.do(lambda: world.scheduler.tell(BEGIN))
        assert world.policy.times == [0.0]  # the first is served at once
    world.pass_time(0.01)
    assert world.policy.times == [0.0, 0.002]
    world.pass_time(1)
    world.do(lambda: world.scheduler.tell(Hint(KEY, 0.001)))
    assert world.policy.times[2:] == [1.01]


@pytest.mark.parametrize("event", [Hint(KEY, 0.001), Announce(KEY, 0.001)], ids=lambda event: type(event).__name__)
def test_who_is_about_to_work_waits_for_no_other_decision_but_for_others_like_it(world: World, event: Event) -> None:
    world.add(1)
    world.do(lambda: world.scheduler.tell(BEGIN))
    for _ in range(1000):
        world.do(lambda: world.scheduler.tell(event))
    assert world.policy.times == [0.0, 0.0]
    world.pass_time(0.01)
    assert world.policy.times == [0.0, 0.0, 0.002]
    world.run()
    world.do(lambda: world.scheduler.tell(event))
    assert world.policy.times[3:] == [0.01, 0.01]


def test_a_flood_of_those_who_are_about_to_work_is_few_decisions(world: World) -> None:
    world.add(1)
    for step in range(200):
        event: Event = BEGIN if step % 3 == 2 else Hint(KEY, 0.001)
        world.do(partial(world.scheduler.tell, event))
        world.pass_time(0.0001)
    times = world.policy.times
    assert 9 <= len(times) <= 11
    assert min(later - earlier for earlier, later in itertools.pairwise(times)) >= 0.002 - 1e-9


def test_a_task_is_told_whether_its_segment_is_in_force_whoever_asked_for_the_decision(world: World) -> None:
    managed = world.add(1)
    world.run()
    told: list[bool] = []
    managed.on_segment = told.append
    for segments in (frozenset({KEY}), frozenset({TaskKey(77, GPU)}), frozenset[TaskKey]()):
        world.decide(lambda now, segments=segments: Decision({}, segments=segments))  # type: ignore[misc]
        before = len(told)
        world.do(lambda: world.scheduler.tell(BEGIN))
        assert len(told) == before
        world.run()  # a request, a moment before the timer
    assert told == [True, False, False]


def test_a_control_that_fails_is_returned_to_whoever_asked_and_else_told(world: World) -> None:
    world.add(1)
    world.add(2)
    world.tenants[1].file.on_control = lambda call: 0x56 if call.command == SET_TIMESLICE else None
    world.decide(Decision({KEY: Share(5_000), TaskKey(2, GPU): Share(5_000)}, again_after_s=0.1))
    assert world.run().keys() == {KEY}
    assert world.failures == []
    assert world.shares()[2] == (5_000, True)
    world.pass_time(0.15)
    assert [failures.keys() for failures in world.failures] == [{KEY}]


def test_what_the_user_wants_holds(world: World) -> None:
    world.add(1, suspended=True)
    world.add(2, timeslice_us=3_000)
    world.decide(Decision({KEY: Share(5_000), TaskKey(2, GPU): Share(5_000)}))
    world.run()
    assert world.shares() == {1: (2_048, False), 2: (3_000, True)}


def test_after_closing_nothing_happens(world: World) -> None:
    world.add(1)
    world.decide(Decision({}, again_after_s=0.1))
    world.run()
    world.do(world.scheduler.close)
    world.pass_time(1)
    assert world.policy.times == [0.0]
    assert world.source.closed == 1


def test_one_that_is_gone_is_not_suspended_once_more(world: World) -> None:
    managed = world.add(1)
    managed.suspend_for(SuspendedBy.USER)
    world.run()
    key = managed.task.key
    assert key in world.scheduler._escapes._off
    world.do(lambda: world.scheduler.remove(key))
    assert key not in world.scheduler._escapes._off
