"""The two policies and how policies are found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runlist.errors import UsageError
from runlist.model import Share, Task, TaskClass, TaskKey
from runlist.policies import PolicySpec, builtin_policies, load_policy
from runlist.policies.gpreempt import GPreempt
from runlist.policies.priority import Priority

LATENCY, NORMAL, BATCH = TaskClass.LATENCY, TaskClass.NORMAL, TaskClass.BATCH


def task(pid: int, task_class: TaskClass, **values: object) -> Task:
    return Task(TaskKey(pid, "GPU-0"), task_class, f"program{pid}", 1000, 0.0, **values)


def tasks(*classes: TaskClass) -> list[Task]:
    return [task(pid, task_class) for pid, task_class in enumerate(classes, 1)]


def shares(policy: Priority, members: list[Task], now: float = 0.0) -> list[Share]:
    decided = policy.decide(members, now).shares
    return [decided[member.key] for member in members]


def turn(policy: Priority, members: list[Task], now: float) -> int:
    """Pid of the one background task that is enabled."""
    (key,) = [key for key, share in policy.decide(members, now).shares.items() if share == Share(1, True)]
    return key.pid


# -- priority --------------------------------------------------------------------------------------


def test_nothing_to_decide() -> None:
    decision = Priority({}).decide([], 0.0)
    assert (dict(decision.shares), decision.again_after_s) == ({}, None)


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        ([LATENCY], [Share(1_000_000)]),
        ([NORMAL], [Share(20_000)]),
        ([BATCH], [Share(1)]),
        ([LATENCY, BATCH], [Share(1_000_000), Share(1)]),
        ([LATENCY, NORMAL], [Share(1_000_000), Share(1)]),
        ([NORMAL, BATCH], [Share(20_000), Share(1)]),
        ([LATENCY, LATENCY], [Share(), Share()]),
        ([LATENCY, LATENCY, BATCH], [Share(), Share(), Share(1)]),
        ([NORMAL, NORMAL], [Share(), Share()]),
        ([LATENCY, BATCH, BATCH], [Share(1_000_000), Share(1), Share(1, False)]),
        ([BATCH, NORMAL, LATENCY], [Share(1), Share(1, False), Share(1_000_000)]),
    ],
)
def test_shares(classes: list[TaskClass], expected: list[Share]) -> None:
    assert shares(Priority({}), tasks(*classes)) == expected


def test_one_background_task_needs_no_timer() -> None:
    assert Priority({}).decide(tasks(LATENCY, BATCH), 0.0).again_after_s is None


def test_background_tasks_take_turns_in_order() -> None:
    policy, members = Priority({}), tasks(LATENCY, BATCH, BATCH, BATCH)
    seen = [turn(policy, members, 0.05 * step + 0.001) for step in range(7)]
    assert seen == [2, 3, 4, 2, 3, 4, 2]


def test_a_turn_lasts_a_quantum_whatever_happens_in_between() -> None:
    policy, members = Priority({"quantum_ms": "100"}), tasks(BATCH, BATCH)
    assert policy.decide(members, 10.0).again_after_s == pytest.approx(0.1)
    assert turn(policy, members, 10.0999) == 1
    assert policy.decide(members, 10.0999).again_after_s == pytest.approx(0.0001)
    assert turn(policy, members, 10.1) == 2
    assert turn(policy, members, 10.1999) == 2
    assert turn(policy, members, 500.0) == 1  # late: the next, and not several at once


def test_normal_tasks_in_the_background_get_four_times_the_turn_of_batch_tasks() -> None:
    policy, members = Priority({}), tasks(LATENCY, NORMAL, BATCH)
    now, held = 0.0, {2: 0.0, 3: 0.0}
    for _ in range(20):
        who = turn(policy, members, now)
        wait = policy.decide(members, now).again_after_s
        assert wait is not None
        held[who] += wait
        now += wait
    assert held[2] / held[3] == pytest.approx(4, rel=0.01)


def test_the_turn_passes_on_when_its_holder_vanishes() -> None:
    policy, members = Priority({}), tasks(LATENCY, BATCH, BATCH, BATCH)
    assert turn(policy, members, 0.0) == 2
    assert turn(policy, members, 0.05) == 3
    without = [member for member in members if member.key.pid != 3]
    assert turn(policy, without, 0.06) in (2, 4)
    assert turn(policy, members[:1] + members[3:], 0.07) == 4
    assert policy.decide(members[:1], 0.08).again_after_s is None


def test_the_turn_passes_on_when_its_holder_is_suspended() -> None:
    policy, members = Priority({}), tasks(BATCH, BATCH)
    assert turn(policy, members, 0.0) == 1
    stopped = [replace(members[0], suspended=True), members[1]]
    decision = policy.decide(stopped, 0.01)
    assert decision.shares[members[1].key] == Share(1)
    assert decision.again_after_s is None


def test_suspended_tasks_do_not_count_as_foreground() -> None:
    members = [task(1, LATENCY, suspended=True), task(2, NORMAL), task(3, BATCH)]
    decided = Priority({}).decide(members, 0.0).shares
    assert decided[members[1].key] == Share(20_000)
    assert decided[members[2].key] == Share(1)


def test_a_newcomer_waits_for_its_turn() -> None:
    policy, members = Priority({}), tasks(BATCH, BATCH)
    assert turn(policy, members[:1], 0.0) == 1
    assert turn(policy, members, 0.01) == 1
    assert turn(policy, members, 0.06) == 2


@given(
    st.lists(st.tuples(st.sampled_from(list(TaskClass)), st.booleans()), max_size=8),
    st.lists(st.floats(0, 100), min_size=1, max_size=6).map(sorted),
)
def test_never_two_tiny_and_never_nothing(population: list[tuple[TaskClass, bool]], times: list[float]) -> None:
    policy = Priority({})
    members = [task(pid, kind, suspended=off) for pid, (kind, off) in enumerate(population, 1)]
    runnable = [member for member in members if not member.suspended]
    for now in times:
        decision = policy.decide(members, now)
        assert set(decision.shares) == {member.key for member in runnable}
        enabled = [share for share in decision.shares.values() if share.enabled]
        assert bool(enabled) == bool(runnable)
        assert sum(share.timeslice_us == 1 for share in enabled) <= 1
        background = [share for share in decision.shares.values() if share.timeslice_us == 1]
        if background:
            assert sum(share.enabled for share in background) == 1
        assert (decision.again_after_s is not None) == (len(background) > 1)
        assert decision.again_after_s is None or 0 < decision.again_after_s <= 0.2 + 1e-6


@given(st.lists(st.sampled_from(list(TaskClass)), min_size=2, max_size=8))
def test_everybody_gets_a_turn(classes: list[TaskClass]) -> None:
    policy, members = Priority({}), tasks(*classes)
    now, ran = 0.0, set()
    for _ in range(3 * len(members)):
        decision = policy.decide(members, now)
        ran |= {key for key, share in decision.shares.items() if share.enabled}
        now += decision.again_after_s or 1.0
    assert ran == {member.key for member in members}


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"quantum": "5"}, "no option quantum: take quantum_ms"),
        ({"quantum_ms": "soon"}, "quantum_ms=soon is not a number"),
        ({"quantum_ms": "4.9"}, "not within 5 to 10000"),
        ({"quantum_ms": "10001"}, "not within"),
        ({"quantum_ms": "nan"}, "not within"),
        ({"quantum_ms": "inf"}, "not within"),
        ({"quantum_ms": "-50"}, "not within"),
        ({"quantum_ms": ""}, "not a number"),
    ],
)
def test_bad_options_are_refused(options: dict[str, str], line: str) -> None:
    with pytest.raises(UsageError, match=line):
        load_policy(PolicySpec("priority", options))


# -- gpreempt --------------------------------------------------------------------------------------


def test_gpreempt_sets_the_papers_slices() -> None:
    members = tasks(LATENCY, LATENCY, BATCH)
    decision = GPreempt({}).decide(members, 0.0)
    assert [decision.shares[member.key] for member in members] == [Share(1_000_000), Share(1_000_000), Share(1)]
    assert decision.again_after_s is None


@pytest.mark.parametrize("other", [NORMAL, BATCH])
def test_gpreempt_refuses_a_second_background_task_and_says_why(other: TaskClass) -> None:
    policy, members = GPreempt({}), tasks(LATENCY, BATCH)
    reason = policy.admit(task(9, other), members)
    assert reason is not None
    assert "2 (program2)" in reason
    assert "policy use priority" in reason


def test_gpreempt_takes_latency_tasks_and_the_one_it_has() -> None:
    policy, members = GPreempt({}), tasks(LATENCY, BATCH)
    assert policy.admit(task(9, LATENCY), members) is None
    assert policy.admit(members[1], members) is None
    assert policy.admit(task(9, BATCH), members[:1]) is None
    assert policy.admit(replace(members[0], task_class=BATCH), members) is not None


def test_gpreempt_takes_no_options() -> None:
    with pytest.raises(UsageError, match="policy gpreempt: this policy takes no options, got quantum_ms"):
        load_policy(PolicySpec("gpreempt", {"quantum_ms": "5"}))


# -- finding them ----------------------------------------------------------------------------------


def test_the_built_in_policies() -> None:
    found = builtin_policies()
    assert list(found) == ["gpreempt", "priority"]
    assert all(summary and "\n" not in summary for summary in found.values())


def test_the_default_is_priority() -> None:
    assert isinstance(load_policy(PolicySpec()), Priority)


def test_each_load_is_a_new_instance() -> None:
    assert load_policy(PolicySpec()) is not load_policy(PolicySpec())


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


OWN = """
from runlist.model import Share
from runlist.policies import Decision, Policy

