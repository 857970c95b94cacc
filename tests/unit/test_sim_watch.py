"""Watching simulated tenants: Busy at the first work after idleness, Idle when it was quiet for long enough."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runlist.arrivals import Listed
from runlist.model import Announce, Busy, Event, Idle, Task, TaskKey
from runlist.policies import Decision, Policy, PolicySpec
from runlist.sim import Trace
from runlist.sim.engine import Engine
from runlist.sim.machine import Machine
from runlist.sim.telling import Telling
from runlist.sim.timing import MICROSECOND, MILLISECOND, SECOND, WORK_MESSAGE
from runlist.sim.watch import Watch
from runlist.sim.workload import TenantSpec

KEY, OTHER = TaskKey(1, "GPU-0"), TaskKey(2, "GPU-0")
IDLE_S = 0.004
HALF = 2 * MILLISECOND


class Bench:
    """A watch, two tenants that do as they are told, and what is heard of them when."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.heard: list[tuple[int, Event]] = []
        self.tellings = {KEY: Telling(), OTHER: Telling()}
        self.watch = Watch(self.engine, lambda event: self.heard.append((self.engine.now, event)))

    def watches(self, wanted: dict[TaskKey, float], at: int = 0) -> None:
        self.engine.run(at)
        self.watch.set({key: (self.tellings[key], idle_s) for key, idle_s in wanted.items()})

    def submits(self, *times: int, key: TaskKey = KEY) -> None:
        for time in times:
            self.engine.at(time, lambda _: self.tellings[key].submits(1, self.engine.now))

    def waits(self, begins: int, ends: int, key: TaskKey = KEY) -> None:
        self.engine.at(begins, lambda _: self.tellings[key].waits(self.engine.now))
        self.engine.at(ends, lambda _: self.tellings[key].goes_on(self.engine.now))

    def run(self, until: int = SECOND) -> list[tuple[int, Event]]:
        self.engine.run(until)
        heard, self.heard = self.heard, []
        return heard


def test_busy_comes_with_the_first_work_and_idle_when_it_was_quiet_for_so_long() -> None:
    bench = Bench()
    bench.watches({KEY: IDLE_S})
    bench.submits(MILLISECOND, 2 * MILLISECOND, 5 * MILLISECOND, 50 * MILLISECOND)
    heard = MILLISECOND + WORK_MESSAGE
    again = 50 * MILLISECOND + WORK_MESSAGE
    assert bench.run() == [
        (heard, Busy(KEY)),
        (heard + 4 * HALF, Idle(KEY)),  # the last work was at 5 ms, and it looks every 2: at 9.05, not at 7.05
        (again, Busy(KEY)),
        (again + 2 * HALF, Idle(KEY)),
    ]


def test_who_waits_for_the_gpu_is_not_idle_and_is_told_once() -> None:
    bench = Bench()
    bench.watches({KEY: IDLE_S})
    bench.submits(MILLISECOND)
    bench.waits(MILLISECOND, 30 * MILLISECOND)
    heard = MILLISECOND + WORK_MESSAGE
    assert bench.run() == [(heard, Busy(KEY)), (heard + 17 * HALF, Idle(KEY))]  # 35.05, the first after 34
    assert bench.run(2 * SECOND) == []


def test_who_works_when_it_is_watched_is_busy_at_its_next_submission() -> None:
    bench = Bench()
    bench.submits(MILLISECOND, 8 * MILLISECOND)
    bench.waits(MILLISECOND, 8 * MILLISECOND)
    bench.watches({KEY: IDLE_S}, at=3 * MILLISECOND)
    assert bench.run()[0] == (8 * MILLISECOND + WORK_MESSAGE, Busy(KEY))


def test_watching_again_keeps_what_is_known() -> None:
    bench = Bench()
    bench.watches({KEY: IDLE_S})
    bench.submits(MILLISECOND)
    assert bench.run(2 * MILLISECOND) == [(MILLISECOND + WORK_MESSAGE, Busy(KEY))]
    bench.watches({KEY: IDLE_S, OTHER: IDLE_S}, at=3 * MILLISECOND)
    bench.watches({KEY: 0.010}, at=4 * MILLISECOND)  # it goes on as busy, and looks anew, every 5 ms
    bench.submits(14 * MILLISECOND, key=OTHER)
    assert bench.run() == [(14 * MILLISECOND, Idle(KEY))]
    bench.watches({KEY: IDLE_S}, at=SECOND)
    bench.submits(SECOND + MILLISECOND)
    assert bench.run(SECOND + 2 * MILLISECOND) == [(SECOND + MILLISECOND + WORK_MESSAGE, Busy(KEY))]


def test_a_shorter_time_that_is_over_is_told_at_once() -> None:
    bench = Bench()
    bench.watches({KEY: 1.0})
    bench.submits(MILLISECOND)
    bench.run(10 * MILLISECOND)
    bench.watches({KEY: IDLE_S}, at=10 * MILLISECOND)
    assert bench.run() == [(10 * MILLISECOND, Idle(KEY))]


