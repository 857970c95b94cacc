"""Lines that a user can cause are limited, counted, and said."""

from __future__ import annotations

import os
from typing import Any

import pytest
import structlog

from runlist import log_limit
from runlist.log_limit import BURST, LogLimit


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which a test sets."""
    now = [1000.0]
    monkeypatch.setattr(log_limit.time, "monotonic", lambda: now[0])
    return now


def passing(processor: LogLimit, count: int, **event: Any) -> int:
    passed = 0
    for _ in range(count):
        try:
            processor(None, "warning", {"event": "a client broke the protocol", **event})
        except structlog.DropEvent:
            continue
        passed += 1
    return passed


def said(limit: LogLimit) -> list[dict[str, Any]]:
    with structlog.testing.capture_logs() as lines:
        limit.say_left_out()
    return [{key: line[key] for key in ("count", "user", "line") if key in line} for line in lines]


def test_one_user_does_not_take_anothers_lines(clock: list[float]) -> None:
    limit = LogLimit()
    assert passing(limit, 20_000, user=1) == BURST
    assert passing(limit, 10, user=2) == 10
    assert passing(limit, 10) == 10
    assert said(limit) == [{"count": 20_000 - BURST, "user": 1}]
    assert said(limit) == []


def test_with_time_there_are_lines_again(clock: list[float]) -> None:
    limit = LogLimit()
    passing(limit, 1000, user=1)
    clock[0] += 5
    assert passing(limit, 1000, user=1) == 10
    clock[0] += 3600
    assert said(limit) == [{"count": 1000 - BURST + 990, "user": 1}]
    clock[0] += 3600
    assert passing(limit, 1000, user=1) == BURST


def test_a_process_stands_for_its_user_and_the_daemons_own_lines_for_themselves(clock: list[float]) -> None:
    limit = LogLimit()
    assert passing(limit, 1000, pid=os.getpid()) == BURST
    assert passing(limit, 1000, user=os.getuid()) == 0
    assert passing(limit, 1000) == BURST
    assert [set(line) for line in said(limit)] == [{"count", "user"}, {"count", "line"}]


def test_what_is_said_of_others_lines_is_not_limited(clock: list[float]) -> None:
    limit = LogLimit()
    passing(limit, 1000)
    assert passing(limit, 10, limit=False) == 10


def test_lines_about_one_thing_count_together_whatever_they_say(clock: list[float]) -> None:
    limit = LogLimit()
    assert sum(passing(limit, 1, event=f"pod a: {number}", about="pod a") for number in range(1000)) == BURST
    assert passing(limit, 1, event="pod b: 1", about="pod b") == 1
    assert said(limit) == [{"count": 1000 - BURST, "line": "pod a"}]


def test_what_a_line_is_about_is_no_part_of_it(clock: list[float]) -> None:
    assert LogLimit()(None, "warning", {"event": "x", "about": "y"}) == {"event": "x"}
