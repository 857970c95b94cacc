"""The loop of one GPU beside a host that notes what it is asked to do: when the policy is asked, and with what."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from runlist.daemon.gpu.gpus import Gpus
from runlist.daemon.gpu.watchdog import Stalled
from runlist.errors import RunlistError, UsageError
from runlist.model import (
    Announce,
    Appear,
    Busy,
    Event,
    GivingWay,
    Hint,
    Idle,
    Report,
    Segment,
    Share,
    Task,
    TaskClass,
    TaskKey,
    Tick,
    Used,
    Vanish,
)
from runlist.planes.nvidia.slices import SLICES
from runlist.policies import Decision, Policy, PolicySpec
from runlist.scheduling import loop as loops
from runlist.scheduling.loop import Loop

pytestmark = pytest.mark.timeout(method="thread")  # a watchdog takes SIGALRM for itself

GPU = "GPU-0"


def key(pid: int) -> TaskKey:
    return TaskKey(pid, GPU)


class Controlled:
    """A task; what is in force is what it was told."""

    def __init__(self, pid: int) -> None:
        self.task = Task(key(pid), TaskClass.NORMAL, f"program{pid}", 1000, 0.0)
        self.share = Share()
        self.preempted = 0
        self.fails: RunlistError | None = None

    def slice_us(self, share: Share) -> int:
        return share.timeslice_us or 2048

    def set_timeslice(self, microseconds: int | None) -> None:
        if self.fails is not None:
            raise self.fails
        self.share = Share(microseconds, self.share.enabled)

    def set_enabled(self, enabled: bool) -> None:
        self.share = Share(self.share.timeslice_us, enabled)

    def preempt(self) -> None:
        self.preempted += 1


class Own(Policy):
    """Says what a test wants."""

    summary = "for tests"

    def __init__(self) -> None:
        super().__init__({})
        self.told: list[tuple[Event, float]] = []
        self.decision: Decision | Callable[[], Any] = Decision({})
        self.way: Callable[[], Any] = lambda: None
        self.wants = False

    def on_event(self, event: Event, now: float) -> bool:
        self.told.append((event, now))
        return self.wants

    def decide(self, tasks: Sequence[Task], now: float) -> Decision:
        made = self.decision
        return made() if callable(made) else made  # type: ignore[no-any-return]

    def giving_way(self) -> GivingWay | None:
        return self.way()  # type: ignore[no-any-return]


class Host:
    """Time stands still unless a test moves it."""

    def __init__(self) -> None:
        self.clock = 100.0
        self.tasks: dict[TaskKey, Any] = {key(pid): Controlled(pid) for pid in (1, 2)}
        self.did: list[tuple[str, Any]] = []
        self.watched: Decision | None = None
        self.usage: Mapping[TaskKey, float] = {}

    def now(self) -> float:
        return self.clock

    def call(self, function: Callable[[], Any]) -> Any:
        return function()

    def wake(self, usage_kept_s: float = 0.0) -> None:
        self.did.append(("wake", usage_kept_s))

    def ring_in(self, seconds: float) -> None:
        self.did.append(("ring in", round(seconds, 6)))

    def stop_ringing(self) -> None:
        self.did.append(("stop", None))

    def read_usage(self, kept_s: float) -> Mapping[TaskKey, float]:
        self.did.append(("read", kept_s))
        return self.usage

    def may_have_tiny(self, wants: bool) -> bool:
        del wants
        return True

    def watch(self, decision: Decision) -> None:
        self.watched = decision

    def note(self, text: str) -> None:
        self.did.append(("note", text))

    def done(self) -> list[tuple[str, Any]]:
        """Since the last call of this."""
        done, self.did = self.did, []
        return done


class World:
    def __init__(self) -> None:
        self.host, self.policy = Host(), Own()
        self.loop = Loop(self.host, PolicySpec("own"), self.policy, SLICES)

    def run(self, kept_s: float = 0.0) -> list[tuple[str, Any]]:
        self.loop.run(kept_s)
        return self.host.done()


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(
    ("event", "kept_s"),
    [
        (Announce(key(1), 0.001), 0.25), (Busy(key(1)), 0.25), (Hint(key(1), 0.1), 0.0), (Segment(key(1), 3), 0.0),
        (Idle(key(1)), 0.0), (Vanish(key(1)), None), (Report(key(1), 0.1), None), (Tick(), None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("wants", [False, True])
def test_after_what_a_task_says_of_itself_the_policy_is_asked_and_after_others_if_it_wants_that(
    world: World, event: Event, kept_s: float | None, wants: bool
) -> None:
    world.policy.wants = wants
    world.loop.tell(event)
    assert world.policy.told == [(event, 100.0)]
    asked = wants or kept_s is not None
    assert world.host.done() == ([("wake", kept_s or 0.0)] if asked else [])


def test_within_two_milliseconds_of_a_run_the_next_one_waits_but_not_for_one_in_a_hurry(world: World) -> None:
    world.run()
    world.host.clock += 0.0005
    world.loop.tell(Idle(key(1)))
    assert world.host.done() == [("ring in", 0.0015)]
    world.loop.tell(Hint(key(1), 0.1))
    assert world.host.done() == [("wake", 0.0)]
    world.run()
    world.host.clock += 0.0005
    world.loop.tell(Announce(key(2), 0.1))  # another in a hurry
    assert world.host.done() == [("ring in", 0.0015)]
    world.host.clock += 0.0016
    world.loop.tell(Idle(key(1)))
    assert world.host.done() == [("wake", 0.0)]


def test_a_timer_that_ran_out_is_told_and_the_policy_asked(world: World) -> None:
    world.loop.ring()
    assert world.policy.told == [(Tick(), 100.0)]
    assert world.host.done() == [("wake", 0.0)]


def test_what_shows_when_usage_is_read_is_decided_for_by_that_run(world: World) -> None:
    world.host.usage = {key(1): 0.5}
    world.policy.wants = True
    assert world.run(0.1) == [("stop", None), ("read", 0.1)]
    assert world.policy.told == [(Used({key(1): 0.5}), 100.0)]
    world.loop.read_usage(0.2)
    assert world.host.done()[0] == ("read", 0.2)
    world.host.usage = {}
    world.policy.told.clear()
    world.loop.read_usage()
    assert (world.host.done(), world.policy.told) == ([("read", 0.0)], [])


def test_without_tasks_nobody_is_asked(world: World) -> None:
    world.host.tasks.clear()
    world.policy.decision = lambda: pytest.fail("it is asked")
    assert world.run() == [("stop", None)]


@pytest.mark.parametrize(
    ("again_s", "until_s", "rings_s"),
    [
        (None, None, None), (0.5, None, 0.5), (None, 2.0, 2.0), (0.5, 2.0, 0.5), (3.0, 2.0, 2.0), (0.0, None, 0.0005),
        (-5.0, None, 0.0005), (1e9, None, 3600.0),
    ],
)  # fmt: skip
def test_it_is_asked_again_when_it_wants_that_or_somebodys_wait_ends(
    world: World, again_s: float | None, until_s: float | None, rings_s: float | None
) -> None:
    shares = {} if until_s is None else {key(2): Share(None, enabled=False, until=100.0 + until_s)}
    world.policy.decision = Decision(shares, again_s)
    assert world.run()[2:] == ([] if rings_s is None else [("ring in", rings_s)])


def test_applying_a_decision_takes_a_while_which_is_no_part_of_the_wait(world: World) -> None:
    class Slow(Controlled):
        def set_enabled(self, enabled: bool) -> None:
            world.host.clock += 0.2
            super().set_enabled(enabled)

    world.host.tasks[key(2)] = Slow(2)
    world.policy.decision = Decision({key(2): Share(None, enabled=False, until=105.0)}, 0.5)
    assert world.run()[2:] == [("ring in", 0.3)]


def test_of_what_is_decided_for_others_nothing_reaches_the_host(world: World) -> None:
    stranger = key(9)
    some = frozenset({key(1), stranger})
    world.policy.decision = Decision(
        {key(1): Share(5_000), key(2): Share(7_000), stranger: Share(1)}, preempt=some, segments=some,
        watch={key(1): 0.5, stranger: 0.5}, unhurried=some, announcing=some,
        off_on_work=frozenset({key(2), stranger}), off_on_arrival=frozenset({key(1), stranger}),
    )  # fmt: skip
    world.run()
    own = frozenset({key(1)})
    watched = world.host.watched
    assert watched is not None
    assert (watched.preempt, watched.segments, watched.unhurried, watched.announcing) == (own,) * 4
    assert (watched.watch, watched.off_on_work, watched.off_on_arrival) == ({key(1): 0.5}, {key(2)}, own)
    assert world.loop.segments == own
    assert [world.host.tasks[key(pid)].share.timeslice_us for pid in (1, 2)] == [5_000, 7_000]
    assert [world.host.tasks[key(pid)].preempted for pid in (1, 2)] == [1, 0]


@pytest.mark.parametrize(
    "decision",
    [
        Decision({}, float("nan")), Decision({}, watch={key(1): 0.0004}), Decision({}, watch={key(1): 3601.0}),
        Decision({key(1): None}),  # type: ignore[dict-item]
        Decision({key(1): Share(None, enabled=False, until=float("inf"))}),
        Decision({key(1): Share(None, enabled=False, until="soon")}),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_a_policy_that_decides_nonsense_is_dropped_and_its_successor_knows_all_tasks(
    world: World, decision: Decision, monkeypatch: pytest.MonkeyPatch
) -> None:
    successor = Own()
    monkeypatch.setattr(loops, "load_policy", lambda spec: successor)
    world.policy.decision = decision
    world.host.usage = {key(1): 0.5}
    did = world.run()
    assert [event for event, _ in successor.told] == [Appear(each.task) for each in world.host.tasks.values()]
    assert {now for _, now in successor.told} == {100.0}
    assert world.loop.policy_name == PolicySpec().name
    assert world.loop.trouble.startswith("policy own was dropped for the default one: ")
    assert [text for what, text in did if what == "note"] == [world.loop.trouble]
    assert ("ring in", 0.0005) in did  # soon it is asked with what its successor wants
    world.loop.use(PolicySpec("other"), Own())
    assert (world.loop.trouble, world.loop.policy_name) == ("", "other")


@pytest.mark.parametrize("idle_s", [0.0005, 3600.0])
def test_times_of_idleness_have_bounds(world: World, idle_s: float) -> None:
    world.policy.decision = Decision({}, watch={key(1): idle_s})
    world.run()
    assert (world.loop.trouble, world.host.watched and world.host.watched.watch) == ("", {key(1): idle_s})


def test_what_is_wrong_with_a_decision_is_said_once_for_each_policy(world: World) -> None:
    world.policy.decision = Decision({key(1): Share(0)})
    said = "the policy gave process 1 a slice of 0: it gets 2048 µs"
    for expected in ([said], []):
        assert [text for what, text in world.run() if what == "note"] == expected
    world.loop.use(PolicySpec("own"), world.policy)
    assert [text for what, text in world.run() if what == "note"] == [said]


WAY = GivingWay("slice", 700, 0.1, 0.2, 5.0, {key(1): 0.3})


@pytest.mark.parametrize(
    ("told", "way"),
    [
        (None, None),
        (WAY, WAY),
        (GivingWay("switch", None, 0, 1, 2, {}), GivingWay("switch", None, 0.0, 1.0, 2.0, {})),
    ],
)
def test_how_the_background_gives_way_is_told_as_it_is(world: World, told: Any, way: GivingWay | None) -> None:
    world.policy.way = lambda: told
    assert (world.loop.giving_way(), world.loop.trouble) == (way, "")


def test_of_what_is_wrong_with_each_decision_there_is_an_end(world: World) -> None:
    said = 0
    for number in range(1_000):
        world.policy.decision = Decision({key(1): Share(0.5 + number)})  # type: ignore[arg-type]
        said += sum(what == "note" for what, _ in world.run())
    assert said == len(world.loop._said) <= 256


@pytest.mark.parametrize(
    ("told", "fault"),
    [
        ("by slices", "is no GivingWay"),
        (GivingWay("slice", None, float("nan"), 0.1, 0.1, {}), "has a number that is none"),
        (GivingWay("slice", None, 0.1, 0.1, 0.1, {key(1): float("inf")}), "has a number that is none"),
    ],
)
def test_nonsense_about_that_is_the_end_of_a_policy(world: World, told: Any, fault: str) -> None:
    world.policy.way = lambda: told
    assert world.loop.giving_way() is None
    assert fault in world.loop.trouble


def test_a_failure_of_one_keeps_no_other_from_its_share(world: World) -> None:
    world.host.tasks[key(1)].fails = RunlistError("no")
    world.policy.decision = Decision({key(1): Share(5_000), key(2): Share(7_000)})
    failures = world.loop.run()
    assert list(failures) == [key(1)]
    assert world.host.tasks[key(2)].share == Share(7_000)


# -- how long a policy may take --------------------------------------------------------------------


@pytest.fixture
def gpus() -> Iterator[Gpus]:
    plane: Any = SimpleNamespace()
    before = signal.getsignal(signal.SIGALRM)
    yield Gpus(plane, PolicySpec(), lambda pid, error: None)
    signal.signal(signal.SIGALRM, before)


def test_one_call_of_a_policy_may_take_a_quarter_of_a_second(gpus: Gpus) -> None:
    def spin() -> None:
        while True:
            time.sleep(0.01)

    with pytest.raises(Stalled, match=r"took longer than 0\.25 s"):
        gpus._watchdog.call(spin)


def test_loading_one_may_take_longer(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float | None] = []

    def call(function: Callable[[], Any], limit_s: float | None = None) -> Any:
        limits.append(limit_s)
        raise Stalled("took longer than 5 s")

    monkeypatch.setattr(gpus._watchdog, "call", call)
    with pytest.raises(UsageError, match="policy fair: loading it took longer than 5 s"):
        gpus.use(PolicySpec("fair"))
    assert (limits, gpus.spec) == ([5.0], PolicySpec())
