"""What there is once for all: one user's segments and hints leave others theirs, however many processes it has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runlist.model import Hint, Segment, TaskKey
from runlist.policies.parts.hints import Hints
from runlist.policies.parts.segments import Segments
from tests.unit.test_policies_parts import BURST_S, KEY, OTHER, task

BOB, MALLORY = {"owned_by": (1001, "")}, {"owned_by": (1002, "")}


@pytest.mark.parametrize("crowd", [1, 5])
def test_hints_of_one_user_leave_others_theirs(crowd: int) -> None:
    """Mallory's processes hint without end, and are late or never come."""
    hints, theirs = Hints(), [TaskKey(100 + each, "GPU-0") for each in range(crowd)]
    tasks = {KEY: task(**BOB)} | {key: task(key, **MALLORY) for key in theirs}
    made_room, off = 0, 0
    for step in range(5_000):
        now = 1.0 + step * 1e-3
        if step % 4 == 0:
            hints.note(Hint(theirs[step // 4 % crowd], 0.0), now)
        if step % 100 == 0:
            hints.note(Hint(KEY, 0.01), now)
        off += hints.off_until(tasks, now)[0] is not None
        made_room += step % 100 == 10 and KEY in hints.wanting()
    assert made_room == 50
    assert off <= 2_500 + 50


def test_who_hints_alone_again_has_all_of_it_again() -> None:
    hints, now = Hints(), 1.0
    both = {KEY: task(**BOB), OTHER: task(OTHER, **MALLORY)}
    hints.note(Hint(OTHER, 0.0), now)
    hints.off_until(both, now)
    hints.drop(OTHER)
    now = 12.0
    hints.off_until(both, now)
    for _ in range(round(BURST_S * 1e3)):
        hints.note(Hint(KEY, 0.0), now)
        assert hints.off_until(both, now)[0] is not None
        now += 0.001


@pytest.mark.parametrize(("priority", "crowd"), [(1, 1), (9, 1), (9, 5)])
def test_segments_of_one_user_leave_others_theirs(priority: int, crowd: int) -> None:
    """Mallory's processes are in segments without end; Bob's has one of 10 ms ten times a second."""
    segments, theirs = Segments(1.0), [TaskKey(100 + each, "GPU-0") for each in range(crowd)]
    in_force = off = 0
    for step in range(5_000):
        now = 1.0 + step * 1e-3
        if step % 50 == 0:
            for key in theirs:
                segments.note(Segment(key, priority), now)
        mine = 5 if step % 100 < 10 else None
        if step % 100 in (0, 10):
            segments.note(Segment(KEY, mine), now)
        tasks = [task(segment=mine, **BOB), *(task(key, segment=priority, **MALLORY) for key in theirs)]
        foremost = segments.foremost([*tasks, task(OTHER)], (), now)
        in_force += mine is not None and KEY in foremost.tasks
        off += bool(foremost.tasks)
    assert in_force > 0.5 * 500
    assert off <= 0.8 * 5_000 + 1_000


def test_what_a_user_has_not_used_of_its_segments_is_there_though_others_used_theirs() -> None:
    segments = Segments(1.0)
    tasks = [task(**BOB), task(OTHER, segment=1, **MALLORY), task(TaskKey(3, "GPU-0"))]
    for step in range(3_000):
        if step % 500 == 0:
            segments.note(Segment(OTHER, 1), 1.0 + step * 1e-3)
        segments.foremost(tasks, (), 1.0 + step * 1e-3)
    tasks[0] = task(segment=0, **BOB)
    segments.note(Segment(KEY, 0), 4.0)
    assert KEY in segments.foremost([tasks[0], replace(tasks[1], segment=None), tasks[2]], (), 4.0).tasks
