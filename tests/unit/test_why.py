"""From events to the table of `trace --why`: made-up events, all in µs here."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runlist.protocol.why_autogen import RUNNABLE_PREEMPTED
from runlist.why.functions import watched
from runlist.why.parts import Part
from runlist.why.report import analyse, lines
from runlist.why.requests import calls
from runlist.why.seen import Mode, Pause, Throttle, Times, Turn, What
from runlist.why.symbols import mode_of
from runlist.why.threads import threads
from tests.fixtures.why_events import (
    ALLOC,
    CONTEXT,
    COPY,
    LAUNCH,
    ME,
    OTHER,
    PAUSE_US,
    RUNS_ON,
    SLEEPS,
    STACK_OF_ANSWER,
    STACK_OF_FAULT,
    STACK_OF_FUTEX,
    STACK_OF_READER,
    SYNC,
    Event,
    asleep,
    back,
    call,
    launch,
    out,
    parts_us,
    row_of,
    seen,
    told,
    turn,
    us,
    usual,
    wake,
)

# -- one request -----------------------------------------------------------------------------------


def test_a_request_is_from_its_first_launch_to_the_end_of_its_last_wait() -> None:
    row = row_of(seen([launch(10), launch(60, folded=3), *call(100, 300), *call(310, 320)], 10_000))
    assert row.ms == pytest.approx(0.31)
    assert row.launches == 5
    assert parts_us(row) == {"host": 100, "gpu": 210}


def test_launches_that_were_folded_before_the_wait_count() -> None:
    """Nothing but the next call tells of them, and that is the wait."""
    began, ended = call(100, 300)
    row = row_of(seen([launch(10), launch(60, folded=3), began._replace(state=9), ended], 10_000))
    assert row.launches == 14


def test_launches_that_were_folded_count_on_their_own_stream() -> None:
    """The thread's next call tells of them, on another stream, of another request."""
    events = [launch(10, stream=16), launch(500, stream=17, folded=3), launch(9_000, stream=17, folded=2)]
    made = calls(told(events), us(10_000))
    assert [(each.argument, each.folded) for each in made] == [(16, 3), (17, 2), (17, 0)]


def test_launches_that_were_folded_before_the_request_do_not_count() -> None:
    events = [launch(10), launch(40_000, folded=59), *call(40_100, 40_300)]
    row = row_of(seen([*events[:1], out(100), back(39_900), *events[1:]], 90_000))
    assert row.launches == 1


def test_each_instant_has_one_part() -> None:
    events = [
        launch(0),
        out(100, state=RUNS_ON, to=77, name="hog"), back(400),  # its core is another's
        out(450, stack=STACK_OF_FAULT, fault=5), wake(650), back(660),  # a page fault, and a moment for a core
        Event(us(720), What.INTERRUPT, ME, value=us(20)),
        *call(800, 2000),
        out(810), wake(1900), back(1950),
    ]  # fmt: skip
    turns = [turn(0, 1000, OTHER), turn(1080, 1900)]
    row = row_of(seen(events, 10_000, turns=turns))
    assert parts_us(row) == {
        "host": 100 + 50 + (700 - 660) + 80,
        "core": 300 + 10,
        "files": 200,
        "interrupts": 20,
        "behind": 200,
        "switches": 80,
        "gpu": 820 + 100,
    }


def test_who_had_the_core_is_named_with_all_who_had_it() -> None:
    events = [
        launch(0), out(100, state=0, to=5, name="short"), Event(us(150), What.RUNS, 0, 0, 77, us(29_850), name="hog"),
        Event(us(30_000), What.RUNS, 0, 0, 5, us(100), name="short"), back(30_100), *call(30_200, 30_300),
    ]  # fmt: skip
    row = row_of(seen(events, 50_000))
    assert row.culprit == "core"
    assert row.why == "it waited 30.0 ms for a core, which hog [77] had"


