"""The last word on a policy's decision."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runlist.model import DEFAULT_SHARE, MAX_TIMESLICE_US, Share, SliceLimits, Task, TaskClass, TaskKey
from runlist.scheduling.guard import safe_off_at_once, safe_shares

# As they are to be: taken from the code they would hold whatever it says.
LONGEST_WAIT_S = 10.0


def task(pid: int, **values: object) -> Task:
    return Task(TaskKey(pid, "GPU-0"), TaskClass.BATCH, "x", 0, 0.0, **values)


NOW = 100.0
TINY_US, SAFE_US = 700, 3_000
SLICES = SliceLimits(TINY_US, SAFE_US)
KEYS = [TaskKey(pid, "GPU-0") for pid in range(6)]


def test_a_safe_decision_passes_unchanged() -> None:
    decided = {KEYS[0]: Share(1_000_000), KEYS[1]: Share(1), KEYS[2]: Share(1, False)}
    assert safe_shares([task(0), task(1), task(2)], decided, {}, NOW, SLICES) == (decided, [])


def test_a_task_that_the_policy_forgot_gets_the_drivers_default() -> None:
    assert safe_shares([task(0)], {}, {}, NOW, SLICES) == ({KEYS[0]: DEFAULT_SHARE}, [])


def test_shares_of_strangers_are_dropped() -> None:
    shares, _ = safe_shares([task(0)], {KEYS[0]: Share(5000), KEYS[5]: Share(1)}, {}, NOW, SLICES)
    assert shares == {KEYS[0]: Share(5000)}


def test_the_users_own_slice_holds() -> None:
    shares, notes = safe_shares([task(0, timeslice_us=900)], {KEYS[0]: Share(1)}, {}, NOW, SLICES)
    assert (shares[KEYS[0]], notes) == (Share(900), [])


def test_a_suspended_task_stays_off_and_keeps_its_slice() -> None:
    shares, _ = safe_shares([task(0, suspended=True)], {KEYS[0]: Share(9)}, {KEYS[0]: Share(1_000_000)}, NOW, SLICES)
    assert shares == {KEYS[0]: Share(1_000_000, False)}


def test_something_runs_when_something_can() -> None:
    decided = {KEYS[0]: Share(1, False), KEYS[1]: Share(1, False)}
    shares, notes = safe_shares([task(0, suspended=True), task(1)], decided, {}, NOW, SLICES)
    assert shares[KEYS[1]] == Share(1, True)
    assert not shares[KEYS[0]].enabled
    assert len(notes) == 1


def test_nothing_may_run_when_everybody_knows_until_when() -> None:
    decided = {KEYS[0]: Share(1, False, NOW + 0.01), KEYS[1]: Share(1, False, NOW + LONGEST_WAIT_S)}
    assert safe_shares([task(0), task(1)], decided, {}, NOW, SLICES) == (decided, [])
    shares, _ = safe_shares([task(0), task(1), task(2, suspended=True)], decided, {}, NOW, SLICES)
    assert not any(share.enabled for share in shares.values())


@pytest.mark.parametrize("until", [None, NOW - 0.001, NOW + LONGEST_WAIT_S + 0.1, float("nan"), float("inf"), "soon"])
def test_without_a_time_that_is_near_the_first_one_runs(until: object) -> None:
    decided = {KEYS[0]: Share(1, False, NOW + 1), KEYS[1]: Share(7, False, until)}
    shares, notes = safe_shares([task(0), task(1)], decided, {}, NOW, SLICES)
    assert shares[KEYS[0]].enabled
    assert shares[KEYS[1]] == Share(7, False)
    assert "did not say until when" in notes[0]


def test_a_second_tiny_slice_is_widened() -> None:
    shares, notes = safe_shares([task(0), task(1)], {KEYS[0]: Share(1), KEYS[1]: Share(2)}, {}, NOW, SLICES)
    assert shares == {KEYS[0]: Share(1), KEYS[1]: Share(SAFE_US)}
    assert "would stop each other" in notes[0]


def test_beside_another_daemons_no_tiny_slice_is_left() -> None:
    asked = []

    def nobody_may(wants: bool) -> bool:
        asked.append(wants)
        return False

    decided = {KEYS[0]: Share(1), KEYS[1]: Share(SAFE_US + 1), KEYS[2]: Share(1, False), KEYS[3]: Share(2)}
    shares, notes = safe_shares([task(pid) for pid in range(4)], decided, {}, NOW, SLICES, nobody_may)
    assert shares == decided | {KEYS[0]: Share(SAFE_US), KEYS[3]: Share(SAFE_US)}
    assert (len(notes), "another daemon" in notes[0]) == (1, True)
    assert asked == [True]


@pytest.mark.parametrize("enabled", [True, False])
def test_who_is_not_on_needs_no_tiny_slice(enabled: bool) -> None:
    asked = []

    def may(wants: bool) -> bool:
        asked.append(wants)
        return True

    decided = {KEYS[0]: Share(1, enabled), KEYS[1]: Share(SAFE_US)}
    assert safe_shares([task(0), task(1)], decided, {}, NOW, SLICES, may) == (decided, [])
    assert asked == [enabled]


def test_two_tiny_slices_that_the_user_fixed_are_no_exception() -> None:
    shares, _ = safe_shares([task(0, timeslice_us=1), task(1, timeslice_us=1)], {}, {}, NOW, SLICES)
    assert [shares[key].timeslice_us for key in KEYS[:2]] == [1, SAFE_US]


_slices = st.none() | st.integers(1, 3000) | st.sampled_from([1, TINY_US - 1, TINY_US, MAX_TIMESLICE_US])
_wild = st.integers(-(2**70), 2**70) | st.floats() | st.booleans() | st.just(0) | st.none() | st.just("soon")


@given(st.data())
def test_no_decision_stops_all_progress(data: st.DataObject) -> None:
    """Whatever a policy decides and whatever is in force: nothing that could run is left without anything enabled, no
    two enabled tasks are tiny, and every slice is one that can be set.
    """
    members = [
        task(pid, suspended=data.draw(st.booleans()), timeslice_us=data.draw(_slices))
        for pid in range(data.draw(st.integers(0, 5)))
    ]
    untils = _wild | st.floats(NOW - 1, NOW + 20)
    share = st.builds(Share, _slices | _wild, st.booleans(), untils)
    decided = data.draw(st.dictionaries(st.sampled_from(KEYS), share))
    in_force = data.draw(st.dictionaries(st.sampled_from(KEYS), st.builds(Share, _slices, st.booleans())))
    shares, notes = safe_shares(members, decided, in_force, NOW, SLICES)

    assert set(shares) == {member.key for member in members}
    enabled = [member for member in members if shares[member.key].enabled]
    assert not any(member.suspended for member in enabled)
    free = [member for member in members if not member.suspended]
    waits = [getattr(decided.get(member.key), "until", None) for member in free]
    all_wait = all(isinstance(until, int | float) and NOW <= until <= NOW + LONGEST_WAIT_S for until in waits)
    assert enabled or not free or all_wait
    slices = [shares[member.key].timeslice_us for member in members]
    assert all(us is None or (type(us) is int and 1 <= us <= MAX_TIMESLICE_US) for us in slices)
    assert sum((shares[member.key].timeslice_us or SAFE_US) < TINY_US for member in enabled) <= 1
    assert all("\n" not in note for note in notes)


def test_a_task_with_two_contexts_gets_no_tiny_slice() -> None:
    """Its own two channel groups would stop each other, as those of two tasks would."""
    several = task(1, contexts=2)
    shares, _ = safe_shares(
        [several, task(2)], {several.key: Share(1), TaskKey(2, "GPU-0"): Share(1, enabled=False)}, {}, NOW, SLICES
    )
    assert shares[several.key] == Share(TINY_US)
    fixed = task(1, contexts=2, timeslice_us=3)
    shares, _ = safe_shares([fixed], {}, {}, NOW, SLICES)
    assert shares[fixed.key].timeslice_us == TINY_US


def test_tasks_that_run_together_get_one_share() -> None:
    tasks = [task(0, together=6), task(1, together=6), task(2)]
    decided = {KEYS[0]: Share(1, False, NOW + 1), KEYS[1]: Share(1_000_000), KEYS[2]: Share(1)}
    shares, notes = safe_shares(tasks, decided, {}, NOW, SLICES)
    assert shares == {KEYS[0]: Share(1_000_000), KEYS[1]: Share(1_000_000), KEYS[2]: Share(1)}
    assert not notes


def test_one_that_is_suspended_keeps_all_off_that_run_together_with_it() -> None:
    tasks = [task(0, together=6, suspended=True), task(1, together=6), task(2)]
    decided = {KEYS[1]: Share(5_000), KEYS[2]: Share(5_000, False)}
    shares, notes = safe_shares(tasks, decided, {KEYS[1]: Share(9_000)}, NOW, SLICES)
    assert not shares[KEYS[0]].enabled
    assert shares[KEYS[1]] == Share(9_000, False)
    assert shares[KEYS[2]].enabled  # the one that can run does
    assert len(notes) == 1


def test_a_slice_that_a_user_fixed_counts_for_all_that_run_together() -> None:
    tasks = [task(0, together=6, timeslice_us=900), task(1, together=6)]
    shares, _ = safe_shares(tasks, {KEYS[1]: Share(1_000_000)}, {}, NOW, SLICES)
    assert shares == {KEYS[0]: Share(900), KEYS[1]: Share(900)}


def test_tiny_slices_of_tasks_that_run_together_stop_nobody() -> None:
    tasks = [task(0, together=6), task(1, together=6)]
    decided = {KEYS[0]: Share(1), KEYS[1]: Share(1)}
    assert safe_shares(tasks, decided, {}, NOW, SLICES) == (decided, [])
    shares, _ = safe_shares([*tasks, task(2)], {**decided, KEYS[2]: Share(1)}, {}, NOW, SLICES)
    assert shares[KEYS[2]] == Share(SAFE_US)


def test_tasks_that_run_together_wait_together() -> None:
    tasks = [task(0, together=6), task(1, together=6)]
    decided = {KEYS[0]: Share(1, False, NOW + 2), KEYS[1]: Share(1, False, NOW + 1)}
    shares, _ = safe_shares(tasks, decided, {}, NOW, SLICES)
    assert shares == dict.fromkeys(KEYS[:2], Share(1, False, NOW + 1))


def test_only_enabled_tasks_that_nobody_watches_go_off_when_another_one_begins_to_work() -> None:
    tasks = [task(pid) for pid in range(4)]
    shares = {KEYS[0]: Share(1), KEYS[1]: Share(1, False), KEYS[2]: Share(1), KEYS[3]: Share(1)}
    decided = [KEYS[0], KEYS[1], KEYS[2], KEYS[5]]
    assert safe_off_at_once(tasks, decided, shares, {KEYS[2]: 0.001}) == {KEYS[0]}
    assert safe_off_at_once(tasks, [], shares, {}) == frozenset()


def test_tasks_that_run_together_go_off_together_or_not_at_all() -> None:
    tasks = [task(0, together=7), task(1, together=7), task(2)]
    shares = {key: Share(1) for key in KEYS[:3]}
    assert safe_off_at_once(tasks, [KEYS[0], KEYS[2]], shares, {}) == {KEYS[2]}
    assert safe_off_at_once(tasks, KEYS[:3], shares, {}) == set(KEYS[:3])
