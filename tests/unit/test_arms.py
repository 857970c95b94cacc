"""What goes off at once on a GPU: when the actuator is armed, with what, and what its word does to the books."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from runlist.daemon.actuator.link import MOST_WORDS
from runlist.daemon.actuator.messages import Result
from runlist.daemon.gpu import arms
from runlist.daemon.gpu.arms import Arms
from runlist.daemon.gpu.book import BookUsage
from runlist.daemon.tasks.managed import GAVE_WAY, Count, ManagedTask, SuspendedBy
from runlist.errors import RunlistError
from runlist.model import Announce, Busy, Share, TaskClass, TaskKey
from runlist.planes.interface import Prepared
from runlist.planes.process.region import Activity
from runlist.policies import Decision
from tests.fixtures.fake_rm import UUIDS
from tests.fixtures.scheduler import DISABLE, Tenant, World

# As they are to be: taken from the code they would hold whatever it says.
SHY_S = 1.0

LATENCY, BATCH = TaskClass.LATENCY, TaskClass.BATCH
IDLE_S = 0.002
PREPARED = Prepared((b"off",), (b"on",))
DONE, FAILED = Result(1.0, 1.0, 1.1, done=True), Result(1.0, 1.0, 1.1, done=False)


@dataclass
class Actuator:
    """Notes what it is armed with. `on_disarm` happens before a disarm is answered."""

    armed: dict[int, tuple[list[Any], list[Any], Any]] = field(default_factory=dict)
    made: int = 0
    able: bool = True
    on_disarm: Callable[[int], object] = lambda number: None

    def arm(self, words: Sequence[Any], targets: Sequence[Any], owner: Any) -> int:
        if not self.able:
            return 0
        self.made += 1
        self.armed[self.made] = (list(words), list(targets), owner)
        return self.made

    def disarm(self, number: int) -> None:
        self.on_disarm(number)
        self.armed.pop(number, None)

    def fire(self, *results: Result, word: int = 0) -> None:
        ((number, (_, _, owner)),) = self.armed.items()
        del self.armed[number]
        owner.fired(word, results)

    def off(self) -> int:
        """How many targets there are."""
        return sum(len(targets) for _, targets, _ in self.armed.values())


@dataclass
class Library:
    """The library of a process, in a region of its own."""

    at: int

    def activity(self, pid: int) -> Activity:
        return Activity()

    def ask_for_work(self, pid: int, *, asked: bool, announced: bool = False) -> None:
        pass

    def watched_at(self, pid: int) -> tuple[Any, int]:
        return self, self.at

    def fileno(self) -> int:
        return 100 + self.at


@pytest.fixture
def actuator() -> Actuator:
    return Actuator()


@pytest.fixture
def armed(world: World, actuator: Actuator, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A latency task 1, watched, and batch tasks 2 and 3, which go off when it begins to work."""
    armed_by(world, actuator, monkeypatch)
    add(world, 1, LATENCY)
    for pid in (2, 3):
        add(world, pid, BATCH)
    world.decide(decision(off=(2, 3)))
    world.run()
    yield world
    world.do(world.scheduler._arms.disarm)


def armed_by(world: World, actuator: Actuator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arms, "time", SimpleNamespace(monotonic=world.clock.monotonic))
    any_actuator: Any = actuator
    scheduler = world.scheduler
    scheduler._arms = Arms(scheduler.tasks, any_actuator, scheduler._fired, scheduler.wake)


def add(world: World, pid: int, task_class: TaskClass, **values: Any) -> ManagedTask:
    managed = world.add(pid, task_class, **values)
    root: Any = SimpleNamespace(quota=Library(pid))
    managed.root = root
    return managed


def key(pid: int) -> TaskKey:
    return TaskKey(pid, UUIDS[0])


def decision(off: Sequence[int] = (), on: Sequence[int] = (1, 2, 3), watch: Sequence[int] = (1,)) -> Decision:
    return Decision(
        {key(pid): Share(10_000, pid in on, None if pid in on else 200.0) for pid in (1, 2, 3)},
        watch={key(pid): IDLE_S for pid in watch},
        off_on_work=frozenset(map(key, off)),
    )


def suspensions(world: World) -> list[int]:
    return [world.scheduler.tasks[key(pid)].counts[Count.SUSPENSIONS] for pid in (2, 3)]


