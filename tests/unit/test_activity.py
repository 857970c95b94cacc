"""What tasks tell of their work, on its way to the policy: looked at, watched, made up for where a message is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from runlist.daemon.requests.messages import Kind, TenantMessage
from runlist.daemon.requests.tenants import hear
from runlist.daemon.requests.view import views
from runlist.daemon.tasks.managed import ManagedTask
from runlist.model import Activity, Announce, Busy, Idle, TaskClass, Used
from runlist.planes.process.region import Activity as Told
from runlist.policies import Decision, PolicySpec, load_policy
from runlist.views.structs import TaskView
from tests.fixtures.scheduler import World

# As they are to be: taken from the code they would hold whatever it says.
GLANCE_S = 0.2
OPEN_S = 0.05

LATENCY, BATCH = TaskClass.LATENCY, TaskClass.BATCH
IDLE_S = 0.002


@dataclass
class Library:
    """The library of a process, as the daemon sees it through the region."""

    told: Told | None
    asked: bool = False
    announced: bool = False
    on_ask: Any = None
    on_look: Callable[[], object] = bool
    looked: int = 0

    def activity(self, pid: int) -> Told | None:
        self.looked += 1
        self.on_look()
        return self.told

    def operations(self, pid: int) -> None:
        del pid  # it has no clients

    def ask_for_work(self, pid: int, *, asked: bool, announced: bool = False) -> None:
        self.asked, self.announced = asked, announced
        if asked and self.on_ask is not None:
            self.on_ask()

    def work(self, count: int = 1, waiting: int = 0) -> None:
        assert self.told is not None
        self.told = Told(self.told.work + count, waiting, 2_000_000, 500_000)


def add(world: World, pid: int = 1) -> tuple[ManagedTask, Library]:
    managed = world.add(pid, LATENCY)
    library = Library(Told(0, 0, 0, 0))
    root: Any = SimpleNamespace(quota=library)
    managed.root = root
    return managed, library


def says_that_it_works(world: World, managed: ManagedTask) -> None:
    message = TenantMessage(Kind.WORK, 0, 1, 0)
    world.do(lambda: hear({world.scheduler: managed}, message, lambda _: True))


def told(world: World) -> list[type]:
    return [type(event) for event in world.policy.events if isinstance(event, Busy | Idle)]


@pytest.fixture
def watched(world: World) -> tuple[World, ManagedTask, Library]:
    managed, library = add(world)
    world.decide(Decision({}, watch={managed.task.key: IDLE_S}))
    world.run()
    return world, managed, library


def test_a_watched_task_is_busy_from_its_message_until_it_was_idle(
    watched: tuple[World, ManagedTask, Library],
) -> None:
    world, managed, library = watched
    assert library.asked
    says_that_it_works(world, managed)
    assert told(world) == [Busy]
    for _ in range(10):
        library.work()
        world.pass_time(IDLE_S * 0.9)
    assert told(world) == [Busy]
    world.pass_time(2 * IDLE_S)
    assert told(world) == [Busy, Idle]
    says_that_it_works(world, managed)
    assert told(world) == [Busy, Idle, Busy]


def test_looks_take_a_small_part_of_the_time(watched: tuple[World, ManagedTask, Library]) -> None:
    """However many are watched, and however long it takes to look at them."""
    world, managed, library = watched
    library.work(waiting=1)
    takes_s = 0.002

    def take() -> None:
        world.clock.now += takes_s

    library.on_look = take
    says_that_it_works(world, managed)
    library.looked, began = 0, world.clock.now
    world.pass_time(0.5)
    assert 5 <= library.looked <= (world.clock.now - began) / (5 * takes_s)


def test_whoever_waits_for_the_gpu_is_not_idle(watched: tuple[World, ManagedTask, Library]) -> None:
    world, managed, library = watched
    says_that_it_works(world, managed)
    library.work(waiting=1)
    world.pass_time(0.5)
    assert told(world) == [Busy]
    library.work(count=0)
    world.pass_time(2 * IDLE_S)
    assert told(world) == [Busy, Idle]


def test_a_message_that_was_lost_is_made_up_for(watched: tuple[World, ManagedTask, Library]) -> None:
    world, _, library = watched
    library.work()
    world.pass_time(0.2)
    world.run()
    assert told(world) == [Busy]


@pytest.mark.parametrize("unhurried", [False, True])
def test_of_work_that_shows_when_the_policy_is_about_to_be_asked_it_hears_before_that(
    world: World, unhurried: bool
) -> None:
    managed, library = add(world)
    key = managed.task.key
    world.decide(Decision({}, watch={key: IDLE_S}, unhurried=frozenset({key} if unhurried else ())))
    world.run()
    library.work()
    asked = len(world.policy.asked)
    world.run()
    assert told(world) == [Busy]
    assert len(world.policy.asked) == asked + 1, "once, and not in the middle of that once more"


def test_of_who_is_watched_without_hurry_looks_tell_when_it_begins_and_ends(world: World) -> None:
    managed, library = add(world)
    key = managed.task.key
    world.decide(Decision({}, watch={key: IDLE_S}, unhurried=frozenset({key})))
    world.run()
    for _ in range(3):
        assert not library.asked, "it need not say anything"
        library.work()
        began, before = world.clock.now, len(told(world))
        world.pass_time(IDLE_S * 0.6)
        assert told(world)[before:] == [Busy]
        library.work()
        world.pass_time(IDLE_S * 0.6)
        assert told(world)[before:] == [Busy]
        world.pass_time(2 * IDLE_S)
        assert told(world)[before:] == [Busy, Idle]
        assert world.clock.now - began < 4 * IDLE_S
    library.looked = 0
    world.decide(Decision({}))
    world.run()
    world.pass_time(0.05)
    assert library.looked < 5, "nobody is watched any more"


def test_whoever_is_watched_in_a_hurry_from_now_on_says_so_itself(world: World) -> None:
    managed, library = add(world)
    key = managed.task.key
    for unhurried in (True, False, True):
        world.decide(Decision({}, watch={key: IDLE_S}, unhurried=frozenset({key} if unhurried else ())))
        world.run()
        assert library.asked is not unhurried
    library.work()
    world.pass_time(IDLE_S)
    world.decide(Decision({}, watch={key: IDLE_S}))
    world.run()
    world.pass_time(3 * IDLE_S)
    assert told(world) == [Busy, Idle], "who is busy stays so"
    assert library.asked


@pytest.mark.parametrize("telling", [True, False])
def test_for_whom_others_went_off_at_once_works_also_where_it_tells_no_more(
    watched: tuple[World, ManagedTask, Library], telling: bool
) -> None:
    world, managed, library = watched
    world.decide(Decision({}, watch={managed.task.key: IDLE_S}, announcing=frozenset({managed.task.key})))
    world.run()
    library.work()
    if not telling:
        library.told = None
    world.do(lambda: world.scheduler._activity.fired(managed.task.key, world.clock.now))
    assert told(world) == [Busy]
    assert announced(world) == []


def test_who_is_watched_without_hurry_announces_also_while_it_works(world: World) -> None:
    """Nobody goes off for its work: so what it announces counts, as of one that is not watched."""
    managed, library = add(world)
    key = managed.task.key
    unhurried = frozenset({key})
    world.decide(Decision({}, watch={key: IDLE_S}, unhurried=unhurried, announcing=unhurried))
    world.run()
    library.work()
    world.pass_time(IDLE_S * 0.6)
    assert told(world) == [Busy]
    library.announced = False  # it took that back, as it announced
    assert world.do(lambda: world.scheduler.announced(key, 0.001))
    assert library.announced
    assert not library.asked
    assert announced(world) == [0.001]


def test_a_word_that_was_for_announcements_alone_announces_though_work_came_at_once(world: World) -> None:
    managed, library = add(world)
    key = managed.task.key
    unhurried = frozenset({key})
    activity = world.scheduler._activity
    world.decide(Decision({}, watch={key: IDLE_S}, unhurried=unhurried, announcing=unhurried))
    world.run()
    library.work()
    assert activity.idle == [key]
    assert world.do(lambda: activity.fired(key, world.clock.now))
    assert announced(world) == [0.0]
    assert not world.do(lambda: activity.fired(key, world.clock.now - 1.0))  # that was announced since
    world.pass_time(IDLE_S)
    assert told(world) == [Busy]
    assert activity.idle == [key]


def test_messages_of_who_is_busy_or_not_watched_change_nothing(watched: tuple[World, ManagedTask, Library]) -> None:
    world, managed, library = watched
    says_that_it_works(world, managed)
    says_that_it_works(world, managed)
    world.decide(Decision({}))
    world.run()
    assert not library.asked
    says_that_it_works(world, managed)
    world.pass_time(0.1)
    assert told(world) == [Busy]


def test_work_that_begins_as_it_is_found_idle_is_not_missed(watched: tuple[World, ManagedTask, Library]) -> None:
    world, managed, library = watched
    says_that_it_works(world, managed)
    library.on_ask = library.work
    world.pass_time(0.05)
    assert told(world) == [Busy]
    library.on_ask = None
    world.pass_time(2 * IDLE_S)
    assert told(world) == [Busy, Idle]


def test_a_task_that_tells_no_more_is_idle(watched: tuple[World, ManagedTask, Library]) -> None:
    world, managed, library = watched
    says_that_it_works(world, managed)
    library.told = None
    world.pass_time(2 * IDLE_S)
    assert told(world) == [Busy, Idle]
    world.do(lambda: world.scheduler.remove(managed.task.key))
    world.run()


def test_a_policy_sees_what_latency_tasks_tell(world: World) -> None:
    managed, library = add(world)
    batch = world.add(2, BATCH)
    world.pass_time(0.2)
    world.run()
    assert (managed.task.activity, batch.task.activity) == (Activity(), None)
    library.work(5)
    world.pass_time(0.2)
    world.run()
    assert managed.task.activity == Activity(5, 0.002, 0.0005)
    library.told = Told(1 << 63, 0, (1 << 64) - 1, 0)
    world.pass_time(0.2)
    world.run()
    assert managed.task.activity is not None
    assert managed.task.activity.waited_s <= 1e9 * 20


def test_the_policy_hears_soon_of_who_begins_to_work_beside_others(world: World) -> None:
    managed, library = add(world)
    world.add(2, BATCH)
    world.pass_time(0.2)
    world.run()
    world.policy.events.clear()
    world.pass_time(1)
    assert not world.policy.events
    library.work()
    world.source.hold(1, 0.01, turns=10)
    world.pass_time(2 * GLANCE_S)
    assert [event.held_s for event in world.policy.events if isinstance(event, Used)] == [{managed.task.key: 0.01}]


def test_alone_nobody_is_looked_at(world: World) -> None:
    _, library = add(world)
    world.pass_time(0.2)
    world.run()
    library.looked = 0
    world.pass_time(5)
    assert not library.looked


def test_the_background_is_off_for_a_request(world: World) -> None:
    service, library = add(world)
    world.add(2, BATCH)
    world.use(load_policy(PolicySpec("priority", {"give_way": "request"})), "priority")
    world.pass_time(0.2)
    world.run()
    assert library.asked
    assert world.tenants[2].enabled
    world.pass_time(0.005)
    says_that_it_works(world, service)
    assert not world.tenants[2].enabled
    assert world.scheduler.why(next(key for key in world.scheduler.tasks if key.pid == 2)) == "kept off by a request"
    world.pass_time(0.01)
    assert world.tenants[2].enabled
    says_that_it_works(world, service)
    assert not world.tenants[2].enabled
    world.do(lambda: world.scheduler.remove(service.task.key))
    world.run()
    assert world.tenants[2].enabled


def test_how_long_requests_are_is_learnt_and_shown(world: World) -> None:
    service, library = add(world)
    batch = world.add(2, BATCH)
    world.use(load_policy(PolicySpec("priority", {"give_way": "request"})), "priority")
    gpus: Any = SimpleNamespace(scheduler=lambda gpu: world.scheduler, read_usage=lambda kept_s: None)
    census: Any = SimpleNamespace(by_pid=lambda gpu: {}, mps_clients=lambda gpu: set())
    library.limit_on = library.look = lambda *_: None  # type: ignore[attr-defined]
    library.refused, library.trouble = lambda gpu: 0, ""  # type: ignore[attr-defined]

    def shown() -> list[TaskView]:
        seen: list[TaskView] = []
        world.do(lambda: seen.extend(views([service, batch], gpus, census)))
        return seen

    world.pass_time(0.2)
    world.run()
    assert [view.request_us for view in shown()] == [None, None]
    for _ in range(3):
        says_that_it_works(world, service)
        for _ in range(20):
            library.work()
            world.pass_time(0.001)
        world.pass_time(0.03)
    told = world.scheduler.giving_way()
    assert told is not None
    assert told.way == "request"
    assert told.requests_s[service.task.key] == pytest.approx(0.020, abs=0.003)
    first, second = shown()
    assert first.request_us == pytest.approx(20_000, abs=3_000)
    assert (first.submissions, first.seconds_waited, first.seconds_launching) == (60, 0.002, 0.0005)
    assert (second.request_us, second.submissions, second.seconds_waited) == (None, None, None)
    library.told = Told(1 << 62, 0, (1 << 63) - 1, 0)
    assert (shown()[0].seconds_waited or 0) <= 1e9
    world.do(lambda: world.scheduler.remove(service.task.key))
    told = world.scheduler.giving_way()
    assert told is None or service.task.key not in told.requests_s


# What is announced.


def announces(world: World, managed: ManagedTask, milliseconds: int = 2) -> None:
    message = TenantMessage(Kind.ANNOUNCE, 0, 1, milliseconds * 1_000_000)
    world.do(lambda: hear({world.scheduler: managed}, message, lambda _: True))


def announced(world: World) -> list[float]:
    return [event.in_s for event in world.policy.events if isinstance(event, Announce)]


@pytest.fixture(params=[True, False], ids=["watched", "unwatched"])
def heard(world: World, request: pytest.FixtureRequest) -> tuple[World, ManagedTask, Library]:
    managed, library = add(world)
    watch = {managed.task.key: IDLE_S} if request.param else {}
    world.decide(Decision({}, watch=watch, announcing=frozenset({managed.task.key})))
    world.run()
    assert (library.asked, library.announced) == (request.param, True)
    return world, managed, library


def test_what_is_announced_is_told_and_asked_for_again(heard: tuple[World, ManagedTask, Library]) -> None:
    world, managed, library = heard
    asked = library.asked
    for _ in range(2):
        library.asked = library.announced = False
        announces(world, managed)
        assert (library.asked, library.announced) == (asked, True)
    assert announced(world) == [0.002, 0.002]


def test_who_is_not_asked_announces_nothing(world: World) -> None:
    managed, library = add(world)
    world.run()
    announces(world, managed)
    assert announced(world) == []
    assert not library.announced


def test_who_is_busy_announces_nothing(watched: tuple[World, ManagedTask, Library]) -> None:
    world, managed, library = watched
    world.decide(Decision({}, watch={managed.task.key: IDLE_S}, announcing=frozenset({managed.task.key})))
    world.run()
    says_that_it_works(world, managed)
    library.announced = False
    announces(world, managed)
    assert announced(world) == []
    library.work()
    world.pass_time(3 * IDLE_S)
    assert library.announced, "once it is idle"
    announces(world, managed)
    assert announced(world) == [0.002]


def test_an_announcement_that_is_lost_is_not_the_last(heard: tuple[World, ManagedTask, Library]) -> None:
    world, managed, library = heard
    asked = library.asked
    library.asked = library.announced = False  # it took that back, and its message did not arrive
    world.pass_time(0.2)
    world.run()
    assert (library.asked, library.announced) == (asked, True)
    announces(world, managed)
    assert announced(world) == [0.002]


def test_who_is_no_longer_asked_hears_so(heard: tuple[World, ManagedTask, Library]) -> None:
    world, managed, library = heard
    world.decide(Decision({}))
    world.run()
    assert (library.asked, library.announced) == (False, False)
    announces(world, managed)
    assert announced(world) == []


def test_the_policy_sees_what_was_there_before_an_announcement(heard: tuple[World, ManagedTask, Library]) -> None:
    world, managed, library = heard
    library.told = Told(7, before=5)
    world.run()
    assert managed.task.activity == Activity(7, before=5)


def test_a_request_that_the_program_ends_is_over_at_once(watched: tuple[World, ManagedTask, Library]) -> None:
    world, managed, library = watched
    world.decide(Decision({}, watch={managed.task.key: 1.0}))
    world.run()
    library.told = Told(1, open=1)
    says_that_it_works(world, managed)
    world.pass_time(0.6)
    assert told(world) == [Busy]
    library.told = Told(2, open=0, ended=1)
    world.pass_time(0.6)
    assert told(world) == [Busy, Idle]


def test_within_a_request_a_pause_is_no_end_for_a_while(watched: tuple[World, ManagedTask, Library]) -> None:
    world, managed, library = watched
    library.told = Told(1, open=1)
    says_that_it_works(world, managed)
    world.pass_time(0.8 * OPEN_S)
    assert told(world) == [Busy]
    world.pass_time(OPEN_S)
    assert told(world) == [Busy, Idle], "one that is never ended"


def test_a_wait_that_goes_on_outlasts_the_end_of_a_request(watched: tuple[World, ManagedTask, Library]) -> None:
    world, managed, library = watched
    library.told = Told(1, waiting=1, open=1)
    says_that_it_works(world, managed)
    library.told = Told(1, waiting=1, ended=1)
    world.pass_time(0.2)
    assert told(world) == [Busy]


def test_of_a_scheduler_that_is_closed_nobody_is_watched(watched: tuple[World, ManagedTask, Library]) -> None:
    world, managed, library = watched
    says_that_it_works(world, managed)
    world.do(world.scheduler.close)
    assert not library.asked
    library.looked = 0
    world.pass_time(1)
    says_that_it_works(world, managed)
    assert (library.looked, told(world)) == (0, [Busy])