class Mine(Policy):
    summary = "all the same"

    def decide(self, tasks, now):
        return Decision({task.key: Share(3000) for task in tasks}, 0.5)

POLICY = Mine
"""


def test_a_users_own_file(tmp_path: Path) -> None:
    policy = load_policy(PolicySpec(write(tmp_path / "mine.py", OWN)))
    members = tasks(BATCH, BATCH)
    decision = policy.decide(members, 0.0)
    assert set(decision.shares.values()) == {Share(3000)}
    assert policy.admit(members[0], members) is None
    with pytest.raises(UsageError, match="takes no options"):
        load_policy(PolicySpec(str(tmp_path / "mine.py"), {"a": "b"}))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "does not define POLICY"),
        ("POLICY = 3", "does not define POLICY"),
        ("class POLICY: pass", "does not define POLICY"),
        ("def (", "cannot be loaded: SyntaxError"),
        ("import nothing_like_this", "cannot be loaded: ModuleNotFoundError"),
        ("1/0", "cannot be loaded: ZeroDivisionError"),
        ("raise SystemExit(3)", "cannot be loaded: SystemExit"),
        ("from runlist.policies import Policy as POLICY", "abstract"),
    ],
)
def test_a_file_that_is_no_policy_is_one_line(tmp_path: Path, text: str, line: str) -> None:
    with pytest.raises(UsageError, match=line) as caught:
        load_policy(PolicySpec(write(tmp_path / "bad.py", text)))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        load_policy(PolicySpec(str(tmp_path / "none.py")))
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(UsageError, match="does not exist"):
        load_policy(PolicySpec(str(tmp_path / "folder.py")))


@pytest.mark.parametrize("name", ["fair", "", "..", "interface", "loader", "os"])
def test_an_unknown_name_lists_the_known(name: str) -> None:
    with pytest.raises(UsageError, match="take gpreempt, priority or the path"):
        load_policy(PolicySpec(name))