def test_nothing_is_told_of_who_is_watched_no_more() -> None:
    bench = Bench()
    bench.watches({KEY: IDLE_S, OTHER: IDLE_S})
    bench.submits(MILLISECOND, 5 * MILLISECOND)
    bench.submits(MILLISECOND, 5 * MILLISECOND, key=OTHER)
    bench.watches({OTHER: IDLE_S}, at=MILLISECOND + WORK_MESSAGE // 2)  # the message is under way
    bench.run(2 * MILLISECOND)
    bench.watch.drop(OTHER)
    assert bench.run() == []
    assert bench.engine.events == 5  # four submissions, one message
    bench.watches({KEY: IDLE_S}, at=SECOND)
    assert bench.run(2 * SECOND) == []


@pytest.mark.parametrize("unhurried", [False, True])
def test_who_is_busy_announces_where_nobody_goes_off_for_its_work(unhurried: bool) -> None:
    bench = Bench()
    telling = bench.tellings[KEY]
    bench.watch.set({KEY: (telling, IDLE_S)}, frozenset({KEY} if unhurried else ()))
    bench.watch.hear({KEY: telling})
    bench.submits(MILLISECOND)
    bench.engine.at(2 * MILLISECOND, lambda _: telling.announces(MILLISECOND))
    announced = [(2 * MILLISECOND + WORK_MESSAGE, Announce(KEY, 0.001))] if unhurried else []
    assert bench.run(3 * MILLISECOND)[1:] == announced


_act = st.tuples(st.sampled_from(["submit", "wait", "go on"]), st.integers(1, 900))


@given(st.lists(_act, max_size=40), st.sampled_from([0.0005, 0.001, 0.004, 0.0041]))
def test_it_hears_what_looking_all_the_time_would_show(acts: list[tuple[str, int]], idle_s: float) -> None:
    """The acts are ten-microsecond steps apart, each with some nanoseconds of its own, so that none meets a look."""
    bench = Bench()
    bench.watches({KEY: idle_s})
    timed, now = [], 0
    for number, (act, steps) in enumerate(acts):
        now += steps * 10 * MICROSECOND
        timed.append((now + number, act))
    telling = bench.tellings[KEY]
    for time, act in timed:
        method = {
            "submit": lambda _: telling.submits(1, bench.engine.now),
            "wait": lambda _: telling.waits(bench.engine.now),
            "go on": lambda _: telling.goes_on(bench.engine.now),
        }[act]
        bench.engine.at(time, method)
    ends = now + 10 * MILLISECOND
    assert bench.run(ends) == _by_looking(timed, round(idle_s * SECOND), ends)


def _by_looking(timed: Sequence[tuple[int, str]], idle: int, ends: int) -> list[tuple[int, Event]]:
    heard: list[tuple[int, Event]] = []
    free = 0  # from when on the next work is the first
    while True:
        work = next((time for time, act in timed if act == "submit" and time >= free), None)
        if work is None or work + WORK_MESSAGE > ends:
            return heard
        look = work + WORK_MESSAGE
        heard.append((look, Busy(KEY)))
        while not _is_quiet([act for act in timed if act[0] <= look], look, idle):
            look += idle // 2
            if look > ends:
                return heard
        heard.append((look, Idle(KEY)))
        free = look


def _is_quiet(past: Sequence[tuple[int, str]], now: int, idle: int) -> bool:
    waits, quiet = False, 0
    for time, act in past:
        if act == "submit" or (act == "go on" and waits):
            quiet = time
        waits = act == "wait" or (waits and act == "submit")
    return not waits and now - quiet >= idle


class Watching(Policy):
    """Watches all that it sees, and notes what it hears and when it is asked."""

    summary = "of a test"

    def __init__(self) -> None:
        super().__init__({})
        self.log: list[tuple[float, object]] = []

    def on_event(self, event: Event, now: float) -> None:
        if isinstance(event, Busy | Idle):
            self.log.append((now, event))

    def decide(self, tasks: Sequence[Task], now: float) -> Decision:
        self.log.append((now, "asked"))
        return Decision({}, watch={task.key: IDLE_S for task in tasks})


@pytest.mark.parametrize("tells", [True, False])
def test_a_policy_hears_of_those_who_tell_and_is_asked_then(tells: bool) -> None:
    spec = TenantSpec("program", kernel_us=(1_000.0, 1_000.0), step_gap_us=100.0, load=Listed((0.1, 0.2)), tells=tells)
    machine = Machine(Trace("watched", 0.3, [spec]), PolicySpec("none"), 1, 0.15, 1)
    policy = Watching()
    machine.gpus[0].scheduler.loop.use(PolicySpec("own"), policy)
    machine.run()
    heard = [(now, event) for now, event in policy.log if event != "asked"]
    if not tells:
        assert heard == []
        return
    (key,) = machine.gpus[0].scheduler.tasks
    (busy, first), (idle, second) = heard
    assert (first, second) == (Busy(key), Idle(key))
    assert busy == pytest.approx(0.1, abs=0.0002)
    done = 0.1 + machine.tenants[0].latencies[0] / SECOND
    assert done + IDLE_S <= idle <= done + 1.5 * IDLE_S
    for now in (busy, idle):
        assert any(asked == "asked" and now <= at <= now + 0.0025 for at, asked in policy.log)