def test_the_actuator_is_armed_with_the_words_of_idle_tasks_and_what_suspends_the_others(
    armed: World, actuator: Actuator
) -> None:
    ((words, targets, _),) = actuator.armed.values()
    assert words == [(101, 1)]
    assert [prepared for _, prepared in targets] == [armed.tenants[pid].context.prepared_suspend() for pid in (2, 3)]
    armed.run()
    assert actuator.made == 1  # nothing changed


def test_what_it_did_is_in_the_books_before_the_policy_is_asked(armed: World, actuator: Actuator) -> None:
    asked = len(armed.policy.asked)
    armed.do(lambda: actuator.fire(DONE, DONE))
    tasks = [armed.scheduler.tasks[key(pid)] for pid in (2, 3)]
    assert [task.share.enabled for task in tasks] == [False, False]
    assert {task.remark for task in tasks} == {GAVE_WAY}
    assert suspensions(armed) == [1, 1]
    armed.decide(decision(on=(1,)))
    armed.pass_time(IDLE_S / 4)
    armed.do(lambda: armed.scheduler.worked(key(1)))  # its message
    assert armed.policy.events.count(Busy(key(1))) == 1
    armed.pass_time(0.01)
    assert len(armed.policy.asked) > asked
    assert {task.remark for task in tasks} == {""}
    assert suspensions(armed) == [1, 1]
    assert armed.shares()[2][1]  # nobody sent a second control: only the actuator's would have reached the driver


def test_the_book_counts_no_time_of_what_it_suspended(
    armed: World, actuator: Actuator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BookUsage.__init__, "__defaults__", (armed.clock.monotonic,))
    armed.source.error = RunlistError("no")
    armed.pass_time(0.01)
    armed.run()
    before = [armed.scheduler.accounting.of(pid).usage.held_s for pid in (1, 2, 3)]
    armed.decide(decision(on=(1,)))
    armed.do(lambda: actuator.fire(DONE, DONE))
    armed.pass_time(0.5)
    armed.run()
    after = [armed.scheduler.accounting.of(pid).usage.held_s for pid in (1, 2, 3)]
    assert [round(now - was, 6) for now, was in zip(after, before, strict=True)] == [0.5, 0.0, 0.0]


def test_a_policy_that_thinks_otherwise_has_them_resumed(armed: World, actuator: Actuator) -> None:
    for pid in (2, 3):
        armed.tenants[pid].context.suspend_at_once([])  # as the actuator does
        armed.tenants[pid].file.calls.clear()
    armed.do(lambda: actuator.fire(DONE, DONE))
    armed.pass_time(0.01)
    assert all(enabled for _, enabled in armed.shares().values())
    for pid in (2, 3):  # by what went off alone: 8 of 20 channels
        (sent,) = armed.tenants[pid].file.sent(DISABLE)
        assert struct.unpack_from("<B3xI", sent.params) == (0, 8)


def test_with_what_is_new_of_one_that_copies_all_of_it_stops(armed: World, actuator: Actuator) -> None:
    armed.tenants[2].context.suspend_at_once([])  # as the actuator does
    task = armed.scheduler.tasks[key(2)]
    armed.do(lambda: actuator.fire(DONE, DONE))
    late = Tenant(armed.rm, 22)
    task.contexts[22] = late.context
    task.take_in(late.context)
    assert (armed.tenants[2].enabled, late.enabled) == (False, False)  # all of them: what computes may be others now
    armed.pass_time(0.01)
    assert task.share.enabled
    assert (armed.tenants[2].enabled, late.enabled) == (True, True)


def test_what_could_not_be_suspended_is_suspended_by_the_loop(armed: World, actuator: Actuator) -> None:
    armed.decide(decision(on=(1,)))
    armed.do(lambda: actuator.fire(DONE, FAILED))
    assert [armed.shares()[pid][1] for pid in (2, 3)] == [True, False]
    assert suspensions(armed) == [1, 1]


def test_what_cannot_be_suspended_at_all_is_given_up(armed: World, actuator: Actuator) -> None:
    armed.tenants[3].file.on_control = lambda call: 0x1F
    armed.do(lambda: actuator.fire(DONE, FAILED))
    armed.tenants[3].file.on_control = lambda call: None
    armed.pass_time(0.01)
    assert [list(failures) for failures in armed.failures] == [[key(3)]]


