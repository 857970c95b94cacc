"""Random programs that pause, on a simulated GPU beside batch jobs: however the background gives way to them, nobody is
off without an end, the policy is not busy with itself, and the way stays for a while.
"""

from __future__ import annotations

from itertools import pairwise
from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from runlist.arrivals import AnyLoad, Closed, Periodic, Poisson
from runlist.model import TaskClass
from runlist.policies import Decision, PolicySpec
from runlist.policies.parts.give_way import EARLY_S, WINDOW_S, Way
from runlist.policies.parts.requests import BREAK_S, MOST_OFF_S
from runlist.scheduling.loop import SOON_S
from runlist.sim import Trace
from runlist.sim.controller import Scheduler
from runlist.sim.machine import Machine
from runlist.sim.timing import CONTROLS, SECOND
from runlist.sim.workload import TenantSpec
from tests.fixtures.effort import TIMES

SECONDS = 12.0
APPLIED_S = 0.005
"""How long it may take until a decision is asked for, made and applied to a few tasks."""
assert sum(takes for takes, _, _ in CONTROLS.values()) / SECOND < APPLIED_S


def program(random: Random, number: int) -> TenantSpec:
    """A latency program, bound by the GPU or by its host, that announces or hints, truly or not."""
    rate = random.choice([5.0, 30.0, 100.0, 300.0])
    load: AnyLoad = random.choice([Closed(), Poisson(rate), Periodic(rate)])
    steps = random.choice([1, 1, 4, 16, 32])
    gaps = {
        "step_gap_us": random.choice([0.0, 10.0, 30.0, 100.0, 400.0]),
        "host_us": random.choice([0.0, 0.0, 20.0, 90.0, 300.0]),
    }
    gap = random.choice(list(gaps))
    host: dict[str, float] = {gap: gaps[gap]} if steps > 1 else {}
    if isinstance(load, Closed):
        host["gap_us"] = random.choice([500.0, 3_000.0, 20_000.0])
    else:
        host["prepare_us"] = random.choice([0.0, 200.0, 1_000.0, 3_000.0])
        host["false_alarms"] = random.choice([0.0, 0.1, 0.9]) if host["prepare_us"] else 0.0
        if random.random() < 0.4:
            host["hint_us"] = random.choice([500.0, 3_000.0])
    return TenantSpec(
        f"latency{number}",
        TaskClass.LATENCY,
        load=load,
        kernel_us=(random.choice([50.0, 200.0, 700.0, 1_500.0]),) * steps,
        tells=random.random() < 0.9,
        start_s=random.choice([0.0, 1.3]),
        **host,  # type: ignore[arg-type]
    )


class Listener:
    """What the policy of a GPU decides, noted."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.ways: list[tuple[float, str]] = []
        self.listened = 0
        self.offs: list[tuple[float, bool]] = []  # whether nobody of the background was on, from when on
        self._watch, scheduler.watch = scheduler.watch, self.watch  # type: ignore[method-assign]

    def watch(self, decision: Decision) -> None:
        now, told = self.scheduler.now(), self.scheduler.loop.giving_way()
        way = "" if told is None else told.way
        if not self.ways or self.ways[-1][1] != way:
            self.ways.append((now, way))
        assert decision.unhurried <= decision.watch.keys()
        assert not decision.unhurried or decision.unhurried == decision.watch.keys()
        assert bool(decision.unhurried) == bool(decision.watch and way == Way.SWITCH)
        assert not decision.off_on_work or decision.announcing or way == Way.REQUEST
        self.listened += bool(decision.unhurried)
        behind = [one.share.enabled for one in self.scheduler.tasks.values() if one.task.task_class is TaskClass.BATCH]
        self.offs.append((now, bool(behind) and not any(behind)))
        self._watch(decision)

    @property
    def longest_off(self) -> float:
        longest, since = 0.0, None
        for now, off in self.offs:
            since = (now if since is None else since) if off else None
            longest = max(longest, 0.0 if since is None else now - since)
        return longest


def lives(seed: int) -> tuple[Listener, Machine]:
    random = Random(seed)
    programs = [program(random, number) for number in range(random.choice([1, 1, 2]))]
    jobs = [
        TenantSpec(f"batch{number}", TaskClass.BATCH, kernel_us=(3_100.0,) * 4, gap_us=random.choice([0.0, 400.0]))
        for number in range(random.choice([1, 2]))
    ]
    machine = Machine(Trace("random", SECONDS, [*programs, *jobs]), PolicySpec("priority"), 1, SECONDS, seed)
    listener = Listener(machine.gpus[0].scheduler)
    machine.run()
    return listener, machine


@given(seed=st.integers(0, 2**32))
@example(seed=4)  # whose requests are tried and given up
@example(seed=153)  # whose slices are tried and given up
@example(seed=5098)  # whose programs come later, and fall behind at once
@example(seed=8877)  # whose slices show at once that they hold it up
@settings(max_examples=15 * TIMES, deadline=None)
def test_beside_random_programs_nobody_is_off_without_an_end_and_the_way_stays(seed: int) -> None:
    listener, machine = lives(seed)
    scheduler = listener.scheduler
    assert scheduler.notes == []
    assert listener.longest_off <= MOST_OFF_S + APPLIED_S + BREAK_S
    assert scheduler.decisions <= 3 * SECONDS / SOON_S  # two programs of 300 requests a second each take 2.4
    ways = [(at, way) for at, way in listener.ways if way]  # none is told of before there is a program
    stays = [(way, later - earlier) for (earlier, way), (later, _) in pairwise(ways)]
    shortest = {Way.SLICE: EARLY_S}
    assert all(stay >= shortest.get(way, WINDOW_S) - APPLIED_S for way, stay in stays[1:])
    assert len(stays) <= SECONDS / (3 * WINDOW_S), "at most one in three windows"
    jobs = [one for one in machine.tenants if one.spec.task_class is TaskClass.BATCH]
    assert sum(one.context.held for one in jobs) > 0


def test_programs_that_are_listened_to_are_among_them() -> None:
    """Else what is said above says nothing of listening."""
    listened = [lives(seed)[0].listened for seed in range(10)]
    assert sum(times > 0 for times in listened) >= 2