def test_who_has_a_core_already_when_the_wait_begins() -> None:
    events = [
        Event(us(0), What.RUNS, 0, 1, 78, us(60_000), name="elsewhere"),
        Event(us(20), What.RUNS, 0, 0, 77, us(20_000), name="hog"),
        launch(0), out(10), wake(500, who=5, name="short"), back(20_020), *call(20_100, 20_200),
    ]  # fmt: skip
    assert "hog [77]" in row_of(seen(events, 90_000)).why


def test_a_core_that_idles_is_not_what_a_thread_waits_for() -> None:
    row = row_of(seen([launch(0), out(100, state=0), back(50_100), *call(50_200, 50_300)], 60_000))
    assert row.culprit == "throttled"
    assert parts_us(row)["throttled"] == 50_000


def test_a_quota_of_processor_time_counts_though_others_have_the_core() -> None:
    events = [launch(0), out(100, state=0, to=77, name="any"), back(50_100), *call(50_200, 50_300)]
    throttles = [Throttle(us(40_000), us(60_000), us(48_000))]
    row = row_of(seen(events, 90_000, throttles=throttles))
    assert row.culprit == "throttled"
    assert "cpu.max" in row.why
    other = [Throttle(us(70_000), us(80_000), us(48_000))]
    assert row_of(seen(events, 90_000, throttles=other)).culprit == "core"


def test_a_file_is_named_by_the_address_that_faulted() -> None:
    events = [launch(0), out(50, stack=STACK_OF_FAULT, fault=42), wake(60_000), back(60_010), *call(60_100, 60_200)]
    row = row_of(seen(events, 90_000))
    assert row.why == "it waited 60.0 ms for /file42 to be read (page fault)"


@pytest.mark.parametrize("place", ["", "[heap]"])
def test_a_page_that_is_of_no_file_was_memory(place: str) -> None:
    events = [launch(0), out(100, stack=STACK_OF_FAULT, fault=5), wake(20_000), back(20_010), *call(20_100, 20_200)]
    row = row_of(replace(seen(events, 90_000), file_of=lambda _: place))
    assert row.why == "it waited 19.9 ms for memory of its own (page fault, as where that was swapped out)"


def test_another_thread_that_keeps_a_lock() -> None:
    events = [launch(0), out(50, stack=STACK_OF_FUTEX), wake(20_000), back(20_000), *call(20_100, 20_200)]
    row = row_of(seen(events, 90_000), pause_us=30_000)
    assert row.culprit == "asleep"
    assert row.why == "it waited for a lock of another thread, or process (futex), for 19.9 ms"


def test_the_thread_that_let_go_of_a_lock_is_named_if_it_is_one_of_its_own() -> None:
    other = ME + 1
    events = [
        launch(0), out(1, other), out(50, stack=STACK_OF_FUTEX), wake(20_000, by=other), back(20_000),
        out(20_010, stack=STACK_OF_FUTEX), wake(21_000, by=77), back(21_000), *call(21_100, 21_200),
    ]  # fmt: skip
    named = Event(us(1), What.OUT, ME + 2, other=other, name="keeper", state=SLEEPS)
    for more, who in (([], "a thread"), ([named], "keeper")):
        row = row_of(seen([*events, *more], 90_000), pause_us=30_000)
        assert row.why == f"it waited for another of its threads, {who} [{other}] (futex), for 20.9 ms"


def test_who_waits_for_a_lock_again_and_again_waited_for_who_let_go_of_it() -> None:
    """Python's threads do so for the interpreter, every 5 ms."""
    other = ME + 1
    events = [launch(0), out(1, other)]
    for at in range(100, 20_100, 5_000):
        events += [out(at, stack=STACK_OF_FUTEX), wake(at + 4_950, by=other if at > 15_000 else 0), back(at + 4_960)]
    row = row_of(seen([*events, *call(20_200, 20_300)], 90_000), pause_us=30_000)
    assert row.why == f"it waited for another of its threads, a thread [{other}] (futex), for 19.8 ms"
    apart = [launch(0), out(1, other), out(50, stack=STACK_OF_FUTEX), wake(15_000), back(15_010)]
    apart += [out(15_500, stack=STACK_OF_FUTEX), wake(16_000, by=other), back(16_010), *call(16_100, 16_200)]
    row = row_of(seen(apart, 90_000), pause_us=30_000)
    assert row.why == "it waited for a lock of another thread, or process (futex), for 15.4 ms"


