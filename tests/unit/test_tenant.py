"""What a program says of itself, in Python: heard on a real socket."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import runlist
from runlist import paths, tenant
from runlist.planes.nvidia.rm.transport import EmulatedDriver, NvidiaDriver
from runlist.protocol import environment_autogen as names
from runlist.protocol.tenant_autogen import Effect
from tests.fixtures.daemon import short_path, wait_for
from tests.fixtures.ear import Ear, ear

__all__ = ["ear", "short_path"]


@pytest.fixture(autouse=True)
def own_tenant(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state of the test's own, and a socket's path."""
    monkeypatch.setattr(tenant, "_tenant", tenant._Tenant())
    monkeypatch.setenv("RUNLIST_MESSAGES", str(short_path / "messages.sock"))


def test_all_that_can_be_said(ear: Ear) -> None:
    with runlist.segment(priority=-2):
        runlist.report_latency(0.0021)
        runlist.hint(0)
    runlist.hint(1.5)
    said = [ear.said() for _ in range(5)]
    assert said == [
        ("SEGMENT_BEGIN", -2),
        ("REPORT_LATENCY", 2_100_000),
        ("HINT", 0),
        ("SEGMENT_END", 0),
        ("HINT", 1_500_000_000),
    ]


def test_the_inner_priority_holds_then_the_outer_one_again(ear: Ear) -> None:
    with runlist.segment(3), runlist.segment(3), runlist.segment(1):
        pass
    assert [ear.said()[1] for _ in range(4)] == [3, 1, 3, 0]


def test_exceptions_pass_through(ear: Ear) -> None:
    with pytest.raises(ZeroDivisionError), runlist.segment(1):
        raise ZeroDivisionError
    assert [ear.said() for _ in range(2)] == [("SEGMENT_BEGIN", 1), ("SEGMENT_END", 0)]


def test_a_function_can_be_a_segment(ear: Ear) -> None:
    @runlist.segment(priority=4)
    def answer() -> int:
        return 42

    assert [answer(), answer()] == [42, 42]
    assert [ear.said()[1] for _ in range(4)] == [4, 0, 4, 0]


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), 1e10])
def test_numbers_that_are_none(value: float) -> None:
    for say in (runlist.report_latency, runlist.hint):
        with pytest.raises(ValueError, match="seconds"):
            say(value)


@pytest.mark.parametrize("value", [None, "2ms", [0.002], Decimal(1)])
def test_what_is_no_number_is_said_so(value: Any) -> None:
    for say, what in ((runlist.report_latency, "a latency"), (runlist.hint, "the time of a hint")):
        with pytest.raises(TypeError, match=f"^{what} is a number of seconds, not "):
            say(value)


