"""What holds for every policy, whatever happens: random tasks come, go and change, and usage grows at random."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runlist.model import (
    MAX_TIMESLICE_US,
    Activity,
    Announce,
    Appear,
    Busy,
    Cap,
    Deadline,
    Event,
    Hint,
    Idle,
    Report,
    Segment,
    Share,
    Task,
    TaskClass,
    TaskKey,
    Tick,
    Usage,
    Vanish,
)
from runlist.planes.nvidia.slices import SLICES
from runlist.policies import LAYERS, Policy, PolicySpec, builtin_policies, load_policy
from runlist.scheduling.guard import LONGEST_WAIT_S, safe_shares
from tests.fixtures.effort import TIMES

BASES = [name for name in builtin_policies() if name not in LAYERS]
RUNS = settings(max_examples=30 * TIMES, deadline=None, suppress_health_check=[HealthCheck.too_slow])

CHANGES = {
    "task_class": lambda rnd: rnd.choice(list(TaskClass)),
    "weight": lambda rnd: rnd.choice([1, 100, 300, 10_000]),
    "cap": lambda rnd: rnd.choice([None, Cap.of_percent(rnd.randint(1, 100), rnd.choice([10_000, 100_000]))]),
    "deadline": lambda rnd: rnd.choice([None, Deadline(rnd.randint(1, 1_000), rnd.choice([10_000, 20_000, 500_000]))]),
    "target_p99_us": lambda rnd: rnd.choice([None, 1_000.0, 1e9]),
    "group": lambda rnd: rnd.choice(["", "a", "b"]),
    "suspended": lambda rnd: rnd.random() < 0.3,
    "timeslice_us": lambda rnd: rnd.choice([None, 1, 5_000]),
    "contexts": lambda rnd: rnd.choice([1, 2]),
    "activity": lambda rnd: rnd.choice([None, activity(rnd)]),
}
SECONDS_AHEAD = [0.0, 0.002, 0.5, -1.0, 1e9, float("nan")]


def activity(rnd: random.Random) -> Activity:
    """What a program may write there: anything."""
    work, before = rnd.choice([0, 5, 1 << 63]), rnd.choice([0, 4, 1 << 63])
    return Activity(work, rnd.choice([0.0, 1.0, 1e9]), rnd.choice([0.0, 1.0, 1e9]), before)


class Life:
    """A GPU's tasks under a policy, driven by random numbers. The time that tasks hold is made up."""

    def __init__(self, base: str, seed: int) -> None:
        rnd = random.Random(seed)
        self.policy: Policy = load_policy(PolicySpec(base))
        self.safe_by_itself = base != "gpreempt"  # its tiny slices, where nobody was refused, are the guard's business
        self.rnd = rnd
        self.now = rnd.choice([0.0, 1e6 * rnd.random()])
        self.tasks: dict[TaskKey, Task] = {}
        self.shares: dict[TaskKey, Share] = {}
        self.again_at: float | None = None
        self.decides = 0
        self.pid = 0

    def tell(self, event: Event) -> None:
        self.policy.on_event(event, self.now)

    def happen(self) -> None:
        """Something, at random."""
        rnd = self.rnd
        key = rnd.choice(list(self.tasks)) if self.tasks else None
        whats = [
            "appear",
            "vanish",
            "change",
            "change",
            "hint",
            "report",
            "segment",
            "announce",
            "busy",
            "idle",
            "nothing",
        ]
        what = rnd.choice(whats)
        if what == "appear" and len(self.tasks) < 8:
            self.pid += 1
            task = Task(TaskKey(self.pid, "GPU-0"), rnd.choice(list(TaskClass)), "x", 0, self.now)
            self.tasks[task.key] = task
            self.tell(Appear(task))
        elif key is None:
            return
        elif what == "vanish":
            del self.tasks[key]
            self.tell(Vanish(key))
        elif what == "change":
            name = rnd.choice(list(CHANGES))
            self.tasks[key] = replace(self.tasks[key], **{name: CHANGES[name](rnd)})
            self.tell(Appear(self.tasks[key]))
        elif what == "hint":
            self.tell(Hint(key, rnd.choice(SECONDS_AHEAD)))
        elif what == "announce":
            self.tell(Announce(key, rnd.choice(SECONDS_AHEAD)))
        elif what in ("busy", "idle"):
            self.tell((Busy if what == "busy" else Idle)(key))
        elif what == "report":
            self.tell(Report(key, rnd.choice([0.0001, 0.002, 10.0, -1.0, float("inf"), float("nan")])))
        elif what == "segment":
            priority = rnd.choice([None, 0, 1, 99])
            self.tasks[key] = replace(self.tasks[key], segment=priority)
            self.tell(Segment(key, priority))

    def use(self, seconds: float) -> None:
        """Time passes, and enabled tasks hold some of it; what was idle is found out later, also after a change."""
        enabled = [key for key in self.tasks if self.shares.get(key, Share()).enabled]
        for key in enabled:
            usage = self.tasks[key].usage
            held = seconds * self.rnd.choice([0.0, 0.0, self.rnd.random(), 1.0])
            idle = self.rnd.choice([0.0, 0.0, self.rnd.random()]) * (usage.held_s - usage.idle_s)
            turns = self.rnd.choice([0, 0, 1, 50])
            grown = Usage(usage.held_s + held, usage.turns + turns, usage.idle_s + idle)
            self.tasks[key] = replace(self.tasks[key], usage=grown)
        self.now += seconds

    def decide(self) -> None:
        tasks = list(self.tasks.values())
        self.rnd.shuffle(tasks)
        decision = self.policy.decide(tasks, self.now)
        self.decides += 1
        after = decision.again_after_s
        assert after is None or 0 <= after < 3_600
        self.again_at = None if after is None else self.now + max(0.001, after)
        for key, share in decision.shares.items():
            us = share.timeslice_us
            assert key in self.tasks
            assert us is None or (type(us) is int and 1 <= us <= MAX_TIMESLICE_US)
        assert decision.watch.keys() | decision.announcing | decision.off_on_work <= self.tasks.keys()
        assert all(0 < idle_s < 1 for idle_s in decision.watch.values())
        assert all(decision.shares[key].enabled for key in decision.off_on_work)
        assert decision.unhurried <= decision.watch.keys()
        assert not decision.off_on_work or decision.watch.keys() - decision.unhurried or decision.announcing
        assert all(decision.shares[key].enabled for key in decision.off_on_arrival)
        free = {task.key for task in tasks if not task.suspended}
        if self.safe_by_itself and all(task.timeslice_us is None and task.contexts == 1 for task in tasks):
            self.check(decision.shares, free)
        self.shares, _ = safe_shares(tasks, decision.shares, self.shares, self.now, SLICES)
        for key in self.tasks:
            assert "\n" not in self.policy.why(key)

    def check(self, shares: dict[TaskKey, Share], free: set[TaskKey]) -> None:
        """The policy itself is safe: the guard has nothing to do."""
        enabled = [share for key, share in shares.items() if key in free and share.enabled]
        assert sum(SLICES.is_tiny(share.timeslice_us) for share in enabled) <= 1
        if free and not enabled and free <= shares.keys():
            waits = [shares[key].until for key in free]
            assert all(until is not None and self.now <= until <= self.now + LONGEST_WAIT_S for until in waits)

    def live(self, steps: int) -> None:
        for _ in range(steps):
            for _ in range(self.rnd.randint(0, 2)):
                self.happen()
            self.decide()
            self.use(self.rnd.choice([0.0, 1e-4, 0.003, 0.05, 1.0]) * self.rnd.random())
            while self.again_at is not None and self.again_at <= self.now and self.rnd.random() < 0.9:
                self.tell(Tick())
                self.decide()