@pytest.mark.parametrize(
    ("stack", "why"),
    [
        (STACK_OF_ANSWER, "it waited for what comes by a socket or a pipe for 20.0 ms"),
        (STACK_OF_READER, "it waited for 20.0 ms for whoever reads its socket or pipe to take more"),
    ],
)
def test_who_is_not_of_its_process_is_not_blamed_but_said_to_be_waited_for(stack: int, why: str) -> None:
    """A remote call in the middle of a request, or one whose answer nobody reads."""
    events = [
        launch(0),
        out(50, stack=stack),
        wake(20_050, by=ME + 1),
        back(20_050),
        launch(20_060),
        *call(20_100, 20_200),
    ]
    row = row_of(seen(events, 90_000), pause_us=30_000)
    assert (row.culprit, row.why) == ("asleep", why)


def test_a_wait_that_yields_its_core_is_a_wait_for_the_gpu() -> None:
    yields = [each for at in range(200, 900, 50) for each in (out(at, state=0, to=3), back(at + 20))]
    row = row_of(seen([launch(0), *call(100, 1000), *yields], 10_000, turns=[turn(0, 990)]))
    assert parts_us(row) == {"host": 100, "gpu": 900}


def test_a_wait_that_loses_its_core_is_not() -> None:
    lost = [out(200, state=RUNS_ON, to=77, name="hog"), back(20_200)]
    row = row_of(seen([launch(0), *call(100, 20_300), *lost], 30_000, turns=[turn(0, 25_000)]))
    assert row.culprit == "core"
    assert parts_us(row) == {"host": 100, "gpu": 200, "core": 20_000}


def test_behind_another_though_it_lost_its_core_as_well() -> None:
    lost = [out(200, state=RUNS_ON, to=77, name="hog"), back(20_200)]
    turns = [turn(150, 20_150, OTHER), turn(20_200, 20_300)]
    row = row_of(seen([launch(0), *call(100, 20_300), *lost], 30_000, turns=turns, process=lambda pid: f"task {pid}"))
    assert row.why == "task 900 had the GPU for 20.0 ms"


def test_a_gpu_that_nobody_has_is_kept_from_it() -> None:
    turns = [turn(0, 1_000), turn(61_000, 62_000)]
    events = [launch(0), *call(100, 62_000), out(110), wake(62_000), back(62_000)]
    row = row_of(seen(events, 90_000, turns=turns))
    assert row.culprit == "held"
    assert parts_us(row)["held"] == 60_000
    pauses = [Pause(us(1_000), us(61_000), "its cap of 20 %")]
    row = row_of(seen(events, 90_000, turns=turns, pauses=pauses))
    assert row.why == "it was kept off the GPU for 60.0 ms: its cap of 20 %"
    earlier = [Pause(0, us(900), "Runlist suspends it")]
    row = row_of(
        seen(events, 90_000, turns=turns, pauses=earlier, capped=[Pause(us(500), us(90_000), "its cap of 20 %")])
    )
    assert row.why == "it was kept off the GPU for 60.0 ms: its cap of 20 %"


def test_times_are_from_look_to_look_and_the_last_lasts_until_now() -> None:
    times = Times()
    for now, why in [(1, ""), (2, "a cap"), (3, "a cap"), (4, ""), (5, ""), (6, "suspended")]:
        times.take(now, why)
    assert times.over == [Pause(2, 4, "a cap")]
    assert times.until(9) == [Pause(2, 4, "a cap"), Pause(6, 9, "suspended")]


def test_memory_that_was_refused_until_it_was_granted() -> None:
    events = [
        launch(0), *call(100, 200, ALLOC, result=2), out(210), wake(50_000), back(50_010),
        *call(50_020, 50_100, ALLOC), *call(50_200, 50_300),
    ]  # fmt: skip
    row = row_of(seen(events, 90_000, quota=True))
    assert row.culprit == "memory"
    assert row.why == "its memory quota refused it memory once, and it took 50.0 ms until it went on"
    assert parts_us(row) == {"host": 200, "memory": 50_000, "gpu": 100}
    assert "the full GPU refused it" in row_of(seen(events, 90_000)).why