def test_where_the_actuator_ends_those_that_cannot_be_put_right_are_given_up(armed: World, actuator: Actuator) -> None:
    """Nobody knows what it did: all that were armed are enabled, which of one the driver refuses."""
    ((_, (_, _, owner)),) = actuator.armed.items()
    armed.tenants[3].file.on_control = lambda call: 0x1F if call.command == DISABLE else None
    armed.tenants[2].context.suspend_at_once([])
    armed.do(owner.lost)
    armed.tenants[3].file.on_control = lambda call: None
    armed.pass_time(0.01)
    assert armed.tenants[2].enabled
    assert [list(failures) for failures in armed.failures] == [[key(3)]]


def test_its_word_that_comes_while_it_is_disarmed_counts(armed: World, actuator: Actuator) -> None:
    """The message of the tenant was heard first, and the policy takes one off and leaves the other."""
    actuator.on_disarm = lambda number: actuator.fire(DONE, DONE)
    for pid in (2, 3):
        armed.tenants[pid].context.suspend_at_once([])
        armed.tenants[pid].file.calls.clear()
    armed.decide(decision(on=(1, 3)))
    armed.run()
    assert [armed.tenants[pid].computes for pid in (2, 3)] == [False, True]
    assert suspensions(armed) == [1, 1]
    assert armed.tenants[2].file.calls == []


def test_what_goes_off_while_it_is_not_watched_any_more_comes_on_again(armed: World, actuator: Actuator) -> None:
    """The decision is applied by then, and nobody is told of the work of whom nobody watches."""

    def fire(number: int) -> None:
        for pid in (2, 3):
            armed.tenants[pid].context.suspend_at_once([])
        actuator.fire(DONE, DONE)

    actuator.on_disarm = fire

    def run() -> list[str]:
        armed.scheduler.run()
        return [managed.remark for managed in armed.scheduler.tasks.values() if not managed.share.enabled]

    armed.decide(decision(watch=()))
    assert armed.do(run) == [GAVE_WAY] * 2  # until the policy has decided anew
    actuator.on_disarm = lambda number: None
    armed.pass_time(0.01)
    assert all(enabled for _, enabled in armed.shares().values())
    assert all(managed.share.enabled for managed in armed.scheduler.tasks.values())


def test_a_word_is_let_go_of_before_the_daemon_clears_it(armed: World, actuator: Actuator) -> None:
    cleared: list[int] = []
    library: Any = armed.scheduler.tasks[key(1)].root.quota  # type: ignore[union-attr]
    library.ask_for_work = lambda pid, *, asked, announced: None if asked else cleared.append(len(actuator.armed))
    armed.decide(decision(watch=()))
    armed.run()
    assert cleared == [0]


@pytest.mark.parametrize("act", ["set_enabled", "remove", "close", "settle"])
def test_whoever_changes_a_task_has_it_disarmed_first(armed: World, actuator: Actuator, act: str) -> None:
    managed = armed.scheduler.tasks[key(3)]
    acts: dict[str, Callable[[], object]] = {
        "set_enabled": lambda: managed.set_enabled(False),
        "remove": lambda: armed.scheduler.remove(key(3)),
        "close": armed.scheduler.close,
        "settle": managed.settle,
    }
    armed.do(acts[act])
    assert actuator.armed == {}
    assert managed.on_settle is None


def test_who_went_off_at_once_is_off_whole_when_it_is_suspended_for_a_cause(armed: World, actuator: Actuator) -> None:
    """The actuator left what it copies."""
    tenant, managed = armed.tenants[2], armed.scheduler.tasks[key(2)]
    armed.decide(decision(off=(2, 3), on=(1,)))
    armed.do(lambda: actuator.fire(DONE, DONE))
    armed.run()
    assert tenant.file.sent(DISABLE) == []
    managed.suspend_for(SuspendedBy.USER)
    armed.run()
    assert not tenant.enabled
    assert tenant.count(DISABLE) == 1
    armed.run()
    assert tenant.count(DISABLE) == 1
    managed.let_go(SuspendedBy.USER)
    armed.decide(decision(off=(2, 3)))
    armed.run()
    assert tenant.enabled


