"""How figures of a task are written for people."""

from __future__ import annotations

import os
import pwd

import pytest

from runlist.text import printable
from runlist.units import duration, size
from runlist.views.columns import COLUMNS, chosen, columns_of, percent, sparkline, state, user_name
from tests.fixtures.fake_daemon import view


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (0, "0 µs"), (0.5, "0.5 µs"), (1, "1 µs"), (999, "999 µs"), (1500, "1.5 ms"), (20_000, "20 ms"),
        (1_000_000, "1 s"), (60_000_000, "60 s"), (1234.5678, "1.235 ms"),
    ],
)  # fmt: skip
def test_times(microseconds: float, text: str) -> None:
    assert duration(microseconds) == text


@pytest.mark.parametrize(
    ("octets", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (600 << 20, "600.0 MiB"), (3 << 29, "1.5 GiB")],
)
def test_sizes(octets: int, text: str) -> None:
    assert size(octets) == text


def test_percent() -> None:
    assert [percent(share) for share in (0, 0.1234, 1)] == ["0.0 %", "12.3 %", "100.0 %"]


@pytest.mark.parametrize(
    ("history", "text"),
    [
        ([], "    "),
        ([1.0], "   ▄"),
        ([0.0] * 6 + [1.0, 1.0], "   █"),
        ([1.0] * 8, "████"),
        ([1.0] * 20, "████"),
        ([0.0] * 6 + [0.001, 0.0], "   ▁"),
        ([0.0] * 6 + [2.0, 2.0], "   █"),
        ([0.0] * 6 + [-1.0, 0.0], "    "),
    ],
)
def test_a_sparkline_ends_with_the_newest(history: list[float], text: str) -> None:
    assert sparkline(history, bars=4, per_bar=2) == text


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({}, "enabled"),
        ({"why": "alone"}, "enabled"),
        ({"enabled": False}, "waiting"),
        ({"enabled": False, "why": "cap 30 %: waits 12 ms for its next period"}, "waiting (cap 30 %)"),
        ({"enabled": False, "why": "kept off by a request"}, "waiting (kept off by a request)"),
        ({"enabled": False, "why": "said that it was busy, and"}, "waiting (said that it was busy)"),
        ({"enabled": False, "why": "waits for the GPU of another"}, "waiting (waits for the GPU of…)"),
        ({"enabled": False, "why": "x" * 99}, f"waiting ({'x' * 21}…)"),
        ({"enabled": False, "suspended": True, "why": "cap 30 %"}, "suspended"),
        ({"reached_by": ""}, "out of reach"),
    ],
)
def test_states(values: dict[str, object], text: str) -> None:
    assert state(view(**values)) == text


def test_users_have_names_where_there_are_names() -> None:
    assert user_name(os.getuid()) == pwd.getpwuid(os.getuid()).pw_name
    assert user_name(3_999_999_999) == "3999999999"


def test_printable() -> None:
    assert printable("naïve\t\x1b]0;x\x07") == "naïve??]0;x?"


@pytest.mark.parametrize(
    ("title", "values", "text"),
    [
        ("SLICE", {"timeslice_us": None}, "default"),
        ("CAP", {"cap_percent": 12.5}, "12.5 %"),
        ("P99", {"target_p99_us": 5000.0}, "- of 5 ms"),
        ("SHARE", {"usage_source": ""}, "-"),
        ("TURNS/S", {"turns_per_s": 19.6}, "20"),
        ("GPU", {}, "4e3db026"),
        ("MEMORY", {"memory_bytes": 0}, "0 B"),
        ("QUOTA", {}, "-"),
        ("QUOTA", {"memory_limit_bytes": 8 << 30, "enforcement": "memory, queries"}, "3.0/8.0G"),
        ("QUOTA", {"memory_limit_bytes": 8 << 30, "enforcement": "memory (by the driver)"}, "3.0/8.0G"),
        ("QUOTA", {"memory_limit_bytes": 8 << 30, "enforcement": "not loaded: x"}, "3.0/8.0G (not loaded)"),
        ("QUOTA", {"memory_limit_bytes": 1 << 30, "memory_bytes": None, "enforcement": "memory"}, "0.0/1.0G"),
        ("OVERHEAD", {"memory_overhead_bytes": 518 << 20}, "518.0 MiB"),
        ("ENFORCED", {"enforcement": "not loaded: \x1b"}, "not loaded: ?"),
        ("CAP BY", {"cap_by": "process"}, "process"),
        ("REACHED BY", {"reached_by": ""}, "-"),
        ("SOURCE", {"usage_source": ""}, "-"),
    ],
)
def test_columns(title: str, values: dict[str, object], text: str) -> None:
    assert COLUMNS[title].text(view(**values)) == text


def test_every_column_that_may_be_left_out_is_for_a_usual_task() -> None:
    shown = {column.title for column in chosen(COLUMNS.values(), [view()])}
    assert {title for title, column in COLUMNS.items() if column.usual is not None}.isdisjoint(shown)
    assert chosen(columns_of("PID", "CAP"), []) == [COLUMNS["PID"]]