@pytest.mark.parametrize("base", BASES)
@given(seed=st.integers(0, 2**32))
@RUNS
def test_no_policy_stops_everything_or_fails(base: str, seed: int) -> None:
    """Nothing raises, every slice can be set, no two enabled tasks would stop each other, and when nothing is enabled
    everybody knows until when.
    """
    Life(base, seed).live(80)


@pytest.mark.parametrize("base", BASES)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=10 * TIMES, deadline=None)
def test_no_policy_asks_too_often(base: str, seed: int) -> None:
    """Left alone with any tasks, and asked whenever it wants to be, no policy is busy with itself."""
    life = Life(base, seed)
    for _ in range(30):
        life.happen()
    life.decide()
    life.decides, start = 0, life.now
    while life.now < start + 3 and life.decides < 5_000:
        life.use((life.again_at or life.now + 0.5) - life.now)
        life.decide()
    assert life.decides / (life.now - start) < 300


@pytest.mark.parametrize("base", ["priority", "fair"])
@given(seed=st.integers(0, 2**32))
@settings(max_examples=10 * TIMES, deadline=None)
def test_nobody_starves(base: str, seed: int) -> None:
    """With weights that are not far apart, caps, and batch tasks behind a foreground that leaves half of the time,
    everybody gets something in 30 s.
    """
    rnd = random.Random(seed)
    policy = load_policy(PolicySpec(base))
    foreground = [Task(TaskKey(1, "GPU-0"), TaskClass.LATENCY, "x", 0, 0.0)] if rnd.random() < 0.7 else []
    background = [
        Task(
            TaskKey(pid, "GPU-0"),
            TaskClass.BATCH,
            "x",
            0,
            0.0,
            weight=rnd.choice([100, 300]),
            cap=rnd.choice([None, Cap.of_percent(rnd.randint(5, 60))]),
            group=rnd.choice(["", "a"]),
        )
        for pid in range(2, 2 + rnd.randint(1, 6))
    ]
    tasks = {task.key: task for task in foreground + background}
    got: Counter[TaskKey] = Counter()
    now = 0.0
    while now < 30:
        decision = policy.decide(list(tasks.values()), now)
        shares, _ = safe_shares(list(tasks.values()), decision.shares, {}, now, SLICES)
        step = min(max(0.001, decision.again_after_s or 0.1), 0.1)
        enabled = [key for key in tasks if shares[key].enabled]
        for key in enabled:  # the foreground takes half, the others the rest by slice
            behind = [each for each in enabled if each != foreground[0].key] if foreground else enabled
            sum_us = sum(shares[each].timeslice_us or 2048 for each in behind)
            if foreground and key == foreground[0].key:
                held = step / 2
            else:
                held = (step / 2 if foreground else step) * (shares[key].timeslice_us or 2048) / sum_us
            usage = tasks[key].usage
            tasks[key] = replace(tasks[key], usage=Usage(usage.held_s + held, usage.turns + 1 + int(step * 20)))
            got[key] += held
        now += step
    assert all(got[task.key] > 0.1 for task in background)