@pytest.mark.parametrize(
    ("priority", "error"), [(2**31, ValueError), (-(2**31) - 1, ValueError), (1.5, TypeError), ("1", TypeError)]
)
def test_priorities_that_are_none(priority: int, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^a segment's priority "), runlist.segment(priority):
        raise AssertionError


def test_without_a_daemon_nothing_happens_and_it_costs_little() -> None:
    runlist.hint(0)
    started = time.thread_time()
    for _ in range(10_000):
        runlist.report_latency(0.001)
    with runlist.segment(1):
        pass
    assert (time.thread_time() - started) / 10_000 < 100e-6


@pytest.mark.parametrize("path", ["/", "x" * 300, "a\udcffb", "/dev/null"])
def test_paths_that_are_none(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setenv("RUNLIST_MESSAGES", path)
    with runlist.segment(1):
        runlist.hint(0)


def test_a_beginning_waits_for_the_daemons_word_but_not_for_ever(ear: Ear) -> None:
    ear.answers = False
    started = time.monotonic()
    with runlist.segment(1):
        assert time.monotonic() - started >= 0.05
        took = []
        for _ in range(20):  # a daemon that did not answer is not waited for again at once
            started = time.monotonic()
            with runlist.segment(2):
                took.append(time.monotonic() - started)
        assert min(took) < 0.05


def test_a_program_knows_whether_its_segment_is_in_force(ear: Ear) -> None:
    with runlist.segment(1) as segment:
        assert segment.in_force
        for effect in (Effect.NOT_IN_FORCE, Effect.IN_FORCE):  # the daemon says so when it changes
            assert ear.do(lambda effect=effect: ear.answer(effect))
            wait_for(lambda effect=effect: segment.in_force is (effect is Effect.IN_FORCE))
    assert not segment.in_force  # it is over


@pytest.mark.parametrize("effect", [Effect.UNTOLD, Effect.NOT_IN_FORCE, Effect.NOT_MANAGED, 77])
def test_only_what_the_daemon_calls_in_force_is(ear: Ear, effect: Effect) -> None:
    """UNTOLD is the answer of daemons before 0.5."""
    ear.effect = effect
    started = time.monotonic()
    with runlist.segment(1) as segment:
        assert not segment.in_force
    assert time.monotonic() - started < 20
    ear.managed = False
    with runlist.segment(1) as segment:
        assert not segment.in_force


def test_without_a_daemon_no_segment_is_in_force(short_path: Path) -> None:
    with runlist.segment(1) as segment:
        assert not segment.in_force
        with Ear(short_path / "messages.sock"):
            tenant._tenant._look_at = 0.0
            runlist.hint(0)  # the daemon hears of the segment, too
            wait_for(lambda: segment.in_force)
        runlist.hint(0)  # it is gone
        assert not segment.in_force


def test_a_segment_within_a_segment_is_in_force_for_as_much_as_it_asked(ear: Ear) -> None:
    with runlist.segment(2) as outer:
        with runlist.segment(1) as inner:
            assert inner.in_force
            assert not outer.in_force  # the inner one is what counts now
        wait_for(lambda: outer.in_force)
        with runlist.segment(3):
            assert outer.in_force
        ear.effect = Effect.NOT_IN_FORCE
        with runlist.segment(3) as inner:
            assert not outer.in_force
            assert not inner.in_force


def test_a_late_answer_counts_once_it_is_there(ear: Ear) -> None:
    ear.answers = False
    with runlist.segment(1) as segment:
        assert not segment.in_force
        assert ear.do(lambda: ear.answer(Effect.IN_FORCE))
        wait_for(lambda: segment.in_force)


def test_a_child_is_in_none_of_its_parents_segments(ear: Ear) -> None:
    with runlist.segment(1) as segment:
        child = os.fork()
        if child == 0:
            os._exit(int(segment.in_force))
        assert os.waitpid(child, 0)[1] == 0
        assert segment.in_force


def test_daemons_come_and_go(short_path: Path) -> None:
    with runlist.segment(9):
        for _ in range(2):
            with Ear(short_path / "messages.sock") as ear:
                tenant._tenant._look_at = 0.0
                runlist.report_latency(1e-9)
                assert [ear.said() for _ in range(2)] == [("SEGMENT_BEGIN", 9), ("REPORT_LATENCY", 1)]
            runlist.report_latency(1)


def test_what_one_message_missed_the_next_one_mends(ear: Ear) -> None:
    runlist.hint(0)
    ear.do(lambda: ear.loop.remove_reader(ear.messages._socket))  # a daemon that is stopped
    for _ in range(2000):
        runlist.report_latency(0)
    with runlist.segment(1):
        ear.do(lambda: ear.loop.add_reader(ear.messages._socket, ear.messages._read))
        deadline = time.monotonic() + 60
        while tenant._tenant._link is None or tenant._tenant._link.knows is None:
            runlist.report_latency(0)
            assert time.monotonic() < deadline
    while (said := ear.said())[0] != "SEGMENT_BEGIN":
        pass
    assert said == ("SEGMENT_BEGIN", 1)


def test_threads_have_segments_of_their_own_and_the_highest_holds(ear: Ear) -> None:
    begun, end = threading.Event(), threading.Event()

    def other() -> None:
        with runlist.segment(5):
            begun.set()
            end.wait(60)

    thread = threading.Thread(target=other)
    with runlist.segment(2):
        thread.start()
        assert begun.wait(60)
        with runlist.segment(1):  # less than the other thread's: nothing to say
            pass
        end.set()
        thread.join(60)
    assert [ear.said()[1] for _ in range(4)] == [2, 5, 2, 0]


def test_many_threads_at_once(ear: Ear) -> None:
    def work(priority: int) -> None:
        for _ in range(200):
            with runlist.segment(priority):
                runlist.report_latency(0.001)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert tenant._tenant._open == []
    said: list[tuple[str, int]] = []

    def has_caught_up() -> bool:
        runlist.hint(123e-9)  # which is lost while the queue is full
        with contextlib.suppress(queue.Empty):
            while True:
                said.append(ear.said(0.1))
        return ("HINT", 123) in said

    wait_for(has_caught_up)
    assert [one for one in said if one[0].startswith("SEGMENT")][-1] == ("SEGMENT_END", 0)
    assert not ear.messages.dropped


def test_a_child_of_fork_is_another_process(ear: Ear) -> None:
    with runlist.segment(2):
        child = os.fork()
        if child == 0:
            try:
                with runlist.segment(40):
                    pass
            finally:
                os._exit(0 if tenant._tenant._priority() is None else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    heard = [ear.next() for _ in range(4)]
    assert [one.pid for one in heard] == [os.getpid(), child, child, os.getpid()]
    assert [one.message.priority for one in heard] == [2, 40, 0, 0]


def test_a_child_that_leaves_its_parents_segment_says_nothing(ear: Ear) -> None:
    with runlist.segment(2):
        child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    runlist.hint(0)
    assert [ear.next().pid for _ in range(3)] == [os.getpid()] * 3


def test_a_descriptor_that_was_closed_behind_its_back(ear: Ear) -> None:
    runlist.hint(0)
    link = tenant._tenant._link
    assert link is not None
    number = link._socket.fileno()
    reader, writer = os.pipe()
    os.dup2(reader, number)  # the program's own file by now
    runlist.hint(1)
    assert [ear.said() for _ in range(2)] == [("HINT", 0), ("HINT", 1_000_000_000)]
    os.fstat(number)  # it is left alone
    for fd in (number, reader, writer):
        os.close(fd)


def test_signal_handlers_may_report(ear: Ear) -> None:
    count = 0

    def handler(*_: object) -> None:
        nonlocal count
        runlist.report_latency(1e-9)
        count += 1

    previous = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        while count < 50:
            with runlist.segment(1):
                pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert tenant._tenant._open == []


def test_an_interrupted_beginning_leaves_no_segment(ear: Ear, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(tenant._Link, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt), runlist.segment(1):
        raise AssertionError
    assert tenant._tenant._open == []
    assert [ear.said() for _ in range(2)] == [("SEGMENT_BEGIN", 1), ("SEGMENT_END", 0)]


@pytest.mark.parametrize("variable", [None, "XDG_RUNTIME_DIR", "RUNLIST_SOCKET"])
@pytest.mark.parametrize("driver", [NvidiaDriver(), EmulatedDriver(Path("/gpu"))], ids=lambda driver: driver.name)
@pytest.mark.parametrize("user", [0, 1000])
def test_the_daemon_is_looked_for_where_daemons_hear(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, driver: NvidiaDriver | EmulatedDriver, user: int
) -> None:
    for name in ("RUNLIST_MESSAGES", "XDG_RUNTIME_DIR", "RUNLIST_SOCKET"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, "/somewhere/x.sock")
    monkeypatch.setenv("RUNLIST_DEVICE", driver.name)
    monkeypatch.setenv("RUNLIST_EMULATED_GPU", "/gpu")
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert tenant.candidates() == [
        str(path.with_name(names.MESSAGES_SOCKET)) for path in paths.candidate_sockets(driver)
    ]
    assert tenant.candidates()[0] == str(paths.messages_socket(driver))


def test_importing_runlist_stays_light() -> None:
    code = "import sys, runlist; print(*sys.modules)"
    before = "import sys; print(*sys.modules)"
    loaded = [
        set(
            subprocess.run(
                [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {text}"],
                capture_output=True,
                text=True,
                check=True,
            ).stdout.split()
        )
        for text in (before, code)
    ]
    assert loaded[1] - loaded[0] == {"runlist"}
    with pytest.raises(AttributeError, match="no attribute 'segmnt'"):
        runlist.segmnt  # noqa: B018


def test_a_tenants_process_ends_without_a_word(ear: Ear) -> None:
    code = "import runlist\nwith runlist.segment(1): runlist.report_latency(0.001)"
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout + done.stderr == ""
