"""The workloads' parts that need no GPU."""

from __future__ import annotations

import argparse
import io
import itertools
import json
import math
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import runlist
from runlist.workloads import lcg, options, protocol
from runlist.workloads.loops import BurstLoop, RequestLoop
from runlist.workloads.process import WorkloadError, WorkloadProcess
from runlist.workloads.timed import TimedLoop


@given(x=st.integers(0, 0xFFFFFFFF), rounds=st.integers(0, 300))
def test_a_jump_is_as_many_steps(x: int, rounds: int) -> None:
    stepped = x
    for _ in range(rounds):
        stepped = (stepped * lcg.MULTIPLIER + lcg.INCREMENT) & lcg.MASK
    a, c = lcg.jump(rounds)
    assert (x * a + c) & lcg.MASK == stepped


@given(first=st.integers(0, 10**12), second=st.integers(0, 10**12))
def test_jumps_add_up(first: int, second: int) -> None:
    (a, c), (b, d) = lcg.jump(first), lcg.jump(second)
    assert lcg.jump(first + second) == (a * b & lcg.MASK, (c * b + d) & lcg.MASK)


def test_advanced_starts_from_initial() -> None:
    assert lcg.advanced(1000, 0) == lcg.initial(1000)
    assert lcg.advanced(3, 1)[2] == (2 * lcg.MULTIPLIER + lcg.INCREMENT) & lcg.MASK


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "", "three"])
def test_lengths_must_be_positive(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        options.positive(text)


@pytest.mark.parametrize("text", ["0", "0.001", "1e10", "nan", "soon"])
def test_times_between_arrivals_are_those_of_the_generator(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        options.period_ms(text)
    for least_or_most in ("0.01", "1e9"):
        RequestLoop(lambda _: 0.0, options.period_ms(least_or_most) / 1e3, jitter=0.5).resume()


def test_counts_must_be_whole() -> None:
    assert options.positive_int("3") == 3
    with pytest.raises(argparse.ArgumentTypeError):
        options.positive_int("3.5")


class Recorder(protocol.Workload):
    """Takes 1 ms a step and counts."""

    def __init__(self) -> None:
        self.steps = 0
        self.resumed = 0
        self.rate = 0.0

    def due(self) -> float:
        return 0.0

    def step(self) -> None:
        time.sleep(0.001)
        self.steps += 1

    def resume(self) -> None:
        self.resumed += 1

    def set_rate(self, per_second: float) -> None:
        self.rate = per_second

    def begin_window(self) -> None:
        self.steps = 0

    def window(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def finish(self) -> dict[str, Any]:
        return {"correct": True}


class Conversation:
    """A server in a thread, and the two ends of its pipes."""

    def __init__(self, workload: protocol.Workload) -> None:
        (their_in, my_out), (my_in, their_out) = os.pipe(), os.pipe()
        self._commands, self._events = os.fdopen(my_out, "w"), os.fdopen(my_in)
        source, sink = os.fdopen(their_in), os.fdopen(their_out, "w")
        self._thread = threading.Thread(target=protocol.Server(workload, source, sink).serve)
        self._thread.start()

    def say(self, command: str) -> dict[str, Any]:
        self._commands.write(command + "\n")
        self._commands.flush()
        return json.loads(self._events.readline())

    def close(self) -> None:
        self._commands.close()
        self._thread.join(10)
        assert not self._thread.is_alive()


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def talk(recorder: Recorder):
    conversation = Conversation(recorder)
    yield conversation.say
    conversation.close()


Say = Callable[[str], dict[str, Any]]


def test_a_workload_is_idle_until_told_to_run(talk: Say, recorder: Recorder) -> None:
    assert talk("start") == {"event": "started"}
    time.sleep(0.02)
    assert talk("stop")["steps"] == 0
    assert recorder.resumed == 0


def test_windows_while_running_count_only_their_own_steps(talk: Say) -> None:
    assert talk("run") == {"event": "running"}
    for _ in range(2):
        talk("start")
        time.sleep(0.05)
        window = talk("stop")
        assert 1 <= window["steps"] <= window["seconds"] / 0.001


def test_pause_stops_the_work_until_the_next_run(talk: Say, recorder: Recorder) -> None:
    talk("run")
    talk("run")
    assert talk("pause") == {"event": "paused"}
    steps = recorder.steps
    time.sleep(0.02)
    assert recorder.steps == steps
    talk("run")
    assert recorder.resumed == 2


def test_nonsense_is_answered_and_survived(talk: Say) -> None:
    assert "fly" in talk("fly")["message"]
    assert talk("stop")["event"] == "error"
    assert talk("run")["event"] == "running"


def test_a_rate_goes_to_the_workload(talk: Say, recorder: Recorder) -> None:
    assert talk("rate 2.5") == {"event": "rate", "per_second": 2.5}
    assert recorder.rate == 2.5
    for nonsense in ("rate", "rate ", "rate x", "rate 1 2"):
        assert talk(nonsense)["event"] == "error"


def test_a_workload_without_arrivals_says_so() -> None:
    loop = BurstLoop(lambda: None, kernels=4, correct=lambda: True)
    conversation = Conversation(loop)
    assert "no requests arrive" in conversation.say("rate 5")["message"]
    conversation.close()


def test_quit_gives_the_last_figures(recorder: Recorder) -> None:
    conversation = Conversation(recorder)
    assert conversation.say("quit") == {"event": "end", "correct": True}
    conversation.close()


def test_measure_once_prints_a_window_and_the_end(recorder: Recorder) -> None:
    sink = io.StringIO()
    protocol.measure_once(recorder, 0.02, sink)
    window, end = (json.loads(line) for line in sink.getvalue().splitlines())
    assert window["event"] == "window"
    assert window["steps"] >= 1
    assert end == {"event": "end", "correct": True}


def test_a_terminal_is_not_flooded_by_latencies(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = {"latency_us": [3.0, 1.0, 2.0], "busy_s": [], "steps": 3}
    monkeypatch.setattr(recorder, "window", lambda: samples)
    for terminal, shown in (
        (True, {"latency_us": {"count": 3, "p50": 2.0, "p99": 3.0}, "busy_s": {"count": 0}, "steps": 3}),
        (False, samples),
    ):
        sink = io.StringIO()
        monkeypatch.setattr(sink, "isatty", lambda terminal=terminal: terminal)
        protocol.measure_once(recorder, 0.001, sink)
        window = json.loads(sink.getvalue().splitlines()[0])
        assert {name: window[name] for name in samples} == shown


def test_requests_that_are_late_do_not_move_the_schedule() -> None:
    def slow(_arrival: float) -> float:
        time.sleep(0.01)
        return time.perf_counter() - 0.001

    loop = RequestLoop(slow, period_s=0.002)
    loop.resume()
    first = loop.due()
    for _ in range(3):
        loop.step()
    assert loop.due() == pytest.approx(first + 3 * 0.002)
    window = loop.window()
    assert len(window["latency_us"]) == len(window["response_us"]) == 3
    assert window["response_us"][2] > window["response_us"][0]  # the backlog shows in the response, not in the latency


def test_a_closed_loop_waits_from_the_end_of_a_request() -> None:
    loop = RequestLoop(lambda _: time.perf_counter(), period_s=100.0, closed=True)
    loop.resume()
    loop.step()
    assert loop.due() - time.perf_counter() == pytest.approx(100.0, abs=1.0)


def test_a_lead_begins_a_request_early() -> None:
    loop = RequestLoop(lambda _: 0.0, period_s=10.0, lead_s=2.0)
    loop.resume()
    assert loop.due() - time.perf_counter() == pytest.approx(8.0, abs=1.0)


def test_a_rate_replaces_the_period_and_starts_the_schedule_again() -> None:
    loop = RequestLoop(lambda _: time.perf_counter(), period_s=1000.0)
    loop.resume()
    loop.set_rate(0.1)
    assert loop.due() - time.perf_counter() == pytest.approx(10.0, abs=1.0)


@pytest.mark.parametrize("rate", [0.0, -1.0, 2e5, float("inf"), float("nan")])
def test_a_rate_is_a_number_above_0(rate: float) -> None:
    loop = RequestLoop(lambda _: time.perf_counter(), period_s=1.0)
    with pytest.raises(ValueError, match="a rate is a number above 0"):
        loop.set_rate(rate)


def test_poisson_arrivals_have_the_mean_and_repeat_themselves() -> None:
    def gaps() -> list[float]:
        loop = RequestLoop(lambda _: time.perf_counter(), period_s=0.002, poisson=True)
        loop.resume()
        times = []
        for _ in range(2000):
            times.append(loop.due())
            loop.step()
        return [after - before for before, after in itertools.pairwise(times)]

    first, again = gaps(), gaps()
    assert first == pytest.approx(again, abs=1e-9)
    assert sum(first) / len(first) == pytest.approx(0.002, rel=0.1)
    assert sum(gap > 0.002 for gap in first) / len(first) == pytest.approx(math.exp(-1), abs=0.05)


def test_jittered_arrivals_keep_their_rate_and_are_the_same_each_time() -> None:
    loop = RequestLoop(lambda _: time.perf_counter(), period_s=0.01, jitter=0.5)

    def arrivals() -> list[float]:
        loop.resume()
        began = loop.due() - 0.01  # but for the first one's jitter
        times = []
        for _ in range(200):
            times.append(loop.due() - began)
            loop.step()
        return times

    first, again = arrivals(), arrivals()
    assert first == pytest.approx(again, abs=1e-9)
    late = [time - first[0] - 0.01 * place for place, time in enumerate(first)]
    assert max(late) - min(late) <= 0.005  # none strays from its place by more than half a period
    assert max(late) - min(late) > 0.004


def test_who_is_woken_late_says_so_and_who_is_busy_is_not_woken() -> None:
    ended: list[float] = []

    def late(arrival: float) -> float:
        began = max(time.perf_counter(), arrival + 0.004)
        while time.perf_counter() < began + 0.012:
            pass
        ended.append(time.perf_counter())
        return began

    loop = RequestLoop(late, period_s=0.01)
    loop.resume()
    loop.step()
    loop.step()  # it arrived while the first was under way
    first, second = loop.window()["wake_us"]
    assert first > 3999
    assert second == 0


def test_every_request_is_reported_from_its_arrival_on() -> None:
    reported: list[float] = []
    loop = RequestLoop(lambda _: time.perf_counter(), period_s=0.001, report=reported.append)
    loop.resume()
    loop.step()
    loop.step()
    assert [seconds * 1e6 for seconds in reported] == pytest.approx(loop.window()["response_us"])


def test_without_the_option_nothing_is_reported() -> None:
    assert options.reporter(False) is None
    assert options.reporter(True) is runlist.report_latency


def test_a_burst_that_is_timed_is_told_with_its_window() -> None:
    loop = TimedLoop(lambda: loop.busy_s.append(0.5), 3, lambda: True)
    loop.step()
    assert loop.window() == {"kernels": 3, "busy_s": [0.5]}
    loop.begin_window()
    assert loop.window() == {"kernels": 0, "busy_s": []}


def test_a_window_is_not_emptied_by_the_next_one() -> None:
    loop = RequestLoop(lambda _: time.perf_counter(), period_s=1.0)
    loop.step()
    window = loop.window()
    loop.begin_window()
    assert len(window["latency_us"]) == 1
    assert loop.window()["latency_us"] == []


def test_bursts_count_kernels() -> None:
    loop = BurstLoop(lambda: None, kernels=4, correct=lambda: False)
    loop.step()
    loop.step()
    assert loop.window() == {"kernels": 8}
    assert loop.finish() == {"correct": False}


def test_a_workload_that_dies_at_once_says_why() -> None:
    with pytest.raises(WorkloadError, match=r"latency ended early.*latency: ") as caught:
        WorkloadProcess("latency", "--gpu", "99")
    assert "\n" not in str(caught.value)


def test_bad_arguments_of_a_workload_are_one_line() -> None:
    with pytest.raises(WorkloadError, match="'x' is not a number above 0"):
        WorkloadProcess("batch", "--kernel-ms", "x")