def test_memory_that_was_refused_for_good() -> None:
    row = row_of(seen([launch(0), *call(100, 3_200, ALLOC, result=2), *call(3_300, 3_400)], 90_000))
    assert parts_us(row) == {"host": 200, "memory": 3_100, "gpu": 100}


# -- what is missing, nested, or of several threads ------------------------------------------------


def test_calls_within_calls_count_once() -> None:
    events = [
        launch(0), Event(us(100), What.CALL, ME, detail=COPY), launch(110), *call(120, 180, ALLOC),
        Event(us(300), What.RETURN, ME, detail=COPY), *call(310, 320),
    ]  # fmt: skip
    row = row_of(seen(events, 10_000))
    assert row.launches == 2
    assert parts_us(row) == {"host": 110, "gpu": 210}


def test_an_end_that_was_lost_is_at_the_next_wait() -> None:
    events = [launch(0), *call(100, 200)[:1], launch(20_000), *call(20_100, 20_200)]
    report = analyse(seen(events, 90_000, dropped=1), 0, us(PAUSE_US)).report
    assert sum(sum(row.parts_ms.values()) for row in report.slow) == pytest.approx(sum(row.ms for row in report.slow))
    assert report.dropped == 1


def test_a_beginning_that_was_lost_is_no_call() -> None:
    row = row_of(seen([launch(0), call(10, 50, ALLOC)[1], *call(100, 200)], 10_000))
    assert parts_us(row) == {"host": 100, "gpu": 100}


def test_what_was_not_seen_is_said() -> None:
    # It left its core twice, and was never seen to get it back.
    events = [launch(0), out(100, state=0, to=77), out(30_000, state=0, to=77), back(30_100), *call(30_200, 30_300)]
    row = row_of(seen(events, 90_000, dropped=3))
    assert row.culprit == "unknown"
    assert "3 events were lost" in row.why


@pytest.mark.parametrize("sign", ["an interrupt", "a call"])
def test_a_wait_for_a_core_of_which_the_end_was_not_seen(sign: str) -> None:
    """Some kernels do not tell of switches from some tasks. Who does something has its core again."""
    signs = {"an interrupt": [Event(us(8_020), What.INTERRUPT, ME, value=us(20))], "a call": [launch(8_000)]}
    events = [launch(0), out(100, state=RUNS_ON, to=77, name="hog"), *signs[sign], *call(9_000, 9_500)]
    row = row_of(seen(events, 20_000))
    assert parts_us(row)["core"] == 7_900
    assert "unknown" not in parts_us(row)
    assert "hog [77] had" in row.why


@pytest.mark.parametrize("sign", ["a call", "another leaving"])
def test_a_sleep_of_which_the_end_was_not_seen_is_a_pause(sign: str) -> None:
    again = [] if sign == "a call" else [out(20_550, state=RUNS_ON, to=77), back(20_580)]
    events = [launch(0), *call(100, 500), out(600), *again, launch(20_600), *call(20_700, 21_000)]
    assert [row.ms for row in analyse(seen(events, 40_000), 0, us(PAUSE_US)).report.slow] == [0.5, 0.4]


def test_a_thread_that_migrates_keeps_its_time() -> None:
    events = [
        launch(0), out(100, state=0, to=77, name="hog", core=0), back(600, core=1),
        out(700, state=0, to=78, name="pig", core=1), back(5_700, core=0), *call(5_800, 5_900),
    ]  # fmt: skip
    row = row_of(seen(events, 90_000))
    assert parts_us(row) == {"host": 300, "core": 5_500, "gpu": 100}
    assert "pig [78]" in row.why


