"""What is remembered of those that are away: a user who names groups on and on fills no memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runlist.model import Task, TaskClass, TaskKey
from runlist.policies.parts.remembered import remembered
from runlist.policies.parts.slices import WeightedSlices
from runlist.policies.parts.turns import WeightedTurns

MOST = 1024


def test_those_that_are_long_gone_are_forgotten() -> None:
    assert remembered({"a": 1.0, "b": 5.0}, float, 10.0, 6.0) == {"b": 5.0}


@pytest.mark.parametrize(("count", "kept"), [(MOST, MOST), (MOST + 1, MOST // 2)])
def test_of_too_many_the_latest_are_remembered(count: int, kept: int) -> None:
    records = {number: float(number) for number in range(count)}
    assert list(remembered(records, float, count + 1.0, 1e9)) == list(range(count - kept, count))


def test_those_that_are_there_are_all_remembered() -> None:
    now = dict.fromkeys(range(2 * MOST), 7.0)
    assert remembered({-1: 6.0, **now}, float, 7.0, 30.0) == now


def tasks(number: int) -> list[Task]:
    both = [Task(TaskKey(pid, "GPU-0"), TaskClass.BATCH, "x", 1000, 0.0, group=f"g{pid}") for pid in (1, 2)]
    return [both[0], replace(both[1], group=f"another {number}")]


def test_groups_that_come_and_go_fill_no_memory() -> None:
    slices, turns = WeightedSlices(), WeightedTurns(0.1)
    for number in range(3 * MOST):
        both = tasks(number)
        now = 100.0 + number / 1e4
        slices.slices(both, both, now)
        turns.shares(both, both, now)
        for groups in (slices._groups, turns._groups):
            assert len(groups) <= MOST + 3
            assert {"g1", f"another {number}"} <= groups.keys()
    assert turns._members.keys() == {task.key for task in both}