def test_when_the_actuator_is_lost_what_is_in_the_books_is_asserted(armed: World, actuator: Actuator) -> None:
    armed.tenants[2].context.suspend()  # nobody was told
    ((_, _, owner),) = actuator.armed.values()
    actuator.armed.clear()
    armed.do(owner.lost)
    assert armed.shares()[2][1]
    assert actuator.made == 1
    armed.do(owner.may_arm)
    assert actuator.off() == 2


def test_a_word_that_was_dropped_is_left_out_for_a_while(armed: World, actuator: Actuator) -> None:
    ((_, _, owner),) = actuator.armed.values()
    owner.dropped(0)
    armed.run()
    assert actuator.armed == {}
    armed.clock.now += SHY_S
    armed.run()
    assert actuator.off() == 2


@pytest.mark.parametrize("many", [False, True], ids=["one number", "many numbers"])
def test_of_many_users_each_has_a_word(armed: World, actuator: Actuator, many: bool) -> None:
    for pid in range(10, 10 + MOST_WORDS + 5):
        add(armed, pid, LATENCY, uid=100_000 + pid if many else 1000, owned_by=(1000, ""))
    add(armed, 90, LATENCY, uid=1001)
    armed.decide(decision(off=(2, 3), watch=[pid for pid in armed.tenants if pid not in (2, 3)]))
    armed.run()
    ((words, _, _),) = actuator.armed.values()
    assert len(words) == MOST_WORDS
    assert {(101, 1), (190, 90)} <= set(words)


@pytest.mark.parametrize("announces", [True, False])
def test_of_who_is_watched_without_hurry_the_word_counts_for_what_it_announces(
    armed: World, actuator: Actuator, announces: bool
) -> None:
    unhurried = frozenset({key(1)})
    armed.decide(replace(decision(off=(2, 3)), unhurried=unhurried, announcing=unhurried if announces else frozenset()))
    armed.run()
    assert actuator.off() == (2 if announces else 0)


def test_a_context_that_cannot_be_prepared_leaves_it_to_the_loop(
    armed: World, actuator: Actuator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(armed.tenants[3].context, "prepared_suspend", lambda: None)
    armed.run()
    assert actuator.armed == {}


@pytest.mark.parametrize("late", [True, False])
def test_what_was_announced_is_news_once_whoever_tells_of_it_first(
    armed: World, actuator: Actuator, late: bool
) -> None:
    """The message comes first, and the actuator's word as it is disarmed, or later."""
    told = replace(decision(off=(2, 3)), watch={}, announcing=frozenset({key(1)}))
    armed.decide(told)
    armed.run()

    def say() -> bool:
        return armed.scheduler.announced(key(1), 0.002)

    def announcements() -> int:
        return sum(isinstance(event, Announce) for event in armed.policy.events)

    armed.clock.now += 0.05
    if late:
        armed.decide(told)
        assert armed.do(say)
        armed.do(lambda: actuator.fire(DONE, DONE))
    else:
        actuator.on_disarm = lambda number: actuator.fire(DONE, DONE)
        armed.decide(replace(told, shares=decision(on=(1,)).shares, off_on_work=frozenset()))
        assert armed.do(say)
        actuator.on_disarm = lambda number: None
    armed.pass_time(0.01)
    assert announcements() == 1
    armed.decide(told)
    armed.run()
    armed.clock.now += 0.05
    armed.do(lambda: actuator.fire(DONE, DONE))  # of the next one no message has come
    armed.pass_time(0.01)
    assert announcements() == 2


def test_a_word_for_announcements_is_let_go_of_before_the_daemon_clears_it(armed: World, actuator: Actuator) -> None:
    unhurried = frozenset({key(1)})
    listened = replace(decision(off=(2, 3)), unhurried=unhurried, announcing=unhurried)
    armed.decide(listened)
    armed.run()
    assert actuator.off() == 2
    cleared: list[int] = []
    library: Any = armed.scheduler.tasks[key(1)].root.quota  # type: ignore[union-attr]
    library.ask_for_work = lambda pid, *, asked, announced: None if announced else cleared.append(len(actuator.armed))
    armed.decide(replace(listened, announcing=frozenset()))
    armed.run()
    assert cleared == [0]
