"""How the background gives way at both sides of each bound, and what is forgotten, believed and told."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from runlist.model import Activity, Appear, Busy, Idle, TaskClass, Usage, Used
from runlist.policies import PolicySpec, load_policy
from runlist.policies.parts import give_way as part
from runlist.policies.parts import liars
from runlist.policies.parts.give_way import WINDOW_S, GiveWay, Way
from runlist.policies.parts.requests import BREAK_S, MOST_OFF_S
from tests.unit.test_policies_give_way import STEP_S, Gpu, task

# As they are to be: taken from the code they would hold whatever it says.
FIRST_SLICE_US = 700.0
LOOK_S = 10.0

LATENCY, BATCH = TaskClass.LATENCY, TaskClass.BATCH


def at_requests() -> Gpu:
    """The background is off for each request, of which one is under way."""
    gpu = Gpu(tells=True)
    gpu.work(WINDOW_S + 0.05, pauses=600, held=1e-3)
    gpu.tell(Busy(gpu.key))
    gpu.work(WINDOW_S, pauses=600, held=1e-3, waits=0.9)
    assert gpu.part.way is Way.REQUEST
    return gpu


def test_a_request_that_is_under_way_when_requests_are_chosen_counts() -> None:
    assert at_requests().manner.off_until is not None


@pytest.mark.parametrize(("waits", "way"), [(0.3, Way.SWITCH), (0.65, Way.REQUEST)])
def test_requests_have_the_gpu_where_they_wait_for_it_for_most_of_their_time(waits: float, way: Way) -> None:
    gpu = Gpu(tells=True)
    gpu.work(WINDOW_S + 0.05, pauses=600, held=1e-3, waits=waits)
    gpu.tell(Busy(gpu.key))
    gpu.work(WINDOW_S, pauses=600, held=1e-3, waits=waits)
    assert gpu.part.way is way


@pytest.mark.parametrize(("waits", "way"), [(0.25, Way.SWITCH), (0.75, Way.REQUEST)])
def test_requests_keep_the_gpu_as_long_as_they_wait_for_it_for_a_good_part(waits: float, way: Way) -> None:
    """Ten of 20 ms in each window."""
    gpu = at_requests()
    for _ in range(40):
        gpu.work(0.020, pauses=40, held=10e-3, waits=waits)
        gpu.tell(Idle(gpu.key))
        gpu.work(0.005, pauses=40, held=10e-3)
        gpu.tell(Busy(gpu.key))
    assert gpu.part.way is way


@pytest.mark.parametrize(("each_s", "way"), [(0.006, Way.REQUEST), (0.002, Way.SWITCH)])
def test_requests_keep_the_gpu_as_long_as_they_are_worth_their_controls(each_s: float, way: Way) -> None:
    gpu = at_requests()
    while gpu.now < 12:
        gpu.work(each_s, pauses=40, held=10e-3, waits=0.9)
        gpu.tell(Idle(gpu.key))
        gpu.tell(Busy(gpu.key))
    assert gpu.part.way is way


@pytest.mark.parametrize(("each_s", "way"), [(0.010, Way.REQUEST), (0.005, Way.SWITCH)])
def test_requests_get_the_gpu_where_their_controls_cost_less_than_the_switches(each_s: float, way: Way) -> None:
    gpu = Gpu(tells=True)
    gpu.work(WINDOW_S + 0.05, pauses=600, held=1e-3)
    while gpu.manner.watch and gpu.part.way is Way.SWITCH:
        gpu.tell(Busy(gpu.key))
        gpu.work(each_s, pauses=600, held=1e-3, waits=0.9)
        gpu.tell(Idle(gpu.key))
    assert gpu.part.way is way


@pytest.mark.parametrize(("pauses", "way"), [(500, Way.REQUEST), (950, Way.SWITCH)])
def test_requests_that_switch_as_much_as_before_are_given_up(pauses: float, way: Way) -> None:
    gpu = at_requests()
    gpu.work(1, pauses=pauses, held=0.5e-3, waits=0.9)
    assert gpu.part.way is way


@pytest.mark.parametrize(("waits", "way"), [(0.15, Way.SLICE), (0.4, Way.REQUEST)])
def test_a_program_that_waits_for_its_host_at_requests_gets_slices(waits: float, way: Way) -> None:
    gpu = at_requests()
    gpu.tell(Idle(gpu.key))
    gpu.work(1, pauses=200, held=1e-3, waits=waits, launches=1 - waits)
    assert gpu.part.way is way


@pytest.mark.parametrize("held", [50e-6, 1e-3])
def test_below_half_of_its_time_a_program_is_not_bound_by_the_gpu_whatever_it_does_at_a_time(held: float) -> None:
    gpu = Gpu(tells=True)
    gpu.work(1, pauses=600, held=held, waits=0.4, launches=0.6)
    assert gpu.part.way is Way.SLICE


@pytest.mark.parametrize(("pauses", "asks"), [(30, False), (110, True)])
def test_requests_are_listened_to_where_switches_cost_something(pauses: float, asks: bool) -> None:
    gpu, listened = Gpu(tells=True), False
    for _ in range(100):
        gpu.work(0.01, pauses=pauses, held=1e-3)
        listened |= bool(gpu.manner.watch)
    assert listened is asks


def test_whoever_begins_no_request_has_the_gpu_for_none() -> None:
    gpu = Gpu(tells=True)
    gpu.work(3, pauses=600, held=1e-3)
    assert gpu.ways == [Way.SWITCH]


def test_requests_that_were_given_up_are_not_tried_again_for_a_while() -> None:
    gpu = at_requests()
    gpu.work(1, pauses=950, held=0.5e-3, waits=0.9)
    assert gpu.part.way is Way.SWITCH
    gave_up, listened = gpu.now, []
    while gpu.now < gave_up + LOOK_S + 1:
        gpu.work(0.05, pauses=600, held=1e-3, waits=0.9)
        listened += [gpu.now] if gpu.manner.watch else []
    assert listened
    assert LOOK_S - 1 < listened[0] - gave_up < LOOK_S + 1


@pytest.mark.parametrize(("pauses", "way"), [(50, Way.SWITCH), (180, Way.SLICE)])
def test_slices_that_are_worth_nothing_are_given_up(pauses: float, way: Way) -> None:
    gpu = Gpu()
    gpu.work(1, pauses=1500, held=60e-6)
    assert gpu.part.way is Way.SLICE
    gpu.work(5, pauses=pauses, held=60e-6)
    assert gpu.part.way is way


def test_one_with_a_target_among_others_is_not_made_to_wait_by_a_guess_either() -> None:
    gpu, beside = Gpu(), task(3, LATENCY, target_p99_us=2_000.0)
    ways = set()
    for _ in range(2_000):
        gpu._use(1, 100e-6, 0.0, 0.0)
        gpu.now += STEP_S
        gpu.part.on_event(Used({gpu.key: 100e-6}), gpu.now)
        gpu.part.manner([gpu.foreground, beside], [gpu.background], gpu.now)
        ways.add(gpu.part.way)
    assert ways == {Way.SWITCH}


def test_what_was_in_vain_for_one_program_says_nothing_of_the_next() -> None:
    """The next one comes a moment after slices were chosen, and it is soon bound by the GPU."""
    gpu = Gpu()
    while gpu.part.way is not Way.SLICE:
        gpu.work(0.01, pauses=1500, held=100e-6)
    gpu.foreground = task(9, LATENCY)
    gpu.tell(Appear(gpu.foreground))
    assert gpu.part.way is Way.SWITCH
    while gpu.part.way is not Way.SLICE:
        gpu.work(0.01, pauses=1500, held=100e-6)
    gpu.work(0.6, pauses=400, held=1.5e-3)
    assert gpu.part.way is Way.SWITCH


def test_what_was_in_vain_for_a_while_is_forgiven() -> None:
    gpu = Gpu(tells=True)
    for _ in range(round(20 / WINDOW_S)):
        waits, launches = (0.6, 0.1) if gpu.part.way is Way.SLICE else (0.1, 0.6)
        gpu.work(WINDOW_S, pauses=1000, held=100e-6, waits=waits, launches=launches)
    gpu.work(20, pauses=400, held=1.5e-3, waits=0.9)
    assert gpu.part.way is Way.SWITCH
    gpu.work(1, pauses=1000, held=100e-6, waits=0.1, launches=0.6)
    assert gpu.part.way is Way.SLICE
    gpu.work(0.6, pauses=400, held=1.5e-3, waits=0.9)
    assert gpu.part.way is Way.SWITCH


def test_the_reason_is_told_where_it_matters() -> None:
    gpu = Gpu()
    gpu.work(1, pauses=20, held=1e-3)
    assert gpu.part.why() == ""
    sliced = Gpu("slice")
    sliced.work(1, pauses=20, held=1e-3)
    assert sliced.part.why().startswith("has slices of")


def test_a_request_that_was_under_way_when_the_background_left_is_not_known_to_go_on() -> None:
    """Nobody is watched without a background."""
    part_of, batch, one = GiveWay("request", 0.1), task(2, BATCH), task(1, LATENCY, activity=Activity())
    part_of.manner([one], [batch], 10.0)
    part_of.on_event(Busy(one.key), 10.0)
    assert part_of.manner([one], [batch], 10.0).off_until is not None
    assert part_of.manner([one], [], 10.01).off_until is None
    assert part_of.manner([one], [batch], 10.02).off_until is None


def broken(gpu: Gpu, held: float) -> None:
    """A request lasts until after its break, in which it holds the GPU for so long."""
    gpu.tell(Busy(gpu.key))
    while gpu.manner.off_until is not None:
        gpu.work(STEP_S, pauses=0, held=0)
    assert gpu.manner.look == pytest.approx(gpu.now + BREAK_S)
    gpu._use(0, held, 0.0, 0.0)
    gpu.now = gpu.manner.look
    gpu.ask()
    gpu.ask()  # whoever was found out counts from the next time on


@pytest.mark.parametrize(("part_of_break", "believed"), [(0.1, False), (0.3, True)])
def test_who_wanted_the_gpu_for_a_part_of_its_breaks_is_believed(part_of_break: float, believed: bool) -> None:
    gpu = Gpu("request", tells=True)
    for _ in range(liars.MOST_LIES):
        broken(gpu, part_of_break * BREAK_S)
    assert bool(gpu.manner.watch) is believed


def test_it_takes_so_many_lies_in_a_row() -> None:
    gpu = Gpu("request", tells=True)
    for _ in range(3):
        for _ in range(liars.MOST_LIES - 1):
            broken(gpu, 0.0)
        broken(gpu, BREAK_S)
        assert gpu.manner.watch
    for _ in range(2):  # and as many again, once it is forgiven
        for _ in range(liars.MOST_LIES):
            assert gpu.manner.watch
            broken(gpu, 0.0)
        assert not gpu.manner.watch
        gpu.now += liars.FORGIVEN_S
        gpu.ask()


@pytest.mark.parametrize(("pauses", "set_anew"), [(292, False), (337, True)])
def test_a_slice_is_set_anew_where_that_makes_a_difference(pauses: float, set_anew: bool) -> None:
    """By 9 and by 26 %."""
    gpu = Gpu("slice")
    gpu.work(WINDOW_S + 0.05, pauses=pauses, held=100e-6)
    assert (gpu.manner.turn_us != round(FIRST_SLICE_US)) is set_anew


def test_slices_stay_where_they_are_near_enough() -> None:
    gpu, seen = Gpu(), set()
    gpu.work(0.4, pauses=450, held=100e-6)
    for number in range(16):
        gpu.work(WINDOW_S, pauses=262 + 12 * (number % 2), held=100e-6)
        seen.add(gpu.manner.turn_us)
    assert len(seen) == 1
    assert max(seen) < 2_000


def test_before_anything_was_seen_there_is_nothing_to_tell() -> None:
    gpu = Gpu()
    assert (gpu.part.why(), gpu.part.why_of(gpu.key)) == ("", "")
    assert Gpu("slice").part.why().endswith("switches cost 0 %")


def test_tasks_that_are_switched_among_each_other_do_not_pause() -> None:
    gpu, other = Gpu(), task(3, LATENCY)
    for number in range(2_000):
        gpu._use(2, 0.5e-3, 0.0, 0.0)
        other = replace(other, usage=Usage(other.usage.held_s + 0.5e-3, other.usage.turns + 2))
        gpu.background = replace(gpu.background, usage=Usage(0.0, number // 100))
        gpu.now += STEP_S
        gpu.part.on_event(Used({gpu.key: 0.5e-3}), gpu.now)
        gpu.part.manner([gpu.foreground, other], [gpu.background], gpu.now)
        assert gpu.part.way is Way.SWITCH
    assert "switches cost 0 %" in gpu.part.why()


def test_slices_that_would_fade_stay_for_a_while() -> None:
    """The program may only have paused."""
    gpu = Gpu()
    while gpu.part.way is not Way.SLICE:
        gpu.work(0.01, pauses=1500, held=60e-6)
    gpu.work(1.7, pauses=50, held=60e-6)
    assert (gpu.part.way, gpu.manner.turn_us) == (Way.SLICE, part.MIN_SLICE_US)
    gpu.work(0.6, pauses=50, held=60e-6)
    assert gpu.part.way is Way.SWITCH


def test_who_becomes_bound_by_the_gpu_just_after_slices_were_chosen_is_seen() -> None:
    gpu = Gpu()
    while gpu.part.way is not Way.SLICE:
        gpu.work(0.01, pauses=1500, held=100e-6)
    gpu.work(0.6, pauses=400, held=1.5e-3)
    assert gpu.part.way is Way.SWITCH


def test_after_a_program_was_bound_by_the_gpu_slices_are_looked_at_as_soon_as_at_first() -> None:
    gpu = Gpu()
    gpu.work(35, pauses=1500, held=100e-6)  # looked at after 10 and after 30 s
    gpu.work(2, pauses=400, held=1.5e-3)
    assert gpu.part.way is Way.SWITCH
    gpu.work(5, pauses=1500, held=100e-6)
    assert gpu.part.way is Way.SLICE
    before = len(gpu.ways)
    gpu.work(8, pauses=1500, held=100e-6)
    assert gpu.ways[before:] == [Way.SWITCH, Way.SLICE]


def test_who_came_on_in_its_breaks_is_believed_however_little_it_did() -> None:
    gpu = Gpu("request", tells=True)
    for _ in range(2 * liars.MOST_LIES):
        gpu.tell(Busy(gpu.key))
        while gpu.manner.off_until is not None:
            gpu.work(STEP_S, pauses=0, held=0)
        gpu._use(1, 1e-6, 0.0, 0.0)
        gpu.now = gpu.manner.look
        gpu.ask()
        assert gpu.ask().watch


def test_nobody_gives_way_where_there_is_nobody_else() -> None:
    alone = GiveWay("auto", 0.1)
    assert alone.told() is None
    service = task(1, LATENCY)
    alone.manner([service], [], 1.0)
    assert alone.told() is None
    alone.manner([service], [task(2, BATCH)], 2.0)
    assert alone.told() is not None
    alone.manner([service], [], 3.0)
    assert alone.told() is None


def test_the_background_goes_off_at_once_for_requests_alone_and_in_no_break() -> None:
    gpu = Gpu("request", tells=True)
    assert gpu.ask().at_once
    gpu.tell(Busy(gpu.key))
    assert not gpu.manner.at_once  # it is off
    gpu.work(MOST_OFF_S + BREAK_S / 2, pauses=1000, held=STEP_S)
    assert gpu.manner.off_until is None
    gpu.tell(Idle(gpu.key))
    assert not gpu.manner.at_once
    gpu.now += BREAK_S
    assert gpu.ask().at_once
    assert not Gpu("slice", tells=True).ask().at_once
    switch = Gpu("switch", tells=True).ask()
    assert switch.at_once, "for what is announced"
    assert not switch.watch


def test_nobody_goes_off_for_requests_that_are_only_listened_to_but_for_what_is_announced() -> None:
    gpu = Gpu(tells=True)
    gpu.work(WINDOW_S + 0.05, pauses=600, held=1e-3)
    assert gpu.part.way is Way.SWITCH
    assert gpu.manner.watch.keys() == gpu.manner.unhurried == {gpu.key}
    assert gpu.manner.at_once
    assert not at_requests().manner.unhurried


def test_whom_one_listens_to_finds_room_for_what_it_announces() -> None:
    policy = load_policy(PolicySpec("priority"))
    service, batch = task(1, LATENCY, activity=Activity()), task(2, BATCH)
    for one in (service, batch):
        policy.on_event(Appear(one), 10.0)
    listened = False
    for step in range(int(2 * WINDOW_S / STEP_S)):
        now = 10.0 + step * STEP_S
        policy.on_event(Used({service.key: 1e-3}), now)
        service = replace(service, usage=Usage(step * 1e-3, step), activity=Activity(step))
        batch = replace(batch, usage=Usage(step * 1e-5, step))
        decision = policy.decide([service, batch], now)
        listened |= bool(decision.unhurried)
        assert decision.announcing == {service.key}
        assert decision.off_on_work == {batch.key}
    assert listened


def test_what_goes_off_at_once_is_the_background_that_is_on() -> None:
    policy = load_policy(PolicySpec("priority", {"give_way": "request"}))
    tasks = [task(1, LATENCY, activity=Activity()), task(2, BATCH), task(3, BATCH), task(4, BATCH, suspended=True)]
    for one in tasks:
        policy.on_event(Appear(one), 10.0)
    decision = policy.decide(tasks, 10.0)
    on = {one.key for one in tasks[1:3] if decision.shares[one.key].enabled}
    assert decision.off_on_work == on != set()
    policy.on_event(Busy(tasks[0].key), 10.1)
    assert policy.decide(tasks, 10.1).off_on_work == frozenset()


def test_requests_that_were_not_seen_in_a_program_s_start_are_soon_after() -> None:
    gpu = Gpu(tells=True)
    gpu.work(1, pauses=600, held=1e-3)  # it works, and begins no request
    assert gpu.part.way is Way.SWITCH
    begun = gpu.now
    while gpu.part.way is Way.SWITCH and gpu.now < begun + 10:
        gpu.tell(Busy(gpu.key))
        gpu.work(0.035, pauses=600, held=1e-3, waits=0.9)
        gpu.tell(Idle(gpu.key))
        gpu.work(0.065, pauses=0, held=0)
    assert gpu.part.way is Way.REQUEST
    assert gpu.now - begun < 1.5


def short_requests(gpu: Gpu, seconds: float, often: float = 1_000) -> None:
    """1,000 a second of 0.1 ms of GPU, each waited for. Beside slices some 400 are done, and the program waits for the
    GPU all the time.
    """
    for _ in range(round(seconds / WINDOW_S)):
        if gpu.part.way is Way.SLICE:
            gpu.work(WINDOW_S, pauses=400, held=130e-6, waits=0.9, launches=0.1, often=0.4 * often)
        else:
            gpu.work(WINDOW_S, pauses=1000, held=110e-6, waits=0.2, launches=0.25, often=often)


def test_who_would_fall_behind_beside_slices_never_has_any() -> None:
    """Not to see whether it does either: requests that come just then are late by all of them before."""
    gpu = Gpu(tells=True)
    short_requests(gpu, 180)
    assert gpu.ways == [Way.SWITCH]


def test_who_would_fall_behind_has_slices_once_they_do_not_slow_it() -> None:
    """Its host has become the slow one."""
    gpu = Gpu(tells=True)
    short_requests(gpu, 2)
    gpu.work(1, pauses=1000, held=50e-6, waits=0.02, launches=0.9, often=100)
    assert gpu.part.way is Way.SLICE


@pytest.mark.parametrize(("often", "way"), [(600, Way.SWITCH), (300, Way.SLICE)])
def test_slices_are_for_pauses_that_are_no_waits(often: float, way: Way) -> None:
    """Each wait takes a switch beside slices, too: a third or two of 18 % are left to spare."""
    gpu = Gpu(tells=True)
    gpu.work(1, pauses=900, held=50e-6, waits=0.1, launches=0.7, often=often)
    assert gpu.part.way is way


@pytest.mark.parametrize(("often", "way"), [(1_500, Way.SWITCH), (600, Way.SLICE)])
def test_slices_are_shorter_than_what_a_program_launches_between_two_waits(often: float, way: Way) -> None:
    """By half, and a switch: 0.5 and 1.2 ms are launched here."""
    gpu = Gpu(tells=True)
    gpu.work(5, pauses=3_000, held=50e-6, waits=0.1, launches=0.7, often=often)
    assert gpu.part.way is way
    assert way is Way.SWITCH or gpu.manner.turn_us == pytest.approx(303, rel=0.15)


def test_who_comes_to_wait_more_often_beside_slices_has_shorter_ones_and_then_none() -> None:
    gpu = Gpu(tells=True)
    gpu.work(2, pauses=1_500, held=50e-6, waits=0.1, launches=0.7, often=20)
    before = gpu.manner.turn_us
    gpu.work(0.6, pauses=1_000, held=50e-6, waits=0.2, launches=0.5, often=300)
    assert 500 < gpu.manner.turn_us < before
    gpu.work(0.6, pauses=1_000, held=50e-6, waits=0.2, launches=0.25, often=1_000)
    assert gpu.part.way is Way.SWITCH


def test_pauses_of_the_background_s_own_do_not_make_slices_longer() -> None:
    """A slice and a switch take 1 ms: while the program launches, for 0.3 s a second, that is 300 switches at most."""
    gpu = Gpu(tells=True)
    while gpu.part.way is not Way.SLICE:
        gpu.work(0.01, pauses=1_500, held=50e-6, waits=0.1, launches=0.3, often=20)
    gpu.work(6, pauses=1_500, held=50e-6, waits=0.1, launches=0.3, often=20)
    assert gpu.part.way is Way.SLICE
    assert gpu.manner.turn_us == pytest.approx(1e6 * (0.3 * 0.28e-3 / (0.075 - 20 * 0.28e-3) - 0.28e-3), rel=0.16)


def test_a_dozen_requests_in_a_window_do_not_make_slices_swing() -> None:
    """As many as come by chance: the shortest slice by the newest window alone would be half of the longest."""
    gpu, random, seen = Gpu(tells=True), Random(1), []
    for window in range(80):
        requests = max(6, round(random.gauss(14, 3.5)))
        gpu.work(WINDOW_S, requests * 32.0, 50e-6, 0.02 * requests, 0.04 * requests, 4.0 * requests)
        seen += [gpu.manner.turn_us] if window > 8 and gpu.part.way is Way.SLICE else []
    assert len(seen) > 60
    assert max(seen) < 1.5 * min(seen)


@pytest.mark.parametrize(("part_of_it", "way"), [(0.9, Way.REQUEST), (0.6, Way.SWITCH)])
def test_requests_that_leave_the_gpu_idle_for_longer_than_switches_would_are_none(part_of_it: float, way: Way) -> None:
    """Those of 1 ms come so close that they are taken for one; the program waits for the GPU in a part of that."""
    gpu = Gpu(tells=True)
    gpu.work(WINDOW_S + 0.01, pauses=345, held=1e-3, waits=part_of_it)
    gpu.tell(Busy(gpu.key))
    gpu.work(WINDOW_S, pauses=345, held=1e-3, waits=part_of_it)
    assert gpu.part.way is way


def test_the_first_slices_are_tried_for_no_longer_than_it_takes_to_see() -> None:
    """What falls behind beside them is late by as long as they are tried. An older library does not count waits."""
    gpu = Gpu(tells=True)
    while gpu.part.way is not Way.SLICE:
        gpu.work(0.01, pauses=1_000, held=100e-6, waits=0.2, launches=0.25)
    gpu.work(0.11, pauses=400, held=130e-6, waits=0.9, launches=0.1)
    assert gpu.part.way is Way.SWITCH


def test_where_there_was_no_background_nobody_is_listened_to_when_there_is() -> None:
    gpu = Gpu("switch", tells=True)
    gpu.part.manner([gpu.foreground], [], gpu.now)
    assert gpu.ask().watch == {}
