"""Announcements of many tasks and users: who is listened to, and what is kept of who comes and goes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runlist.model import Activity, Announce, TaskKey
from runlist.policies.parts.announcements import Announcements
from tests.unit.test_policies_small_parts import KEY, OTHER, Announcing, task


def announce_often(part: Announcements, key: TaskKey, times: int, now: float) -> None:
    for _ in range(times):
        part.note(Announce(key, 0.0), now)
        part.worked(key)  # each was right


@pytest.mark.parametrize(("times", "heard"), [(125, True), (126, False)])
def test_so_many_right_ones_a_second_are_worth_it(times: int, heard: bool) -> None:
    """They may take a fifth of the time, each 1.6 ms."""
    one = Announcing()
    announce_often(one.part, KEY, times, 10.0)
    assert (KEY in one.part.heard([KEY], 10.0)) is heard
    assert KEY in one.part.heard([KEY], 20.0)  # after ten seconds they are tried again


def test_one_word_that_took_the_whole_budget_is_told_of() -> None:
    """As where the daemon is late: nobody else says why the next ones do not count."""
    one = Announcing()
    one.part.note(Announce(KEY, 0.0), 10.0)
    one.part.off_until({KEY: task(KEY)}, 10.0)
    assert one.part.why(KEY) == ""
    one.part.off_until({KEY: task(KEY)}, 11.0)
    assert one.part.heard([KEY], 11.0) == frozenset()
    assert one.part.why(KEY) == "its announcements are ignored: 1 of 1 were wrong"


def test_who_has_less_than_its_part_of_them_is_listened_to() -> None:
    one = Announcing()
    one.part.appears(task(OTHER, uid=2000))
    announce_often(one.part, OTHER, 40, 10.0)
    announce_often(one.part, KEY, 100, 10.0)
    assert one.part.heard([KEY, OTHER], 10.0) == {OTHER}


def test_a_user_with_many_tasks_that_are_wrong_leaves_others_their_part_of_what_wrong_words_may_take() -> None:
    """All were wrong once, and owe as much: Mallory with twenty processes is no more than Bob with one."""
    one = Announcing()
    crowd = [TaskKey(pid, "GPU-0") for pid in range(20, 40)]
    tasks = {KEY: task(KEY, uid=1001)} | {key: task(key, uid=1002) for key in crowd}
    for key, each in tasks.items():
        one.part.appears(each)
        one.part.note(Announce(key, 0.0), 10.0)
    one.part.off_until(tasks, 10.0)
    one.part.off_until(tasks, 10.1)
    assert not one.part.heard(tasks, 10.1)
    assert one.part.heard(tasks, 10.1 + 2 * 0.2 / 0.02) >= {KEY}  # each of the two owners has half of 2 %


def test_of_users_without_tasks_no_rest_is_remembered_once_it_is_over() -> None:
    one = Announcing()
    announce_often(one.part, KEY, 126, 10.0)
    one.part.drop(KEY, 10.5)
    one.part.appears(task(OTHER, uid=2000))
    announce_often(one.part, OTHER, 1, 15.0)
    assert set(one.part._standing._owners) == {(1000, ""), (2000, "")}
    announce_often(one.part, OTHER, 1, 25.0)
    assert set(one.part._standing._owners) == {(2000, "")}


def test_nothing_is_kept_of_those_that_come_and_go() -> None:
    """Of containers that each had a task, which was listened to, or said something that was right or wrong."""
    one = Announcing()
    for number in range(100, 2_100):
        now = 10.0 + number
        each = task(TaskKey(number, "GPU-0"), owned_by=(0, f"container {number}"))
        one.part.appears(each)
        one.part.heard([each.key], now)
        if number % 2:
            one.part.note(Announce(each.key, 0.0), now)
            one.part.off_until({each.key: each}, now)
        one.part.drop(each.key, now + 0.001)
    standing = one.part._standing
    assert (len(standing._speakers), len(one.part._pending), len(one.part._settled)) == (1, 0, 0)
    assert len(standing._owners) <= 4


@given(st.lists(st.tuples(st.sampled_from("acndhlo"), st.integers(0, 2), st.integers(0, 2)), max_size=60))
def test_whoever_comes_and_goes_and_says_what_all_are_listened_to_again(steps: list[tuple[str, int, int]]) -> None:
    """Tasks appear, also as another owner's, announce what is right and wrong, and go; time passes, or stands still."""
    part, now, there = Announcements(0.02), 10.0, {}
    for what, number, value in steps:
        key = TaskKey(number, "GPU-0")
        if what == "a":
            there[key] = task(key, uid=1000 + value, activity=Activity())
            part.appears(there[key])
        elif what == "n":
            part.note(Announce(key, (0.0, 0.002, 0.5)[value]), now)
        elif what == "d":
            there.pop(key, None)
            part.drop(key, now)
        elif what == "c":
            part.clear()
        elif what == "h":
            part.heard(there, now)
        elif what == "o":
            part.off_until(there, now)
        now += (0.0, 0.001, 0.06)[value] if what == "l" else 0.0
    part.off_until(there, now + 10)
    part.off_until(there, now + 100)  # all is saved, and each rest over
    assert part.off_until(there, now + 100) == ({}, None)
    assert part.heard(there, now + 100) == there.keys()
    for key in list(there):
        part.drop(key, now + 100)
    assert not any((part._pending, part._standing._speakers))
    assert {name for name, each in part._standing._owners.items() if not each.said} == set()


def test_an_account_that_was_never_opened_owes_nothing() -> None:
    one = Announcing()
    one.part.drop(KEY, 10.0)
    assert one.part._standing._owners == {}
    assert one.part.why(KEY) == ""
