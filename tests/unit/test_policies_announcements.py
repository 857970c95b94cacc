"""Announcements: the background is off for a task that is about to work, and wrong ones cost it no more than a part."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runlist.model import Activity, Announce, Appear, Busy, Hint, Idle, Task, TaskClass, TaskKey, Usage, Used, Vanish
from runlist.policies import Decision, PolicySpec, load_policy
from runlist.policies.parts import announcements as part
from runlist.policies.parts.hints import AHEAD_S, WAIT_S
from runlist.protocol import tenant_autogen
from tests.fixtures.effort import TIMES

# As they are to be: taken from the code they would hold whatever it says.
AT_ONCE_S, BREAK_S = 0.003, 0.005
BURST_S = 0.05
FARTHEST_S = 1.0
GRACE_S = 0.001
LOOK_S = 0.001
MOST_COST, MOST_OFF_S = 0.2, 0.1
REST_S = 10.0
WINDOW_S = 1.0
WORTH_SAYING = 3

LATENCY, BATCH = TaskClass.LATENCY, TaskClass.BATCH
STEP_S = 0.0005


def task(pid: int, task_class: TaskClass, **values: object) -> Task:
    return Task(TaskKey(pid, "GPU-0"), task_class, f"program{pid}", 1000, 0.0, **values)


class Gpu:
    """Latency tasks and one of the background under `priority`, asked when it wants to be, and at each event."""

    def __init__(self, *, tells: bool = True, many: int = 1, **options: str) -> None:
        self.policy = load_policy(PolicySpec("priority", options=options))
        self.now = 10.0
        activity = Activity() if tells else None
        self.tasks = {pid: task(pid, LATENCY, activity=activity) for pid in range(1, many + 1)}
        self.batch = task(100, BATCH)
        self.decision = Decision({})
        self.due = self.now
        self.off_s = 0.0
        self.longest_off = 0.0
        self._off = 0.0
        for each in (*self.tasks.values(), self.batch):
            self.policy.on_event(Appear(each), self.now)
        self.ask()

    def ask(self) -> None:
        self.decision = self.policy.decide([*self.tasks.values(), self.batch], self.now)
        after = self.decision.again_after_s
        self.due = float("inf") if after is None else self.now + after

    @property
    def off(self) -> bool:
        return not self.decision.shares[self.batch.key].enabled

    def heard(self, pid: int = 1) -> bool:
        return self.tasks[pid].key in self.decision.announcing

    def why(self, pid: int) -> str:
        return self.policy.why(TaskKey(pid, "GPU-0"))

    def run(self, seconds: float, step: Callable[[], object] = lambda: None) -> None:
        """Lets time pass; `step` is what happens in each bit of it."""
        ends = self.now + seconds
        while self.now < ends - 1e-9:
            self.now += STEP_S
            self.off_s += STEP_S * self.off
            self._off = self._off + STEP_S if self.off else 0.0
            self.longest_off = max(self.longest_off, self._off)
            step()
            if self.now >= self.due - 1e-9:
                self.ask()

    def announce(self, in_s: float = 0.002, pid: int = 1) -> None:
        if not self.heard(pid):
            return
        one = self.tasks[pid]
        if one.activity is not None:
            self.tasks[pid] = replace(one, activity=msgspec.structs.replace(one.activity, before=one.activity.work))
        self.policy.on_event(Announce(one.key, in_s), self.now)
        self.ask()

    def work(self, pid: int = 1) -> None:
        """A request is served: the task works, and has the GPU for it."""
        one = self.tasks[pid]
        activity = one.activity and msgspec.structs.replace(one.activity, work=one.activity.work + 1)
        usage = Usage(one.usage.held_s + 0.0002, one.usage.turns + 1)
        self.tasks[pid] = replace(one, usage=usage, activity=activity)
        self.policy.on_event(Used({one.key: 0.0002}), self.now)


@pytest.mark.parametrize("way", ["switch", "request"])
@pytest.mark.parametrize("in_s", [0.0, 0.002, AT_ONCE_S])
def test_the_background_is_off_at_once_for_what_comes_soon(way: str, in_s: float) -> None:
    gpu = Gpu(give_way=way)
    assert not gpu.off
    gpu.announce(in_s)
    assert gpu.off
    assert gpu.why(100) == "kept off by an announcement"


@pytest.mark.parametrize(("a_second", "heard"), [(80, True), (240, False)])
def test_so_many_that_they_cost_more_than_they_bring_are_not_listened_to(a_second: int, heard: bool) -> None:
    gpu = Gpu(give_way="switch")
    due = gpu.now

    def serve() -> None:
        nonlocal due
        if gpu.now >= due:
            due += 1 / a_second
            gpu.announce(0.0)
            gpu.work()

    gpu.run(3.0, serve)
    assert gpu.heard() is heard
    assert ("so many" in gpu.why(1)) is not heard
    before = gpu.off_s
    gpu.run(5.0, serve)
    assert (gpu.off_s > before) is heard
    gpu.run(4.0)  # it is calm: it is listened to again
    assert gpu.heard()


@pytest.mark.parametrize(("owner", "heard"), [({}, False), ({"uid": 1001}, True), ({"owned_by": (1000, "a")}, True)])
def test_so_many_of_one_owner_keep_no_other_one_s_from_being_listened_to(owner: dict[str, Any], heard: bool) -> None:
    """Of users, and of pods that run as the same one."""
    gpu = Gpu(give_way="switch", many=2)
    come_anew(gpu, 2, **owner)
    due = {1: gpu.now, 2: gpu.now}

    def serve() -> None:
        for pid, a_second in ((1, 240), (2, 10)):
            if gpu.now >= due[pid]:
                due[pid] += 1 / a_second
                gpu.announce(0.0, pid)
                gpu.work(pid)

    gpu.run(3.0, serve)
    for _ in range(5):
        gpu.run(1.0, serve)
        assert (gpu.heard(1), gpu.heard(2)) == (False, heard)
    assert ("so many" in gpu.why(2)) is not heard
    gpu.run(10.0)  # it is calm
    assert gpu.heard(1)


def test_so_many_of_several_users_are_not_listened_to_either() -> None:
    gpu = Gpu(give_way="switch", many=6)
    for pid in range(2, 7):
        come_anew(gpu, pid, uid=1000 + pid)
    due = dict.fromkeys(gpu.tasks, gpu.now)

    def serve() -> None:
        for pid in due:
            if gpu.now >= due[pid]:
                due[pid] += 1 / 60
                gpu.announce(0.0, pid)
                gpu.work(pid)

    gpu.run(5.0, serve)
    before = gpu.off_s
    gpu.run(3.0, serve)
    assert gpu.off_s - before <= MOST_COST * 3.0 + 0.1


def test_how_long_nobody_is_listened_to_gets_longer_and_is_short_again_after_a_calm_time() -> None:
    announcements = part.Announcements(0.02)
    key, now = TaskKey(1, "GPU-0"), 10.0
    announcements.appears(task(1, LATENCY))

    def rest() -> float:
        """How long nobody is listened to after too many in a row."""
        nonlocal now
        while announcements.heard([key], now):
            announcements.note(Announce(key, 0.0), now)
            announcements.worked(key)
            now += 0.001
        began = now
        while not announcements.heard([key], now):
            now += 0.1
        return now - began

    rests = [rest() for _ in range(5)]
    assert rests == pytest.approx([REST_S, 2 * REST_S, 4 * REST_S, 60, 60], abs=0.2)
    announcements.note(Announce(key, 0.0), now)
    announcements.worked(key)
    now += 2 * WINDOW_S
    assert rest() == pytest.approx(REST_S, abs=0.2)


def test_soon_is_the_same_in_the_library() -> None:
    assert tenant_autogen.AT_ONCE_MS / 1e3 == AT_ONCE_S


def test_for_what_comes_later_it_is_off_a_little_before() -> None:
    gpu = Gpu(give_way="switch")
    gpu.announce(0.02)
    gpu.run(0.02 - AHEAD_S - 0.001)
    assert not gpu.off
    gpu.run(0.002)
    assert gpu.off


@pytest.mark.parametrize("tells", [True, False])
def test_it_comes_back_soon_after_the_work_began(tells: bool) -> None:
    gpu = Gpu(give_way="switch", tells=tells)
    gpu.announce()
    gpu.run(0.002)
    gpu.work()
    gpu.run(GRACE_S + 2 * LOOK_S)
    assert not gpu.off
    assert "wrong" not in gpu.why(1)


def test_by_request_it_stays_off_until_the_task_is_idle() -> None:
    gpu = Gpu(give_way="request")
    gpu.announce()
    gpu.run(0.002)
    gpu.policy.on_event(Busy(gpu.tasks[1].key), gpu.now)
    gpu.ask()
    gpu.run(0.02)
    assert gpu.off
    gpu.policy.on_event(Idle(gpu.tasks[1].key), gpu.now)
    gpu.ask()
    assert not gpu.off


def test_where_nothing_follows_it_comes_back() -> None:
    gpu = Gpu(give_way="switch")
    gpu.announce()
    gpu.run(0.002 + WAIT_S + STEP_S)
    assert not gpu.off


def come_anew(gpu: Gpu, pid: int = 1, **changes: Any) -> None:
    """The task is detached, and attached again; or another one takes its place."""
    gpu.policy.on_event(Vanish(gpu.tasks[pid].key), gpu.now)
    del gpu.tasks[pid]
    gpu.ask()
    gpu.tasks[pid] = replace(task(pid, LATENCY, activity=Activity()), **changes)
    gpu.policy.on_event(Appear(gpu.tasks[pid]), gpu.now)
    gpu.ask()


@pytest.mark.parametrize("comes_s", [0.004, 0.02, 0.07])
def test_whoever_comes_anew_owes_what_it_owed(comes_s: float) -> None:
    gpu = Gpu(give_way="switch")
    for _ in range(round(20 / comes_s)):
        gpu.run(comes_s, gpu.announce)
        come_anew(gpu)
    assert gpu.off_s < 0.02 * 20 + BURST_S + 0.002 + WAIT_S + STEP_S
    gpu.run(2 * BURST_S / 0.02)  # it is saved
    gpu.announce()
    assert gpu.off


@pytest.mark.parametrize("other", [{"uid": 1001}, {"owned_by": (1000, "a")}])
def test_others_owe_nothing_for_an_owner_whose_tasks_are_gone(other: dict[str, Any]) -> None:
    gpu = Gpu(give_way="switch")
    gpu.run(0.3, gpu.announce)
    assert not gpu.heard()
    come_anew(gpu, **other)
    gpu.announce()
    assert gpu.off
    gpu.run(0.1)
    come_anew(gpu)
    gpu.announce()
    assert not gpu.off
    gpu.run(0.1)
    assert "others of its user" in gpu.why(1)


def test_at_slices_nobody_is_asked_and_nobody_goes_off() -> None:
    gpu = Gpu(give_way="slice")
    assert not gpu.heard()
    gpu.policy.on_event(Announce(gpu.tasks[1].key, 0.0), gpu.now)
    gpu.ask()
    assert not gpu.off


def test_without_a_background_nobody_is_asked() -> None:
    gpu = Gpu()
    decision = gpu.policy.decide([gpu.tasks[1]], gpu.now)
    assert decision.announcing == frozenset()


def test_without_a_budget_nobody_is_asked() -> None:
    gpu = Gpu(announce_budget="0")
    assert not gpu.heard()
    gpu.policy.on_event(Announce(gpu.tasks[1].key, 0.0), gpu.now)
    gpu.ask()
    assert not gpu.off


@pytest.mark.parametrize("budget", [0.01, 0.02, 0.1])
@pytest.mark.parametrize("many", [1, 5])
def test_who_announces_all_the_time_and_never_works_costs_its_budget(budget: float, many: int) -> None:
    gpu = Gpu(announce_budget=str(budget), give_way="switch", many=many)
    seconds = 60.0
    ignored = []

    def step() -> None:
        for pid in gpu.tasks:
            gpu.announce(0.0, pid)
        ignored.append(not gpu.heard())

    gpu.run(seconds, step)
    most = budget * seconds + many * (BURST_S + WAIT_S + LOOK_S)
    assert 0 < gpu.off_s <= most
    assert any(ignored)
    assert "were wrong" in gpu.why(1)
    gpu.run(BURST_S / budget * many + 1)
    assert gpu.heard()


def test_it_says_that_it_does_not_listen() -> None:
    gpu = Gpu(give_way="switch")
    for _ in range(20):
        gpu.announce(0.0)
        gpu.run(0.01)
    assert not gpu.heard()
    words = gpu.why(1).split()
    assert gpu.why(1).startswith("its announcements are ignored: ")
    assert words[4] == words[6], "all of them were wrong"


def test_who_is_right_is_listened_to_for_ever() -> None:
    gpu = Gpu(give_way="switch")
    for _ in range(500):
        gpu.announce(0.002)
        assert gpu.off
        gpu.run(0.002)
        gpu.work()
        gpu.run(0.0105)
        assert not gpu.off
    assert "0 of 500 were wrong" in gpu.why(1)


def test_work_that_came_before_anybody_looked_is_the_one_that_was_announced() -> None:
    """The library tells what there was before."""
    gpu = Gpu(give_way="switch")
    for _ in range(20):
        one = gpu.tasks[1]
        assert one.activity is not None
        gpu.tasks[1] = replace(one, activity=msgspec.structs.replace(one.activity, before=one.activity.work))
        gpu.policy.on_event(Announce(one.key, 0.002), gpu.now)
        gpu.work()
        gpu.ask()
        gpu.run(0.02)
        assert not gpu.off
    assert gpu.why(1) == "announces its work: 0 of 20 were wrong"


def test_who_says_that_it_works_and_does_not_use_the_gpu_is_not_believed() -> None:
    gpu = Gpu(give_way="switch")

    def step() -> None:
        gpu.announce(0.0)
        one = gpu.tasks[1]
        assert one.activity is not None
        gpu.tasks[1] = replace(one, activity=msgspec.structs.replace(one.activity, work=one.activity.work + 1))

    gpu.run(20, step)
    assert gpu.longest_off <= MOST_OFF_S + 0.01
    assert gpu.off_s < 2


def test_a_task_that_is_gone_keeps_nobody_off() -> None:
    gpu = Gpu(give_way="switch")
    gpu.announce(0.0)
    gone = gpu.tasks.pop(1)
    gpu.policy.on_event(Vanish(gone.key), gpu.now)
    gpu.ask()
    assert gpu.decision.shares[gpu.batch.key].enabled


def test_one_that_comes_with_the_number_of_one_that_was_not_listened_to_is_listened_to() -> None:
    gpu = Gpu(give_way="switch")
    gpu.run(2, gpu.announce)  # and never works
    assert not gpu.heard()
    gone = gpu.tasks.pop(1)
    gpu.policy.on_event(Vanish(gone.key), gpu.now)
    gpu.ask()
    gpu.tasks[1] = task(1, LATENCY, activity=Activity())
    gpu.policy.on_event(Appear(gpu.tasks[1]), gpu.now)
    gpu.ask()
    assert gpu.heard()


def test_what_is_announced_for_the_farthest_time_is_made_room_for() -> None:
    gpu = Gpu(give_way="switch")
    gpu.announce(FARTHEST_S)
    assert not gpu.off
    gpu.run(FARTHEST_S - AHEAD_S / 2)
    assert gpu.off


def test_a_request_that_was_announced_is_over_when_it_is_over() -> None:
    gpu = Gpu(give_way="request")
    key = gpu.tasks[1].key
    gpu.announce(0.002)
    for event, off in ((Busy(key), True), (Idle(key), False)):
        gpu.policy.on_event(event, gpu.now)
        gpu.ask()
        assert gpu.off is off


@pytest.mark.parametrize("in_s", [-1.0, 2.0, 1e9, float("nan"), float("inf")])
def test_times_that_make_no_sense_are_ignored(in_s: float) -> None:
    gpu = Gpu(give_way="switch")
    gpu.policy.on_event(Announce(gpu.tasks[1].key, in_s), gpu.now)
    gpu.ask()
    assert not gpu.off


@pytest.mark.parametrize("seed", range(30))
def test_whatever_is_said_nobody_is_off_without_an_end(seed: int) -> None:
    """Requests, hints and announcements together, true ones and lies, lost and late ones."""
    random = Random(seed)
    way = random.choice(["switch", "request", "slice", "auto"])
    gpu = Gpu(give_way=way, tells=random.random() < 0.8, many=random.choice([1, 3]))

    def step() -> None:
        pid = random.choice(list(gpu.tasks))
        key = gpu.tasks[pid].key
        event = random.choice(
            [
                lambda: gpu.announce(random.choice([0.0, 0.001, 0.003, 0.01, 0.5]), pid),
                lambda: gpu.policy.on_event(Announce(key, 0.0), gpu.now),
                lambda: gpu.policy.on_event(Busy(key), gpu.now),
                lambda: gpu.policy.on_event(Idle(key), gpu.now) if random.random() < 0.1 else None,
                lambda: gpu.policy.on_event(Hint(key, random.choice([0.0, 0.002])), gpu.now),
                lambda: gpu.work(pid) if random.random() < 0.3 else None,
                lambda: None,
            ]
        )
        event()
        if random.random() < 0.5:
            gpu.ask()

    gpu.run(3, step)
    assert gpu.longest_off <= MOST_OFF_S + 2 * BREAK_S
    gpu.run(1)
    assert not gpu.off or way in ("request", "auto"), "only who says to be busy still is"
    assert gpu.off_s < 3.9


@given(seed=st.integers(0, 2**32))
@settings(max_examples=10 * TIMES, deadline=None)
def test_of_random_bursts_the_wrong_ones_cost_no_more_than_their_budget(seed: int) -> None:
    """Bursts of announcements with pauses between them, of which some are true: whoever is right has what it takes to
    be, and all that is wrong together comes out of the budget.
    """
    random = Random(seed)
    budget, many = random.choice([0.01, 0.02, 0.1]), random.choice([1, 3])
    gpu = Gpu(announce_budget=str(budget), give_way="switch", many=many)
    truth = {pid: random.choice([0.0, 0.2, 0.5, 0.9]) for pid in gpu.tasks}
    works_at: dict[int, float] = {}
    bursts = dict.fromkeys(gpu.tasks, gpu.now)
    seconds, most_right_s = 10.0, AT_ONCE_S + WAIT_S + GRACE_S + LOOK_S

    def step() -> None:
        for pid in gpu.tasks:
            if works_at.get(pid, gpu.now + 1) <= gpu.now:
                del works_at[pid]
                gpu.work(pid)
            if gpu.now < bursts[pid] or pid in works_at:
                continue
            bursts[pid] = gpu.now + random.choice([0.0, 0.001, 0.01, 0.01, 0.3])
            in_s = random.choice([0.0, 0.001, AT_ONCE_S])
            gpu.announce(in_s, pid)
            if random.random() < truth[pid]:
                works_at[pid] = gpu.now + in_s

    gpu.run(seconds, step)
    said = [gpu.why(pid) for pid in gpu.tasks]
    right = 0
    for why in said:
        wrong, told = map(int, re.findall(r"(\d+) of (\d+) were wrong", why)[0]) if why else (0, 0)
        right += told - wrong
    right += many * WORTH_SAYING  # so few are not told of
    wrong_s = budget * seconds + many * (BURST_S + WAIT_S + LOOK_S)
    assert gpu.off_s <= wrong_s + right * most_right_s
    assert gpu.longest_off <= MOST_OFF_S + 2 * BREAK_S
    works_at.clear()
    gpu.run(BURST_S / budget * many + 1)
    assert not gpu.off, "nobody is off without an end"
