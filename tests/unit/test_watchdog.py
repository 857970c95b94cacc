"""Ending calls that take too long, whatever they do to go on."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable

import pytest

from runlist.daemon.gpu import watchdog as watchdog_module
from runlist.daemon.gpu.watchdog import Stalled, Watchdog
from tests.fixtures.scheduler import LIMIT_S, NEVER_S

pytestmark = pytest.mark.timeout(method="thread")  # a watchdog takes SIGALRM for itself


@pytest.fixture
def soon(watchdog: Watchdog) -> Watchdog:
    """One that rings."""
    watchdog._limit_s = LIMIT_S
    return watchdog


def spin() -> None:
    while True:
        pass


def sleep() -> None:
    time.sleep(1000)


def swallow_errors() -> None:
    while True:
        try:
            while True:
                pass
        except Exception:
            continue


def clean_up_for_ever() -> None:
    try:
        spin()
    finally:
        spin()


def recurse_and_spin(depth: int = 100) -> None:
    if depth:
        recurse_and_spin(depth - 1)
    spin()


@pytest.mark.parametrize("function", [spin, sleep, swallow_errors, clean_up_for_ever, recurse_and_spin])
def test_a_call_without_end_is_ended(soon: Watchdog, function: Callable[[], None]) -> None:
    started = time.monotonic()
    with pytest.raises(Stalled, match=r"took longer than 0\.05 s"):
        soon.call(function)
    assert time.monotonic() - started >= LIMIT_S * 0.9


def test_what_a_call_returns_or_raises_comes_through(watchdog: Watchdog) -> None:
    assert watchdog.call(lambda: 42) == 42
    with pytest.raises(ZeroDivisionError):
        watchdog.call(lambda: 1 / 0)
    with pytest.raises(SystemExit):
        watchdog.call(lambda: sys.exit(3))
    assert watchdog.call(lambda: "again") == "again"


def test_a_call_that_ends_all_the_same_has_its_result(soon: Watchdog) -> None:
    def stubborn() -> str:
        try:
            spin()
        except Stalled:
            signal.setitimer(
                signal.ITIMER_REAL, 0
            )  # else it may ring again here, on a machine that has other things to do
            return "came to reason"
        raise AssertionError

    assert soon.call(stubborn) == "came to reason"


def test_after_a_call_nothing_rings(soon: Watchdog) -> None:
    soon.call(lambda: None)
    with pytest.raises(Stalled):
        soon.call(spin)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    time.sleep(3 * LIMIT_S)


def test_a_limit_of_its_own(soon: Watchdog) -> None:
    soon.call(lambda: time.sleep(2 * LIMIT_S), NEVER_S)
    with pytest.raises(Stalled, match=r"took longer than 0\.01 s"):
        soon.call(spin, 0.01)
    with pytest.raises(Stalled, match=r"took longer than 0\.05 s"):
        soon.call(spin)


def test_a_call_is_not_blamed_for_time_in_which_it_has_no_processor(
    soon: Watchdog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy would be dropped for the default one since the machine is busy."""
    monkeypatch.setattr(watchdog_module, "without_processor_s", lambda _: time.monotonic())
    soon.call(lambda: time.sleep(6 * LIMIT_S))


def test_calls_that_end_when_it_rings_do_no_harm(watchdog: Watchdog) -> None:
    """Either a result or Stalled, and never anything afterwards."""
    chance = random.Random(3)
    limit_s = 0.001

    def busy_until(end: float) -> float:
        while time.perf_counter() < end:
            pass
        return end

    for _ in range(500):
        end = time.perf_counter() + limit_s * chance.uniform(0.9, 1.1)
        try:
            result = watchdog.call(lambda end=end: busy_until(end), limit_s)  # type: ignore[misc]
        except Stalled:
            continue
        assert result == end


def test_what_rings_just_before_or_after_a_call_does_no_harm(soon: Watchdog, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it does on a machine that has other things to do: nothing but the call is cut short."""
    set_timer = signal.setitimer

    def late(which: int, *seconds: float) -> None:
        signal.raise_signal(signal.SIGALRM)
        set_timer(which, *seconds)
        signal.raise_signal(signal.SIGALRM)

    monkeypatch.setattr(signal, "setitimer", late)
    assert soon.call(lambda: 42) == 42
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    with pytest.raises(Stalled):
        soon.call(spin)


@pytest.mark.parametrize("standard_error", [os.devnull, "/dev/full"])
def test_one_that_cannot_be_ended_ends_with_the_process(standard_error: str) -> None:
    child = os.fork()
    if child == 0:
        os.dup2(os.open(standard_error, os.O_WRONLY), 2)
        resource.setrlimit(resource.RLIMIT_CPU, (5, 5))
        watchdog = Watchdog(0.001)
        while True:  # it takes no notice nearly everywhere: a ring may come where it does
            with contextlib.suppress(Stalled):
                watchdog.call(take_no_notice)
                os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def take_no_notice() -> None:
    while True:
        with contextlib.suppress(BaseException):
            spin()


def test_a_call_that_goes_on_after_twenty_signals_ends_the_daemon_and_each_call_begins_anew(
    watchdog: Watchdog, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def ends(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", ends)
    monkeypatch.setattr(Watchdog, "_has_had_its_time", lambda _: True)

    def rings(times: int) -> int:
        taken = 0
        for _ in range(times):
            with contextlib.suppress(Stalled):
                watchdog._ring(signal.SIGALRM, sys._getframe())
            taken += 1
        return taken

    for _ in range(2):
        assert watchdog.call(lambda: rings(20), 60.0) == 20
    assert capfd.readouterr().err == ""
    with pytest.raises(SystemExit) as ended:
        watchdog.call(lambda: rings(21), 60.0)
    assert ended.value.code == 1
    assert "takes no notice of being stopped: the daemon ends" in capfd.readouterr().err
