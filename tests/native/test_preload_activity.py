"""What a process does on the GPU, as its slot of the region tells: how much work, how long waits, and news of work."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runlist.daemon.requests.messages import Kind
from tests.conftest import ON_NVIDIA
from tests.fixtures.daemon import short_path, wait_for
from tests.fixtures.ear import Ear, ear
from tests.native.guests import Guests
from tests.native.regions import ACTIVITY, ACTIVITY_AT, SLOT_BYTES, SLOTS, SLOTS_AT, Activity, Region

__all__ = ["ear", "short_path"]


INVALID_VALUE, ILLEGAL_STATE, ILLEGAL_ADDRESS, UNSUPPORTED, INVALIDATED, WRONG_THREAD = 1, 401, 700, 900, 901, 908
"""Results of CUDA."""


class Program:
    """One that does what it is told, and its slot."""

    def __init__(self, process: object, region: Region) -> None:
        self._process = process
        self.region = region
        self.pid: int = process.pid  # type: ignore[attr-defined]
        assert self.line() == "ready 0"

    def line(self) -> str:
        return str(self._process.stdout.readline().strip())  # type: ignore[attr-defined]

    def tell(self, word: str) -> None:
        self._process.stdin.write(word + "\n")  # type: ignore[attr-defined]
        self._process.stdin.flush()  # type: ignore[attr-defined]

    def do(self, *words: str, result: int = 0) -> Activity:
        """Has it do these one by one; what its slot says then. errno stayed."""
        for word in words:
            self.tell(word)
            assert self.line() == f"{word} {result}"
        return self.now()

    def now(self) -> Activity:
        return self.region.activities()[self.pid]

    def waits(self, threads: int) -> bool:
        return self.now().waiting == threads

    def stays(self, threads: int) -> bool:
        """Whether so many wait, and go on to."""
        wait_for(lambda: self.waits(threads))
        time.sleep(0.05)
        return self.waits(threads)


@contextmanager
def started(guests: Guests, region: Region, preload: str | None = None, **more: str) -> Iterator[Program]:
    env = guests.environment(region, preload, **more)
    with guests.started("activity", env=env) as process:
        yield Program(process, region)


@pytest.fixture
def program(guests: Guests) -> Iterator[Program]:
    with started(guests, guests.region()) as one:
        yield one


def test_work_is_counted_and_waits_are_not_work(program: Program) -> None:
    assert program.do() == Activity(0, 0, 0, 0)
    assert program.do("launch", "fill", "launch").work == 3
    assert program.do("stream", "record", "event", "context", "ask").work == 3
    assert program.do("copy").work == 4
    assert program.do("graph").work == 4
    assert program.do("launch-graph", "stream").work == 5


def test_waits_are_counted_that_are_for_something(program: Program) -> None:
    assert program.do("stream", "context").waits == 0
    assert program.do("launch", "launch", "stream").waits == 1
    assert program.do("stream", "context", "ask").waits == 1
    assert program.do("launch", "record", "event", "context").waits == 2


@pytest.mark.parametrize("launch", ["launch", "launch-found"])
def test_what_is_captured_is_no_work_and_what_follows_is(program: Program, launch: str) -> None:
    before = program.do(launch, "stream")
    assert program.do("capture", launch, "fill", launch).work == 1
    time.sleep(0.5)
    after = program.do("captured", launch, "stream")
    assert after.work == 2
    assert after.launching_ns - before.launching_ns < 0.4e9  # not from the first that was captured on
    assert program.do("capture", launch, "aside").work == 3  # which is another stream
    assert program.do("captured", launch, "fill").work == 5


def test_a_capture_that_fails_or_is_ended_by_somebody_else(program: Program) -> None:
    program.do("capture", "launch")
    program.do("end-aside", result=ILLEGAL_STATE)
    program.do("end-elsewhere")
    program.do("join", result=WRONG_THREAD)  # which ends the capture all the same
    assert program.do("launch").work == 1
    assert program.do("capture", "launch").work == 1
    program.do("stream", result=UNSUPPORTED)  # which spoils the capture
    assert program.do("aside").work == 2
    program.do("captured", result=INVALIDATED)
    assert program.do("launch", "stream").work == 3
    program.do("captured", result=ILLEGAL_STATE)
    assert program.do("launch").work == 4
    assert program.do("capture", "launch", "captured").work == 4


@pytest.mark.parametrize("way", ["stream", "event", "context", "copy-out", "copy-anywhere"])
def test_a_thread_that_waits_is_one(program: Program, way: str) -> None:
    program.do("launch", "shut", "record")
    before = program.do(f"wait-{way}")
    assert program.stays(1)
    assert program.now().waited_ns == before.waited_ns
    time.sleep(0.05)
    after = program.do("open", "join")
    assert after.waiting == 0
    assert after.waited_ns - before.waited_ns >= 50e6


def test_a_copy_that_is_only_submitted_is_no_wait(program: Program) -> None:
    """The stretch of launches goes on over it, unless for want of a processor it took as long as one that waits."""

    def is_no_wait() -> bool:
        before = program.do("launch", "shut")
        submitted = program.do("copy-pinned")
        time.sleep(0.05)
        assert program.now() == submitted
        after = program.do("copy-pinned")
        held_up = after.waited_ns != before.waited_ns
        ended = program.do("open", "stream")
        assert ended.work == before.work + 2
        return not held_up and ended.launching_ns - before.launching_ns >= 50e6

    wait_for(is_no_wait, "two copies that are no waits")


@pytest.mark.parametrize("way", ["call", "call-back"])
def test_who_has_the_stream_call_it_waits_until_then(program: Program, way: str) -> None:
    """As JAX and TensorFlow do, in no call of the driver."""
    before = program.do("launch", "shut", "launch", way)
    assert program.stays(1)
    time.sleep(0.05)
    program.do("open")
    wait_for(lambda: program.waits(0))
    after = program.now()
    assert after.waited_ns - before.waited_ns >= 50e6
    program.do("stream")
    program.tell("called")
    assert program.line() == "called 1 1"


@pytest.mark.parametrize("way", ["call", "call-back"])
def test_who_goes_on_meanwhile_does_not_wait(program: Program, way: str) -> None:
    before = program.do("launch", "shut", "launch", way, "launch")
    time.sleep(0.05)
    program.do("open")
    wait_for(lambda: program.waits(0))
    assert program.now().waited_ns - before.waited_ns < 50e6


def test_more_functions_than_there_is_room_for_are_called_as_well(program: Program) -> None:
    program.do("launch", "shut", "call-many", "open", "stream")
    assert program.now().waiting == 0
    program.tell("called")
    assert program.line() == "called 400 400"


def test_a_function_in_a_graph_is_called_each_time(program: Program) -> None:
    program.do("capture", "launch", "call", "captured", "made")
    program.do("call", "stream", *["launch-graph", "stream"] * 3)
    program.tell("called")
    assert program.line() == "called 4 4"
    assert program.now().waiting == 0


def test_a_function_that_is_refused_is_not_waited_for(program: Program) -> None:
    program.do("call-nothing", result=INVALID_VALUE)
    program.do("capture", "launch")
    program.do("call-back", result=UNSUPPORTED)  # which is no function for a graph
    assert program.now().waiting == 0


def test_a_thread_that_waits_for_a_stream_and_for_its_function_waits_once(program: Program) -> None:
    before = program.do("launch", "shut", "launch")
    began = time.monotonic_ns()
    program.do("call", "wait-stream")
    assert program.stays(2)
    after = program.do("open", "join")
    assert 50e6 <= after.waited_ns - before.waited_ns <= time.monotonic_ns() - began


def test_a_function_that_is_never_called_is_waited_for_until_its_context_has_failed(program: Program) -> None:
    """As where work failed before it; programs go on with another context."""
    assert program.do("launch", "shut", "fail", "call", "call").waiting == 2
    program.do("open")
    assert program.do("stream", result=ILLEGAL_ADDRESS).waiting == 0
    assert program.do("anew").waiting == 0
    program.do("launch", "call", "stream")
    assert program.now().waiting == 0
    program.tell("called")
    assert program.line() == "called 1 1"


def test_functions_that_are_never_called_leave_their_places_to_others(program: Program) -> None:
    """In contexts that failed and ended; there are 256 places."""
    for _ in range(4):
        program.do("launch", "shut", "fail", "call-in-vain", "open")
        program.do("stream", result=ILLEGAL_ADDRESS)
        program.do("anew")
    assert program.do("launch", "shut", "call-in-vain").waiting == 100
    assert program.do("open", "stream").waiting == 0


def test_a_callback_behind_what_failed_is_told_so_once(program: Program) -> None:
    program.do("launch", "shut", "fail", "call-back-failed", "call", "call-back-failed", "open")
    program.do("stream", result=ILLEGAL_ADDRESS)
    wait_for(lambda: program.waits(0))
    program.do("anew")
    program.tell("failures")
    assert program.line() == "failures 2"


def test_a_function_that_is_called_after_another_context_ended_is_called_once(program: Program) -> None:
    program.do("launch", "shut", "call", "call-back", "another", "call", "open", "stream")
    assert program.now().waiting == 0
    program.tell("called")
    assert program.line() == "called 3 3"


def test_two_threads_that_wait_are_two(program: Program) -> None:
    program.do("launch", "shut", "wait-stream", "wait-stream")
    assert program.stays(2)
    program.do("open", "join")
    wait_for(lambda: program.waits(0))


@pytest.mark.parametrize("way", ["stream", "copy", "context"])
def test_launching_is_the_time_from_the_first_submission_to_the_wait(program: Program, way: str) -> None:
    before = program.do("launch", "stream", "ask").launching_ns
    time.sleep(0.05)  # no request
    program.do("launch")
    time.sleep(0.03)
    between = program.do("launch").launching_ns
    assert between == before
    time.sleep(0.03)
    took = program.do("record", way).launching_ns - before
    assert took >= 60e6
    again = program.do("stream", "event").launching_ns
    assert again == before + took  # nothing was submitted in between


def test_what_is_submitted_while_another_thread_waits_begins_nothing_that_outlasts_the_wait(program: Program) -> None:
    program.do("launch", "shut", "wait-stream")
    assert program.stays(1)
    before = program.do("launch", "open", "join")
    time.sleep(1)
    program.do("launch")
    assert program.do("stream").launching_ns - before.launching_ns < 0.9e9


def test_to_ask_is_not_to_wait(program: Program) -> None:
    before = program.do("launch", "shut")
    program.do("record", *["ask"] * 3)
    now = program.do("open")
    assert (now.waiting, now.waited_ns) == (0, before.waited_ns)


@pytest.mark.skipif(ON_NVIDIA, reason="NVIDIA's driver is not ready for it")
def test_a_wait_that_is_left_by_a_long_jump(program: Program) -> None:
    before = program.do("launch", "shut", "wait-or-leap")
    assert program.stays(1)
    program.do("leap")
    assert program.stays(0)
    assert program.now().waited_ns > before.waited_ns
    program.do("open")
    assert program.do("launch", "stream").waiting == 0


@pytest.mark.skipif(ON_NVIDIA, reason="a launch that waits for its turn cannot be told from one in NVIDIA's driver")
def test_a_launch_that_is_left_by_a_long_jump(guests: Guests) -> None:
    """It waited for its turn, as nearly always under such a cap. What its thread launches later is seen as before."""
    with started(guests, Region.create(guests.new_path(), cap=1)) as program:
        program.do("work-or-leap")
        wait_for(lambda: program.now().work >= 2)
        program.do("leap")
        before = program.now().work
        assert program.do("work-there").work == before + 1
        assert program.do("work-there").work == before + 2


@pytest.mark.parametrize("way", ["cancel", "exit"])
def test_a_wait_in_which_its_thread_ends(guests: Guests, way: str) -> None:
    """A driver of our own, as the emulated one ends the process then."""
    region = guests.region()
    folder = str(guests.path("left/libcuda.so.1").parent)
    with guests.started("left/left", way, env=guests.environment(region, LD_LIBRARY_PATH=folder)) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "waits\n"
        wait_for(lambda: region.activities()[process.pid].waiting == 1)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == f"{way}\n"
        now = region.activities()[process.pid]
    assert now.waiting == 0
    assert now.waited_ns > 0


def test_a_child_of_fork_has_its_own(guests: Guests) -> None:
    """Also where a thread of its parent waits meanwhile: that one is not there."""
    region = guests.region()
    with started(guests, region) as program:
        program.do("launch", "shut", "wait-stream")
        assert program.stays(1)
        before = program.now()
        program.tell("fork")
        word, pid = program.line().split()
        assert word == "child"
        assert program.line() == "fork 0"
        program.tell("fill")  # it cannot use the GPU of its parent, but that is known only by then
        assert program.line().startswith("fill ")
        mine, other = region.activities()[int(pid)], program.now()
        assert mine == Activity(1, 0, 0, 0)
        assert other == before


def test_another_program_begins_anew(program: Program) -> None:
    assert program.do("launch", "launch", "stream").work == 2
    program.region.watch(program.pid)
    program.tell("exec")
    assert program.line() == "ready 0"
    assert program.now() == Activity(0, 0, 0, 0)
    assert program.region.watched() == {program.pid: 0}
    assert program.do("launch").work == 1


def test_a_slot_that_is_claimed_anew_is_empty(guests: Guests) -> None:
    region = guests.region()
    with started(guests, region) as first:
        first.do("launch", "shut", "wait-stream")
        assert first.stays(1)
        region.watch(first.pid)
        ((_, place, _),) = region.places()
    with started(guests, region) as second:
        second.do("query")  # which takes back slots of the dead
        with started(guests, region) as third:
            places = {pid: at for pid, at, _ in region.places()}
            assert places[third.pid] == place
            assert [second.now(), third.now()] == [Activity(0, 0, 0, 0)] * 2
            assert region.watched() == {second.pid: 0, third.pid: 0}


def test_in_a_full_region_it_goes_on(guests: Guests) -> None:
    """Nobody is told, and it costs no search each time."""
    region = guests.region(memory=(1 << 64) - 1)
    with region.path.open("r+b") as file:
        for index in range(SLOTS):
            file.seek(SLOTS_AT + index * SLOT_BYTES)
            file.write(struct.pack("<6Q", os.getpid() | 1 << 32, 1, 0, 1, 1, 0))
        file.seek(96)
        file.write((1024).to_bytes(4, "little"))
    env = guests.environment(region)
    with guests.started("activity", env=env) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready 0\n"
        for word in ("launch", "stream", "copy"):
            process.stdin.write(word + "\n")
            process.stdin.flush()
            assert process.stdout.readline() == f"{word} 0\n"
    assert set(region.activities().values()) == {Activity(0, 0, 0, 0)}


@pytest.mark.parametrize("order", ["{library}:{other}", "{other}:{library}"])
def test_beside_another_library_everything_counts_once(guests: Guests, order: str) -> None:
    other = guests.path("counter.so")
    region = guests.region()
    with started(guests, region, order.format(library=guests.library, other=other)) as program:
        assert program.do("launch", "launch", "stream", "copy").work == 3
        program.do("shut", "wait-stream")
        assert program.stays(1)
        assert program.do("open", "join").waiting == 0


def test_under_a_cap_work_counts_once(guests: Guests) -> None:
    region = Region.create(guests.new_path(), cap=9_000)
    with started(guests, region) as program:
        assert program.do("launch", "fill", "stream", "copy").work == 3
        program.do("shut", "wait-stream")
        assert program.stays(1)
        assert program.do("open", "join").waiting == 0


# News of work.


def joined(ear: Ear) -> None:
    """After what the library says when a process opens the GPU."""
    while ear.next().message.kind is not Kind.JOIN:
        pass
    time.sleep(0.1)
    while not ear.heard.empty():
        ear.heard.get()


@pytest.fixture
def heard(guests: Guests, ear: Ear) -> Iterator[Program]:
    with started(guests, guests.region(), RUNLIST_MESSAGES=str(ear.path)) as one:
        joined(ear)
        yield one


def said(ear: Ear) -> list[int]:
    """Who said WORK by now."""
    time.sleep(0.2)
    found = []
    while not ear.heard.empty():
        one = ear.heard.get()
        assert (one.message.kind, one.message.nanoseconds, one.message.descriptors) == (Kind.WORK, 0, ())
        found.append(one.pid)
    return found


def test_who_is_watched_says_so_once(heard: Program, ear: Ear) -> None:
    heard.do("launch")
    assert said(ear) == []
    for word in ("launch", "fill", "copy"):
        heard.region.watch(heard.pid)
        heard.do("stream", "ask")
        assert said(ear) == []
        heard.do(word, "launch")
        assert said(ear) == [heard.pid]
        assert heard.region.watched() == {heard.pid: 0}


def test_what_is_captured_is_no_work_yet(heard: Program, ear: Ear) -> None:
    heard.do("graph")
    heard.region.watch(heard.pid)
    heard.do("capture", "launch", "fill", "captured")
    assert heard.now().work == 0
    assert said(ear) == []
    assert heard.region.watched() == {heard.pid: 1}
    heard.do("launch-graph")
    assert said(ear) == [heard.pid]


@pytest.mark.parametrize("value", [3, 1 << 63 | 1, (1 << 64) - 1])
def test_any_odd_number_is_a_watch(heard: Program, ear: Ear, value: int) -> None:
    heard.region.watch(heard.pid, value)
    heard.do("launch")
    assert said(ear) == [heard.pid]


def test_under_a_cap_as_well(guests: Guests, ear: Ear) -> None:
    region = Region.create(guests.new_path(), cap=9_000)
    with started(guests, region, RUNLIST_MESSAGES=str(ear.path)) as program:
        joined(ear)
        region.watch(program.pid)
        program.do("launch", "launch", "copy")
        assert said(ear) == [program.pid]


def test_where_nobody_hears_it_goes_on(guests: Guests, ear: Ear, short_path: Path) -> None:
    for path in (short_path / "missing.sock", ear.path):
        with started(guests, guests.region(), RUNLIST_MESSAGES=str(path)) as program:
            if path == ear.path:
                ear.do(lambda: ear.loop.remove_reader(ear.messages._socket))
            for _ in range(20):  # more than its queue takes
                program.region.watch(program.pid)
                program.do("launch", "stream")
                assert program.region.watched() == {program.pid: 0}


def test_numbers_that_were_written_over(guests: Guests, program: Program) -> None:
    """They go on from there, and the program goes on."""
    ((_, at, _),) = program.region.places()
    with program.region.path.open("r+b") as file:
        file.seek(at + ACTIVITY_AT)
        file.write(ACTIVITY.pack(*[(1 << 64) - 1] * 4, (1 << 32) - 1))
    now = program.do("launch", "stream")
    assert (now.work, now.waiting, now.waits) == (0, (1 << 64) - 1, 0)