def test_one_thread_launches_and_another_waits() -> None:
    a, b = 101, 102
    slept = [out(50, a), wake(19_990, a), back(19_990, a)]
    events = [launch(0, a), *slept, *call(100, 900, tid=b), launch(20_000, a), *call(20_100, 20_300, tid=b)]
    report = analyse(seen(events, 90_000), 0, us(PAUSE_US)).report
    assert [row.ms for row in report.slow] == pytest.approx([0.9, 0.3])


def test_two_threads_on_streams_of_their_own_make_requests_at_the_same_time() -> None:
    a, b = 101, 102
    events = [
        launch(0, a, 16), launch(50, b, 17), *call(100, 900, tid=a, stream=16), *call(200, 20_000, tid=b, stream=17),
    ]  # fmt: skip
    report = analyse(seen(events, 90_000), 0, us(PAUSE_US)).report
    assert sorted(round(row.ms, 3) for row in report.slow) == [0.9, 19.95]


def test_the_order_in_which_events_come_does_not_matter() -> None:
    events = [launch(0), out(100, state=0, to=77), back(400), *call(500, 900), out(510), wake(880), back(890)]
    expected = parts_us(row_of(seen(events, 10_000)))
    for seed in range(10):
        shuffled = random.Random(seed).sample(events, len(events))
        assert parts_us(row_of(seen(shuffled, 10_000))) == expected


def test_what_only_launches_is_no_request() -> None:
    report = analyse(seen([launch(0), *asleep(10, 9_000), launch(9_010)], 10_000), 0, us(PAUSE_US)).report
    assert report.requests == 0
    assert lines(report, "it") == ["it: no request was seen from its beginning to its end in 0.0 s"]


def test_its_own_earlier_work_is_what_it_took_longer_than_usual() -> None:
    times = [10_000.0 * each for each in range(1, 6)]
    events = [each for at in times for each in usual(at)]
    last = 80_000
    events += [
        launch(last),
        *asleep(last + 10, last + 8_000),
        launch(last + 8_100),
        *call(last + 8_200, last + 40_500),
    ]
    report = analyse(seen(events, 200_000), us(20_000), us(PAUSE_US)).report
    (row,) = report.slow
    assert row.culprit == "queue"
    assert parts_us(row) == {"host": 100, "gpu": 300, "queue": 32_000}
    assert "its own earlier work had the GPU for 32.0 ms (launched up to 8.1 ms before" in row.why


def test_the_slowest_twentieth_is_told_unless_a_bound_is_given() -> None:
    events = [each for number in range(40) for each in usual(10_000.0 * (number + 1), 300 + number)]
    what = seen(events, 900_000)
    report = analyse(what, None, us(PAUSE_US)).report
    assert (report.requests, len(report.slow)) == (40, 3)
    assert len(analyse(what, us(435), us(PAUSE_US)).report.slow) == 4
    assert lines(analyse(what, None, us(800_000)).report, "it")[0].startswith("it: 1 request in")
    assert lines(report, "it")[0].startswith("it: 40 requests in 0.9 s, p50 0.42 ms, p95 0.44 ms; 3 of 0.44 ms or more")


def test_what_always_takes_long_is_not_to_blame() -> None:
    events = [each for number in range(9) for each in usual(100_000.0 * (number + 1), 30_000)]
    at = 1_500_000.0
    events += [*asleep(at - 8_000, at), launch(at), out(at + 10, state=0, to=77, name="hog"), back(at + 20_000)]
    events += call(at + 20_100, at + 50_100)
    (row,) = analyse(seen(events, 2_000_000), us(40_000), us(PAUSE_US)).report.slow
    assert row.culprit == "core"
    assert row.parts_ms["gpu"] > row.parts_ms["core"]


def test_two_to_blame_are_both_named() -> None:
    events = [
        launch(0), out(100, state=RUNS_ON, to=77, name="hog"), back(20_100),
        out(20_200, stack=STACK_OF_FAULT, fault=5), wake(45_200), back(45_200), *call(45_300, 45_400),
    ]  # fmt: skip
    row = row_of(seen(events, 90_000))
    assert row.culprit == "files"
    assert row.why == (
        "it waited 25.0 ms for /file5 to be read (page fault); it waited 20.0 ms for a core, which hog [77] had"
    )


