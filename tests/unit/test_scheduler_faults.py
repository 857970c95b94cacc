"""Policies that stall, fail at the first event or are refused, and a scheduler that goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runlist.daemon.gpu import gpus
from runlist.daemon.gpu.watchdog import Watchdog
from runlist.errors import RunlistError, UsageError
from runlist.model import Appear, GivingWay, Hint, Share, Task, TaskClass, TaskKey
from runlist.planes.nvidia.slices import SLICES
from runlist.policies import Decision, PolicySpec
from runlist.policies.parts.slices import BASE_US
from tests.fixtures.fake_rm import FakeRm
from tests.fixtures.scheduler import GPU, LIMIT_S, Probe, World, given_little_time

pytestmark = pytest.mark.timeout(method="thread")  # a watchdog takes SIGALRM for itself

KEY = TaskKey(1, GPU)


def spin() -> None:
    while True:
        pass


def swallow_errors() -> None:
    while True:
        try:
            spin()
        except Exception:
            continue


def fail() -> None:
    raise ZeroDivisionError


def leave() -> None:
    raise SystemExit


STALLS = (spin, swallow_errors, lambda: time.sleep(1000))
STALLED = [(method, how) for method in ("decide", "on_event", "admit", "why") for how in STALLS]


@pytest.mark.parametrize(("method", "how"), STALLED)
def test_a_policy_that_stalls_is_dropped_within_one_run(
    world: World, watchdog: Watchdog, method: str, how: Callable[[], Any]
) -> None:
    world.add(1)
    world.add(2)
    world.decide(Decision({KEY: Share(4_000), TaskKey(2, GPU): Share(4_000)}))
    world.run()
    assert world.shares() == {1: (4_000, True), 2: (4_000, True)}
    world.policy.broken = {method: given_little_time(watchdog, how)}
    if method == "admit":
        newcomer = Task(TaskKey(3, GPU), TaskClass.BATCH, "test", 0, world.clock.now)
        assert world.do(lambda: world.scheduler.refusal(newcomer)) is None  # its successor takes it
    elif method == "why":
        assert world.do(lambda: world.scheduler.why(KEY)) == ""
    elif method == "on_event":
        world.do(lambda: world.scheduler.tell(Hint(KEY, 1.0)))
    else:
        assert world.run() == {}
    asked = len(world.policy.asked)
    told = len(world.policy.events)
    world.pass_time(0.01)  # nobody asks: it happens by itself
    assert world.scheduler.policy_name == "priority"
    assert "policy own was dropped" in world.scheduler.loop.trouble
    assert "took longer than 0.05 s" in world.scheduler.loop.trouble
    assert world.scheduler.troubles() == [world.scheduler.loop.trouble]
    assert world.shares() == {1: (BASE_US, True), 2: (BASE_US, True)}
    world.run()
    assert (len(world.policy.asked), len(world.policy.events)) == (asked, told)  # it is never asked again


def test_two_tiny_slices_are_never_in_force(world: World) -> None:
    world.add(1)
    world.add(2)
    world.decide(Decision({KEY: Share(1), TaskKey(2, GPU): Share(1)}))
    world.run()
    assert sum(SLICES.is_tiny(us) for us, _ in world.shares().values()) == 1


def test_one_that_enables_nothing_is_overruled(world: World) -> None:
    world.add(1)
    world.add(2)
    off = {TaskKey(pid, GPU): Share(enabled=False) for pid in (1, 2)}
    world.decide(Decision(off))
    world.run()
    assert sorted(enabled for _, enabled in world.shares().values()) == [False, True]
    late = {key: Share(enabled=False, until=world.clock.now + 3600) for key in off}
    world.decide(Decision(late))
    world.run()
    assert any(enabled for _, enabled in world.shares().values())


def test_a_new_policy_hears_of_all_tasks_and_has_a_clean_slate(world: World) -> None:
    tasks = [world.add(pid).task for pid in (1, 2)]
    world.policy.broken = {"decide": fail}
    world.run()
    assert world.scheduler.loop.trouble
    world.policy = Probe(world.clock)
    world.use(world.policy, "other")
    assert world.policy.events == [Appear(task) for task in tasks]
    assert (world.scheduler.policy_name, world.scheduler.loop.trouble) == ("other", "")
    world.decide(Decision({KEY: Share(9_000)}))
    world.run()
    assert world.shares() == {1: (9_000, True), 2: (2_048, True)}


def test_a_new_policy_that_fails_at_the_first_event_is_dropped(world: World) -> None:
    world.add(1)
    world.use(Probe(world.clock, on_event=fail), "other")
    assert world.scheduler.policy_name == "priority"
    assert "policy other was dropped" in world.scheduler.loop.trouble
    world.run()
    assert world.shares() == {1: (1, True)}


def test_what_is_refused(world: World, watchdog: Watchdog) -> None:
    task = world.add(1).task
    assert world.do(lambda: world.scheduler.refusal(task)) == "no 1 beside 1"
    other = Probe(world.clock)
    assert world.do(lambda: world.scheduler.refusal(task, other)) == "no 1 beside 1"
    for how in (fail, leave, *STALLS):
        other.broken = {"admit": given_little_time(watchdog, how)}
        reason = world.do(lambda: world.scheduler.refusal(task, other))
        assert reason is not None
        assert "failed at admitting process 1" in reason
    assert (world.scheduler.policy_name, world.scheduler.loop.trouble) == ("own", "")  # it was not asked


def test_what_others_run_is_not_told(world: World) -> None:
    for pid, uid in ((1, 1000), (2, 1001)):
        managed = world.add(pid)
        managed.task = replace(managed.task, uid=uid, command=f"secret of {uid}")
    world.policy.admit = lambda task, others: str([other.command for other in others])  # type: ignore[method-assign]
    mine = world.scheduler.tasks[KEY].task
    assert world.do(lambda: world.scheduler.refusal(mine)) == "['secret of 1000', 'of another user']"
    assert world.do(lambda: world.scheduler.refusal(replace(mine, uid=0))) == "['secret of 1000', 'secret of 1001']"


def test_records_of_usage_that_were_lost_are_told(world: World) -> None:
    world.add(1)
    world.source.hold(1, dropped=3)
    world.pass_time(0.1)
    world.run()
    (told,) = world.scheduler.troubles()
    assert told.startswith(f"3 records of who used GPU {GPU} were lost")


def test_why(world: World) -> None:
    world.add(1)
    assert world.do(lambda: world.scheduler.why(KEY)) == "because of 1"


def test_when_the_usage_source_fails_scheduling_goes_on(world: World) -> None:
    world.add(1)
    world.decide(Decision({KEY: Share(4_000)}, again_after_s=0.1))
    world.source.error = RunlistError("the log is gone")
    world.run()
    world.pass_time(1)
    assert world.shares() == {1: (4_000, True)}
    assert world.scheduler.accounting.source_name == "book"
    assert len(world.policy.asked) == 11


def test_a_policy_file_that_never_ends_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watchdog: Watchdog
) -> None:
    monkeypatch.setattr(gpus, "LOAD_S", LIMIT_S)
    bad = tmp_path / "bad.py"
    bad.write_text("while True:\n    pass\n")
    with pytest.raises(UsageError, match=r"bad\.py: loading it took longer than 0\.05 s"):
        gpus.Gpus(FakeRm(), PolicySpec(str(bad)), lambda pid, error: None)  # type: ignore[arg-type]


def not_a_number() -> GivingWay:
    return GivingWay("slice", cost=float("nan"))


@pytest.mark.parametrize("how", [fail, leave, lambda: "slice", lambda: GivingWay("slice", "long"), not_a_number])  # type: ignore[arg-type]
def test_a_policy_that_tells_nonsense_of_giving_way_is_dropped(world: World, how: Callable[[], Any]) -> None:
    world.add(1)
    world.run()
    world.policy.giving_way = lambda: GivingWay("politely", 1_500, 0.25, 0.5, 3.0, {KEY: 0.02})  # type: ignore[method-assign]
    assert world.scheduler.giving_way() == GivingWay("politely", 1_500, 0.25, 0.5, 3.0, {KEY: 0.02})
    world.policy.giving_way = how  # type: ignore[method-assign]
    told: list[GivingWay | None] = []
    world.do(lambda: told.append(world.scheduler.giving_way()))
    assert told == [None]
    assert world.scheduler.policy_name == "priority"
    assert "was dropped" in world.scheduler.troubles()[0]
