"""How the background gives way to programs that pause: what is chosen, by what, and what nobody can do with it."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby, pairwise
from random import Random

import pytest

from runlist.model import Activity, Appear, Busy, Event, Idle, Task, TaskClass, TaskKey, Usage, Used, Vanish
from runlist.policies.parts.give_way import GiveWay, Manner, Way
from runlist.policies.parts.requests import BREAK_S, MOST_OFF_S

# As they are to be: taken from the code they would hold whatever it says.
WINDOW_S, STAYS_S, MIN_SLICE_US = 0.25, 2.0, 100.0
CALM, IDLE_GROWS, MIN_IDLE_S, MAX_IDLE_S, MOST_LIES, FORGIVEN_S = 200, 1.5, 0.7e-3, 4.0e-3, 3, 60.0
LATENCY, NORMAL, BATCH, DEADLINE = TaskClass.LATENCY, TaskClass.NORMAL, TaskClass.BATCH, TaskClass.DEADLINE
STEP_S = 0.001


def task(pid: int, task_class: TaskClass, **values: object) -> Task:
    return Task(TaskKey(pid, "GPU-0"), task_class, f"program{pid}", 1000, 0.0, **values)


class Gpu:
    """A foreground task and a background task, whose usage goes by what a test says of a second."""

    def __init__(self, way: str = "auto", *, tells: bool = False, budget: float = 0.1, task_class: TaskClass = LATENCY):
        self.part = GiveWay(way, budget)
        self.now = 10.0
        self.foreground = task(1, task_class, activity=Activity() if tells else None)
        self.background = task(2, BATCH)
        self.manner = Manner()
        self.ways = [self.part.way]
        self.asked = 0
        self.off_since: float | None = None
        self.longest_off = 0.0
        self._waits = 0.0
        self.ahead = 1.5  # as many times as much is done at a time beside slices: it launches ahead
        self.tell(Appear(self.foreground))

    @property
    def key(self) -> TaskKey:
        return self.foreground.key

    def ask(self) -> Manner:
        self.manner = self.part.manner([self.foreground], [self.background], self.now)
        self.asked += 1
        if self.off_since is not None:
            self.longest_off = max(self.longest_off, self.now - self.off_since)
        self.off_since = None if self.manner.off_until is None else self.off_since or self.now
        if self.part.way is not self.ways[-1]:
            self.ways.append(self.part.way)
        return self.manner

    def tell(self, event: Event) -> None:
        self.part.on_event(event, self.now)
        self.ask()

    def work(
        self, seconds: float, pauses: float, held: float, waits: float = 0.0, launches: float = 0.0, often: float = 0.0
    ) -> None:
        """So many pauses a second, with so many seconds of GPU held between two of them; `waits` and `launches` are
        parts of the time, and `often` is how many waits a second there are.
        """
        ends, steps, turns, each = self.now + seconds, 0, 0, held
        while self.now < ends - 1e-9:
            self.now += STEP_S
            more = int(self.now * pauses) - int((self.now - STEP_S) * pauses)
            steps, turns = steps + 1, turns + more
            each = held * (self.ahead if self.manner.turn_us > 1 else 1.0)
            if self.part.on_event(Used({self.key: each * more} if more else {}), self.now) or (
                self.now >= self.manner.look - 1e-9
            ):
                self._use(turns, each * turns, waits * steps * STEP_S, launches * steps * STEP_S, steps, often)
                steps = turns = 0
                self.ask()
        self._use(turns, each * turns, waits * steps * STEP_S, launches * steps * STEP_S, steps, often)

    def _use(
        self, turns: int, held: float, waited: float, launching: float, steps: int = 1, often: float = 0.0
    ) -> None:
        usage, activity = self.foreground.usage, self.foreground.activity
        if activity is not None:
            self._waits += often * steps * STEP_S
            activity = Activity(
                activity.work + steps, activity.waited_s + waited, activity.launching_s + launching, 0, int(self._waits)
            )
        self.foreground = replace(
            self.foreground, usage=Usage(usage.held_s + held, usage.turns + turns), activity=activity
        )
        usage = self.background.usage
        self.background = replace(self.background, usage=Usage(usage.held_s + steps * STEP_S, usage.turns + turns))


def listen(gpu: Gpu, **work: float) -> None:
    """Work until the first request is served by itself: a window, and another one in which requests are counted."""
    gpu.work(WINDOW_S + 0.05, **work)
    assert gpu.part.way is Way.SWITCH
    assert gpu.manner.watch
    gpu.tell(Busy(gpu.key))
    gpu.tell(Idle(gpu.key))
    gpu.work(WINDOW_S, **work)


def test_rare_launches_need_no_other_way() -> None:
    gpu = Gpu()
    gpu.work(3, pauses=200, held=80e-6)
    assert gpu.ways == [Way.SWITCH]
    assert gpu.manner.turn_us == 1
    assert gpu.part.why() == "gives way at each launch, switches cost 6 %"
    assert gpu.part.why_of(gpu.key) == "the background gives way at each launch, switches cost 6 %"
    assert gpu.part.why_of(gpu.background.key) == ""


def test_a_program_that_waits_for_its_host_makes_the_background_have_slices() -> None:
    gpu = Gpu()
    gpu.work(1, pauses=1500, held=100e-6)
    assert gpu.part.way is Way.SLICE
    assert gpu.manner.turn_us >= 500
    assert gpu.manner.watch == {}


def test_whoever_has_a_target_is_not_made_to_wait_by_a_guess() -> None:
    gpu = Gpu()
    gpu.foreground = replace(gpu.foreground, target_p99_us=2_000.0)
    gpu.work(5, pauses=1500, held=100e-6)
    assert gpu.ways == [Way.SWITCH]
    telling = Gpu(tells=True)
    telling.foreground = replace(telling.foreground, target_p99_us=2_000.0)
    telling.work(1, pauses=1500, held=100e-6, waits=0.1, launches=0.6)
    assert telling.part.way is Way.SLICE


def test_slices_are_so_long_that_switches_cost_three_quarters_of_the_budget() -> None:
    gpu = Gpu("slice")
    for _ in range(12):  # each pause lets the background have one slice, half of the time
        gpu.work(WINDOW_S, pauses=0.35 / (gpu.manner.turn_us * 1e-6 + 0.4e-3), held=100e-6)
    assert 7 <= int(gpu.part.why().split()[-2]) <= 8
    gpu.work(3, pauses=20, held=100e-6)
    assert gpu.manner.turn_us == MIN_SLICE_US


def test_a_program_that_the_gpu_keeps_waiting_has_it_for_each_request() -> None:
    gpu = Gpu(tells=True)
    listen(gpu, pauses=600, held=1e-3)
    assert gpu.part.way is Way.REQUEST
    assert gpu.manner.off_until is None
    assert gpu.manner.watch == {gpu.key: pytest.approx(1e-3)}
    gpu.tell(Busy(gpu.key))
    assert gpu.manner.off_until == pytest.approx(gpu.now + MOST_OFF_S)
    gpu.tell(Idle(gpu.key))
    assert gpu.manner.off_until is None


def test_short_work_with_a_wait_for_each_is_bound_by_the_gpu_as_it_says() -> None:
    gpu = Gpu(tells=True)
    listen(gpu, pauses=1500, held=100e-6, waits=0.5, launches=0.1)
    assert gpu.part.way is Way.REQUEST


def test_who_does_not_tell_of_its_requests_is_served_as_before() -> None:
    gpu = Gpu()
    gpu.work(5, pauses=600, held=1e-3)
    assert gpu.ways == [Way.SWITCH]


def test_a_normal_task_never_has_the_background_off() -> None:
    gpu = Gpu(tells=True, task_class=NORMAL)
    gpu.work(2, pauses=600, held=1e-3)
    assert gpu.ways == [Way.SWITCH]


def test_beside_a_deadline_task_nothing_changes() -> None:
    gpu = Gpu("slice", task_class=DEADLINE)
    gpu.work(2, pauses=1500, held=1e-4)
    assert (gpu.manner.turn_us, gpu.manner.off_until, gpu.part.why()) == (1, None, "")


def test_a_request_that_was_only_taken_for_its_host_s_goes_to_slices() -> None:
    """Beside slices of 1 µs a host-bound program waits for switches: what it is shows once the background is off."""
    gpu = Gpu(tells=True)
    listen(gpu, pauses=1500, held=100e-6, waits=0.6, launches=0.3)
    assert gpu.part.way is Way.REQUEST
    gpu.work(0.8, pauses=300, held=200e-6, waits=0.1, launches=0.6)
    assert gpu.part.way is Way.SLICE
    assert gpu.part.why_of(gpu.key) == (
        "waits for the GPU in 14 % of its work: the background has slices of 0.84 ms, switches cost 8 %"
    )


def test_requests_that_come_too_often_are_not_worth_the_controls() -> None:
    gpu, listened = Gpu(tells=True), []
    for _ in range(4_000):
        gpu.work(0.003, pauses=600, held=1e-3)
        listened.append(bool(gpu.manner.watch))
        if gpu.manner.watch:
            gpu.tell(Busy(gpu.key))
            gpu.tell(Idle(gpu.key))
    assert gpu.ways == [Way.SWITCH]
    begins = sum(now and not before for before, now in pairwise([False, *listened]))
    assert begins == 5  # at first, and 0.5, 1, 2 and 4 s after the last time


def test_a_program_that_leaves_the_gpu_empty_while_it_is_busy_does_not_have_it_alone() -> None:
    """Requests of 0.1 ms every 3 ms: until each counts as ended, and the next begins, nobody would use the GPU."""
    gpu = Gpu(tells=True)
    for _ in range(2_000):
        gpu.work(0.003, pauses=333, held=0.1e-3, waits=0.04, launches=0.002)
        if gpu.manner.watch:
            gpu.tell(Busy(gpu.key))
            gpu.now += 0.0012
            gpu.tell(Idle(gpu.key))
    assert gpu.ways == [Way.SWITCH]


def test_a_wait_that_is_longer_than_a_window_is_told_at_its_end() -> None:
    gpu = Gpu(tells=True)
    listen(gpu, pauses=600, held=1e-3, waits=0.9)
    gpu.tell(Busy(gpu.key))
    for _ in range(3):
        gpu.work(0.8, pauses=10, held=50e-3)
        gpu.work(0.02, pauses=10, held=50e-3, waits=0.9)
    assert gpu.part.way is Way.REQUEST


def test_requests_that_become_too_short_are_given_up() -> None:
    gpu = Gpu(tells=True)
    listen(gpu, pauses=600, held=1e-3)
    for _ in range(300):
        gpu.work(0.002, pauses=600, held=1e-3, waits=0.9)
        gpu.tell(Busy(gpu.key))
        gpu.tell(Idle(gpu.key))
    assert gpu.part.way is Way.SWITCH


def test_a_pause_within_a_request_is_learnt() -> None:
    gpu = Gpu("request", tells=True)
    before = gpu.manner.watch[gpu.key]
    for _ in range(5):
        gpu.tell(Busy(gpu.key))
        gpu.work(0.020, pauses=100, held=1e-3)
        gpu.tell(Idle(gpu.key))
        gpu.now += 0.0005
    assert gpu.manner.watch[gpu.key] == pytest.approx(min(MAX_IDLE_S, before * IDLE_GROWS**4))
    for _ in range(100 * CALM):
        gpu.tell(Busy(gpu.key))
        gpu.tell(Idle(gpu.key))
        gpu.now += 0.1
    assert gpu.manner.watch[gpu.key] == pytest.approx(MIN_IDLE_S)


def test_the_background_has_a_break_in_each_long_request() -> None:
    gpu = Gpu("request", tells=True)
    gpu.tell(Busy(gpu.key))
    off = 0
    for _ in range(1050):
        gpu.work(STEP_S, pauses=1000, held=STEP_S)
        off += gpu.manner.off_until is not None
        assert gpu.manner.off_until is None or gpu.manner.off_until <= gpu.now + MOST_OFF_S
    assert off / 1050 == pytest.approx(MOST_OFF_S / (MOST_OFF_S + BREAK_S), abs=0.02)


def test_who_says_that_it_is_busy_and_is_not_is_not_believed_for_a_minute() -> None:
    gpu = Gpu("request", tells=True)
    gpu.tell(Busy(gpu.key))
    gpu.work(1, pauses=0, held=0)
    assert gpu.manner.off_until is None
    assert "did not want the GPU" in gpu.part.why_of(gpu.key)
    gpu.work(10, pauses=0, held=0)
    assert gpu.manner.off_until is None
    gpu.now += FORGIVEN_S
    gpu.ask()
    gpu.tell(Busy(gpu.key))
    assert gpu.manner.off_until is not None


def test_a_program_that_ended_keeps_nobody_off() -> None:
    gpu = Gpu("request", tells=True)
    gpu.tell(Busy(gpu.key))
    gpu.tell(Vanish(gpu.key))
    assert gpu.manner.off_until is None


def test_slices_are_looked_at_anew_ever_more_seldom() -> None:
    gpu = Gpu()
    gpu.work(150, pauses=1500, held=100e-6)
    assert gpu.ways.count(Way.SWITCH) == 5  # at first, and after 10, 20, 40, 60 s


def test_a_program_that_becomes_bound_by_the_gpu_is_seen_at_slices() -> None:
    gpu = Gpu()
    gpu.work(2, pauses=1500, held=100e-6)
    assert gpu.part.way is Way.SLICE
    gpu.work(0.9, pauses=400, held=1.5e-3)
    assert gpu.part.way is Way.SWITCH


def test_a_program_of_both_kinds_does_not_make_the_way_change_all_the_time() -> None:
    """At tiny slices it seems to wait for its host, and at longer ones for the GPU."""
    gpu, ways = Gpu(tells=True), [Way.SWITCH]
    for _ in range(800):
        waits = 0.4 if gpu.part.way is Way.SLICE else 0.1
        gpu.work(WINDOW_S, pauses=1500, held=100e-6, waits=waits, launches=0.3)
        ways.append(gpu.part.way)
    stays = [WINDOW_S * len([*each]) for way, each in groupby(ways) if way is Way.SLICE]
    assert stays[1:8] == pytest.approx([STAYS_S, 4, 8, 16, 32, 60, 60], abs=2 * WINDOW_S)


def test_a_new_program_finds_tiny_slices() -> None:
    gpu = Gpu()
    gpu.work(2, pauses=1500, held=100e-6)
    assert gpu.part.way is Way.SLICE
    gpu.foreground = task(9, LATENCY)
    gpu.tell(Appear(gpu.foreground))
    assert (gpu.part.way, gpu.manner.turn_us) == (Way.SWITCH, 1)
    gpu.foreground = task(1, LATENCY)  # one that is known comes back, as from a cap
    gpu.work(1, pauses=1500, held=100e-6)
    assert gpu.part.way is Way.SLICE
    gpu.foreground = task(9, LATENCY)
    assert gpu.ask().turn_us > 1


def test_nothing_is_looked_at_while_nothing_happens() -> None:
    gpu = Gpu()
    gpu.work(1, pauses=1500, held=100e-6)
    gpu.work(1, pauses=0, held=0)
    asked = gpu.asked
    gpu.work(10, pauses=0, held=0)
    assert gpu.asked <= asked + 10


@pytest.mark.parametrize("seed", range(30))
def test_whatever_is_told_nobody_is_off_for_long_and_the_way_stays(seed: int) -> None:
    random = Random(seed)
    gpu = Gpu(tells=True)
    for _ in range(1500):
        match random.randrange(6):
            case 0:
                gpu.tell(Busy(gpu.key))
            case 1:
                gpu.tell(Idle(gpu.key))
            case _:
                gpu.work(
                    random.choice((0.001, 0.004, 0.03)),
                    random.choice((0, 300, 2000)),
                    random.choice((1e-5, 3e-4, 2e-3)),
                    random.random() / 2,
                    random.random() / 2,
                )
    assert gpu.longest_off < MOST_OFF_S + 2 * STEP_S
    assert len(gpu.ways) <= (gpu.now - 10) / WINDOW_S


# People who mean harm, and moments that are easily missed.


def test_who_idles_in_its_breaks_alone_is_not_believed_either() -> None:
    """It says that it is busy, never uses the GPU, and is idle for as long as each break is."""
    gpu = Gpu("request", tells=True)
    off = 0
    for _ in range(20):
        gpu.tell(Busy(gpu.key))
        for _ in range(101):
            gpu.work(STEP_S, pauses=0, held=0)
            off += gpu.manner.off_until is not None
        gpu.tell(Idle(gpu.key))
        gpu.work(0.006, pauses=0, held=0)
        gpu.ask()  # somebody else's request may have it asked at any time
    assert off * STEP_S < 2 * MOST_LIES * MOST_OFF_S
    assert "did not want the GPU" in gpu.part.why_of(gpu.key)


def test_whose_requests_end_in_the_break_is_believed() -> None:
    gpu = Gpu("request", tells=True)
    for _ in range(20):
        gpu.work(0.1, pauses=0, held=0)
        gpu.tell(Busy(gpu.key))
        gpu.work(MOST_OFF_S + 0.001, pauses=1000, held=STEP_S / 2)
        gpu.tell(Idle(gpu.key))
        gpu.work(0.02, pauses=0, held=0)
        gpu.ask()
    assert "did not want" not in gpu.part.why_of(gpu.key)


def test_who_is_not_watched_any_more_is_not_busy_when_it_is_again() -> None:
    """A task that was suspended in a request: nobody says that it is idle."""
    part_of, batch = GiveWay("request", 0.1), task(2, BATCH)
    both = [task(pid, LATENCY, activity=Activity()) for pid in (1, 3)]
    part_of.manner(both, [batch], 10.0)
    part_of.on_event(Busy(both[0].key), 10.0)
    assert part_of.manner(both, [batch], 10.0).off_until is not None
    assert part_of.manner(both[1:], [batch], 10.01).off_until is None
    assert part_of.manner(both, [batch], 10.02).off_until is None


def test_who_was_listened_to_in_a_request_is_not_busy_until_the_next_one() -> None:
    """Each time that it is listened to, a request is under way at the end."""
    gpu = Gpu(tells=True)
    gpu.work(WINDOW_S + 0.05, pauses=600, held=1e-3)
    assert gpu.manner.watch
    gpu.tell(Busy(gpu.key))
    gpu.work(WINDOW_S, pauses=0, held=0)
    assert not gpu.manner.watch
    gpu.work(1, pauses=0, held=0)
    asked = gpu.asked
    gpu.work(10, pauses=0, held=0)
    assert gpu.asked <= asked + 2


def test_a_liar_is_not_watched() -> None:
    """Else each moment is looked at for nothing."""
    gpu = Gpu("request", tells=True)
    assert gpu.ask().watch
    gpu.tell(Busy(gpu.key))
    gpu.work(1, pauses=0, held=0)
    assert gpu.manner.watch == {}
    gpu.now += FORGIVEN_S
    assert gpu.key in gpu.ask().watch
    assert gpu.manner.off_until is None


def test_the_way_does_not_flap_where_programs_look_different_beside_slices() -> None:
    """One that waits for its host and one that waits for the GPU: which of them counts depends on the way itself."""
    gpu = Gpu(tells=True)
    for _ in range(round(60 / WINDOW_S)):
        waits, launches = (0.6, 0.1) if gpu.part.way is Way.SLICE else (0.1, 0.6)
        gpu.work(WINDOW_S, pauses=1000, held=100e-6, waits=waits, launches=launches)
    assert Way.SLICE in gpu.ways
    assert len(gpu.ways) <= 14  # twice as rare each time, and looks


def test_who_becomes_bound_by_the_gpu_later_is_seen_as_soon_as_the_first_time() -> None:
    gpu = Gpu()
    for _ in range(3):
        gpu.work(5, pauses=1500, held=100e-6)
        assert gpu.part.way is Way.SLICE
        gpu.work(5, pauses=400, held=1.5e-3)
        assert gpu.part.way is Way.SWITCH


@pytest.mark.parametrize("says", ["launches", "waits"])
@pytest.mark.parametrize("bound", ["by the GPU", "by its host"])
def test_who_tells_of_more_time_than_there_was_decides_for_nobody_else(says: str, bound: str) -> None:
    """A liar of another user, that does not use the GPU, beside a program that does."""
    gpu, liar = Gpu(tells=True), task(3, LATENCY, activity=Activity())
    held, times = {"by the GPU": (1e-3, (0.6e-3, 0.1e-3)), "by its host": (0.1e-3, (0.05e-3, 0.6e-3))}[bound]
    ways = set()
    for number in range(round(5 / STEP_S)):
        told = 1e3 * number
        liar = replace(liar, activity=Activity(number, *((0.0, told) if says == "launches" else (told, 0.0))))
        gpu._use(1, held * (gpu.ahead if gpu.manner.turn_us > 1 else 1), *times)
        gpu.now += STEP_S
        gpu.part.on_event(Used({gpu.key: held}), gpu.now)
        gpu.manner = gpu.part.manner([gpu.foreground, liar], [gpu.background], gpu.now)
        ways.add(gpu.part.way)
    assert (Way.SLICE in ways) == (bound == "by its host")
    assert (gpu.part.way is Way.SLICE) == (bound == "by its host")


def test_while_the_foreground_works_it_is_looked_at_once_in_a_window() -> None:
    gpu = Gpu()
    gpu.work(1, pauses=300, held=100e-6)
    asked = gpu.asked
    gpu.work(2, pauses=300, held=100e-6)
    assert 7 <= gpu.asked - asked <= 9


def test_another_program_under_the_same_number_finds_tiny_slices() -> None:
    gpu = Gpu()
    gpu.work(2, pauses=1500, held=100e-6)
    assert gpu.part.way is Way.SLICE
    gpu.part.on_event(Vanish(gpu.key), gpu.now)
    gpu.tell(Appear(gpu.foreground))
    assert (gpu.part.way, gpu.manner.turn_us) == (Way.SWITCH, 1)


def test_a_request_that_begins_in_the_break_of_another_is_none_of_a_liar() -> None:
    part_of, batch = GiveWay("request", 0.1), task(2, BATCH)
    both = [task(pid, LATENCY, activity=Activity()) for pid in (1, 3)]
    part_of.manner(both, [batch], 10.0)
    part_of.on_event(Busy(both[0].key), 10.0)
    for now in (10.0, 10.0 + MOST_OFF_S):
        manner = part_of.manner(both, [batch], now)
    assert manner.off_until is None
    part_of.on_event(Busy(both[1].key), 10.0 + MOST_OFF_S + BREAK_S / 2)
    assert part_of.manner(both, [batch], 10.0 + MOST_OFF_S + BREAK_S).off_until is not None