def test_the_functions_that_a_thread_slept_in_say_why() -> None:
    assert mode_of(["schedule", "io_schedule", "folio_wait_bit_common", "filemap_fault", "do_fault"]) is Mode.FAULT
    assert mode_of(["schedule", "io_schedule", "filemap_read", "vfs_read"]) is Mode.FILE
    assert mode_of(["schedule", "futex_wait_queue", "do_futex"]) is Mode.LOCK
    assert mode_of(["schedule", "nvidia_unlocked_ioctl"]) is Mode.DRIVER
    for name, mode in {
        "ep_poll": Mode.POLL, "do_sys_poll": Mode.POLL, "do_select": Mode.POLL, "hrtimer_nanosleep": Mode.TIMER,
        "tcp_recvmsg": Mode.ANSWER, "unix_stream_read_generic": Mode.ANSWER, "anon_pipe_read": Mode.ANSWER,
        "sk_stream_wait_memory": Mode.READER, "sock_alloc_send_pskb": Mode.READER, "anon_pipe_write": Mode.READER,
        "kernel_wait4": Mode.CHILD, "wait_for_vfork_done": Mode.CHILD, "do_fsync": Mode.FILE,
        "do_wait_for_common": Mode.ASLEEP,
    }.items():  # fmt: skip
        assert mode_of(["schedule", "schedule_timeout", name, "do_syscall_64"]) is mode, name
    on_the_way = ["exit_to_user_mode_loop", "irqentry_exit_to_user_mode", "asm_exc_page_fault"]
    assert mode_of(["schedule", "do_signal_stop", "get_signal", *on_the_way]) is Mode.STOPPED
    assert mode_of(["schedule", "get_signal", *on_the_way]) is Mode.STOPPED  # the freezer of a cgroup
    assert mode_of(["schedule_timeout", "__mem_cgroup_handle_over_high", *on_the_way]) is Mode.RECLAIM
    assert mode_of([]) is Mode.ASLEEP


def test_every_function_is_watched_in_all_its_forms_by_one_number() -> None:
    numbers = {each.symbol: each.number for each in watched()}
    assert numbers["cuLaunchKernel"] == numbers["cuLaunchKernel_ptsz"] == LAUNCH
    assert numbers["cuMemcpyHtoD_v2_ptds"] == COPY
    assert all(each.folds != each.returns for each in watched())


# -- whatever comes --------------------------------------------------------------------------------

_EVENTS = st.lists(
    st.builds(
        Event,
        st.integers(0, 100_000_000),
        st.sampled_from(What),
        st.sampled_from([ME, 101, 102]),
        st.integers(0, 1),
        st.sampled_from([0, 77]),
        st.sampled_from([0, 2, 16, 17, 5_000]),
        st.sampled_from([LAUNCH, SYNC, COPY, ALLOC, CONTEXT, STACK_OF_FAULT, 0xFFFFFFFF]),
        st.sampled_from([0, 1, 2, RUNNABLE_PREEMPTED]),
    ),
    max_size=80,
)
_TURNS = st.lists(st.tuples(st.integers(0, 50_000_000), st.sampled_from([ME, OTHER])), max_size=8)


@given(_EVENTS, _TURNS, st.integers(1, 50_000_000))
def test_parts_add_up_whatever_was_seen(events: list[Event], switches: list[tuple[int, int]], pause: int) -> None:
    switches = sorted(switches)
    turns = [Turn(one[0], other[0], one[1]) for one, other in itertools.pairwise(switches)]
    what = seen(events, 100_001, turns=turns, dropped=1)
    for row in analyse(what, 0, pause).report.slow:
        assert sum(row.parts_ms.values()) == pytest.approx(row.ms, abs=1e-6)
        assert all(value >= 0 for value in row.parts_ms.values())
        assert row.culprit in {part.value for part in Part}
        assert row.why
    for thread in threads(what).values():
        assert all(span.start_ns < span.end_ns for span in thread.spans)
        assert all(one.end_ns == other.start_ns for one, other in itertools.pairwise(thread.spans))
