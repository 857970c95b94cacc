"""The benchmarks' own arithmetic: what is read off a switch log, and figures against their targets."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping
from typing import Any, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.benchmarks import give_way
from bench.harness import jobs
from bench.harness.figures import AT_LEAST, AT_MOST, Figure
from bench.harness.gpu_log import Span, points, worst_points
from runlist.planes.usage import Residency

MS = 1_000_000
S = 1000 * MS


def span(*turns: tuple[int, int, int], end: int = 100) -> Span:
    """A span of `end` ms with turns (pid, first ms, last ms)."""
    return Span(0, end * MS, [Residency(pid, 1, start * MS, stop * MS) for pid, start, stop in turns])


def test_what_is_held_is_a_part_of_all_time_and_shares_a_part_of_what_was_held() -> None:
    seen = span((1, 0, 30), (2, 40, 50))
    assert seen.held(1) == 0.3
    assert seen.shares([1, 2]) == pytest.approx([0.75, 0.25])
    assert seen.shares([3, 4]) == [0.0, 0.0]


def test_turns_that_reach_out_of_a_span_count_as_far_as_they_are_in_it() -> None:
    assert span((1, -20, 30), (1, 90, 130)).held(1) == pytest.approx(0.4)
    assert span((1, 0, 60)).part(0.02, 0.04).held(1) == 1.0
    assert span((1, 0, 60)).part(0.05).held(1) == pytest.approx(0.2)


def test_a_turn_told_in_parts_is_no_switch() -> None:
    assert span((1, 0, 10), (1, 10, 20), (2, 21, 30), (1, 31, 40)).switches() == 2


def test_windows_are_whole_and_follow_each_other() -> None:
    windows = span((1, 0, 40), end=105).windows(0.02)
    assert [window.start_ns // MS for window in windows] == [0, 20, 40, 60, 80]
    assert [window.held(1) for window in windows] == [1.0, 1.0, 0.0, 0.0, 0.0]


@given(
    cuts=st.lists(st.integers(0, 1000), min_size=2, max_size=40, unique=True).map(sorted),
    length=st.sampled_from([0.05, 0.1, 0.25, 0.5]),
)
def test_windows_add_up_to_the_span(cuts: list[int], length: float) -> None:
    whole = span(*((index % 3, start, end) for index, (start, end) in enumerate(itertools.pairwise(cuts))),
                 end=1000)  # fmt: skip
    windows = whole.windows(length)
    for pid in range(3):
        assert sum(window.held(pid) for window in windows) / len(windows) == pytest.approx(whole.held(pid))


def test_the_worst_of_all_shares_in_all_windows_counts() -> None:
    windows = span((1, 0, 10), (2, 10, 20), (1, 20, 36), (2, 36, 40), end=40).windows(0.02)
    assert points(windows[0].shares([1, 2]), [0.5, 0.5]) == 0
    assert worst_points(windows, [1, 2], [0.5, 0.5]) == pytest.approx(30)


@pytest.mark.parametrize(
    ("figure", "met", "verdict", "aim"),
    [
        (Figure("a", 1.0, AT_MOST, 1.0, "ms"), True, "met", "≤ 1 ms"),
        (Figure("a", 1.1, AT_MOST, 1.0), False, "MISSED", "≤ 1"),
        (Figure("a", 0.9, AT_LEAST, 0.95), False, "MISSED", "≥ 0.95"),
        (Figure("a", 3.0), None, "", "none"),
    ],
)
def test_a_figure_is_judged_by_its_target(figure: Figure, met: bool | None, verdict: str, aim: str) -> None:
    assert (figure.met, figure.verdict, figure.aim) == (met, verdict, aim)


class Program:
    """Stands for a WorkloadProcess."""

    def __init__(self, name: str, pid: int, log: list[str]) -> None:
        self.name, self.pid, self.log = name, pid, log

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.log.append(f"{self.name} ends")


def test_what_was_started_ends_though_another_did_not_start() -> None:
    log: list[str] = []

    def fail() -> Any:
        raise RuntimeError("no GPU")

    starts: list[Any] = [lambda: Program("a", 1, log), fail, lambda: Program("b", 2, log)]
    with pytest.raises(RuntimeError, match="no GPU"), contextlib.ExitStack() as stack:
        jobs.start(stack, starts)
    assert sorted(log) == ["a ends", "b ends"]


class FakeClient:
    """Manages what it is told to, but refuses `refused`."""

    def __init__(self, refused: int | None = None) -> None:
        self.there: dict[int, Mapping[str, str]] = {}
        self.refused = refused

    def attach(self, pid: int, task_class: str | None, settings: Mapping[str, str]) -> None:
        assert task_class is None
        if pid == self.refused:
            raise RuntimeError("refused")
        self.there[pid] = settings

    def ps(self) -> list[Any]:
        return [Program("task", pid, []) for pid in self.there]

    def detach(self, pid: int) -> None:
        del self.there[pid]


def test_all_that_was_managed_is_put_back_whatever_happens() -> None:
    programs: list[Any] = [Program("a", 1, []), Program("b", 2, [])]
    client: Any = FakeClient()
    with jobs.managed(client, dict.fromkeys(programs, jobs.BATCH)):
        assert client.there == {1: {"class": "batch"}, 2: {"class": "batch"}}
    assert client.there == {}
    refusing: Any = FakeClient(refused=2)
    with pytest.raises(RuntimeError, match="refused"), jobs.managed(refusing, dict.fromkeys(programs, jobs.BATCH)):
        pytest.fail("not reached")
    assert refusing.there == {}


def test_a_launch_goes_with_the_first_control_behind_it() -> None:
    controls = [(9.0, 9.1), (1.0002, 1.0012), (1.005, 1.006), (3.1, 3.2)]
    assert give_way.matched([1.0, 2.0, 3.0], controls) == [(pytest.approx(0.0002), pytest.approx(0.001))]
