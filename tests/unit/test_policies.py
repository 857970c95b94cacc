"""What the policies decide at once, and how policies are found."""

from __future__ import annotations

import importlib
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runlist.cli.policy_command import checked_policy
from runlist.errors import UsageError
from runlist.model import Announce, Appear, Hint, Share, Task, TaskClass, TaskKey, Tick, Usage, Vanish
from runlist.policies import Decision, Layer, Policy, PolicySpec, builtin_policies, load_policy
from runlist.policies.cap import CapLayer
from runlist.policies.deadline import DeadlineLayer
from runlist.policies.fair import Fair
from runlist.policies.gpreempt import GPreempt
from runlist.policies.parts.options import number
from runlist.policies.parts.slices import BASE_US, SHORT_BASE_US
from runlist.policies.priority import Priority
from runlist.policies.slo import SloLayer
from tests.fixtures.daemon import ROOT

DEADLINE, LATENCY, NORMAL, BATCH = TaskClass
LONG, SHORT = Share(BASE_US), Share(SHORT_BASE_US)
QUANTUM_S = 0.1
"""How long a turn is unless the user says otherwise."""


def task(pid: int, task_class: TaskClass, **values: object) -> Task:
    return Task(TaskKey(pid, "GPU-0"), task_class, f"program{pid}", 1000, 0.0, **values)


def tasks(*classes: TaskClass) -> list[Task]:
    return [task(pid, task_class) for pid, task_class in enumerate(classes, 1)]


def shares(policy: Policy, members: list[Task], now: float = 0.0) -> list[Share]:
    decided = policy.decide(members, now).shares
    return [decided[member.key] for member in members]


def turn(policy: Priority, members: list[Task], now: float) -> int:
    """Pid of the one background task that is enabled."""
    (key,) = [key for key, share in policy.decide(members, now).shares.items() if share == Share(1, True)]
    return key.pid


# -- priority --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        ([BATCH, BATCH], {1, 2}),
        ([NORMAL, NORMAL], {1, 2}),
        ([NORMAL, BATCH], {1, 2}),  # both run, the second with the slice of the background
        ([LATENCY, BATCH], set()),  # they have made room already
        ([DEADLINE, NORMAL], set()),
        ([LATENCY], set()),
        ([], set()),
    ],
)
def test_all_that_run_make_room_for_the_first_latency_critical_task(
    classes: list[TaskClass], expected: set[int]
) -> None:
    assert {key.pid for key in Priority({}).decide(tasks(*classes), 0.0).off_on_arrival} == expected


def test_who_is_off_has_no_room_to_make() -> None:
    members = tasks(NORMAL, BATCH, BATCH)
    decision = Priority({}).decide(members, 0.0)
    assert {key for key, share in decision.shares.items() if share.enabled} == decision.off_on_arrival
    suspended = [replace(members[0], suspended=True), members[1]]
    assert {key.pid for key in Priority({}).decide(suspended, 0.0).off_on_arrival} == {2}


@pytest.mark.parametrize("layer", [CapLayer, DeadlineLayer, SloLayer])
def test_layers_leave_that_as_it_is(layer: type[Layer]) -> None:
    decision = layer({}, Priority({})).decide(tasks(BATCH, BATCH), 0.0)
    assert {key.pid for key in decision.off_on_arrival} == {1, 2}


def test_nothing_to_decide() -> None:
    decision = Priority({}).decide([], 0.0)
    assert (dict(decision.shares), decision.again_after_s) == ({}, None)


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        ([LATENCY], [Share(1_000_000)]),
        ([DEADLINE], [Share(1_000_000)]),
        ([NORMAL], [Share(20_000)]),
        ([BATCH], [Share(1)]),
        ([LATENCY, BATCH], [Share(1_000_000), Share(1)]),
        ([LATENCY, NORMAL], [Share(1_000_000), Share(1)]),
        ([NORMAL, BATCH], [Share(20_000), Share(1)]),
        ([BATCH, BATCH], [LONG, LONG]),
        ([LATENCY, LATENCY], [SHORT, SHORT]),
        ([LATENCY, LATENCY, BATCH], [SHORT, SHORT, Share(1)]),
        ([DEADLINE, LATENCY, BATCH], [Share(1_000_000), SHORT, Share(1)]),
        ([DEADLINE, NORMAL], [Share(1_000_000), Share(1)]),
        ([NORMAL, NORMAL], [LONG, LONG]),
        ([LATENCY, BATCH, BATCH], [Share(1_000_000), Share(1), Share(1, False)]),
        ([BATCH, NORMAL, LATENCY], [Share(1), Share(1, False), Share(1_000_000)]),
    ],
)
def test_shares(classes: list[TaskClass], expected: list[Share]) -> None:
    assert shares(Priority({}), tasks(*classes)) == expected


def test_slices_within_a_class_follow_weights() -> None:
    members = [task(1, BATCH, weight=300), task(2, BATCH, weight=100)]
    assert shares(Priority({}), members) == [Share(BASE_US * 3 // 2), Share(BASE_US // 2)]


def test_the_slice_stays_when_those_it_was_shared_with_are_only_suspended() -> None:
    """Capped tasks come and go many times a second, and each change of a slice costs a control."""
    policy, members = Priority({}), tasks(BATCH, BATCH)
    assert shares(policy, members)[0] == LONG
    stopped = [members[0], replace(members[1], suspended=True)]
    assert policy.decide(stopped, 1.0).shares == {members[0].key: LONG}
    assert policy.decide(members[:1], 2.0).shares == {members[0].key: Share(1)}


def test_what_was_held_behind_a_foreground_says_nothing_of_the_slices_in_it() -> None:
    """Two batch tasks that share the GPU have turns while a latency task is there, for as long as anybody likes."""
    policy, members, service = Priority({}), tasks(BATCH, BATCH), task(9, LATENCY)
    assert shares(policy, members) == [LONG, LONG]
    policy.decide([*members, service], 0.01)
    held = [replace(each, usage=Usage(seconds, 20)) for each, seconds in zip(members, (1.8, 0.2), strict=True)]
    assert shares(policy, held, 2.0) == [LONG, LONG]


def test_a_new_latency_task_is_served_at_the_next_decision() -> None:
    policy, members = Priority({}), tasks(BATCH, BATCH, BATCH)
    shares(policy, members)
    late = task(9, LATENCY)
    policy.on_event(Appear(late), 0.0102)
    assert [share.timeslice_us for share in shares(policy, [*members, late], 0.0102)] == [1, 1, 1, 1_000_000]


def test_a_hint_takes_the_background_off_in_time_and_back_when_the_task_was_there() -> None:
    policy, members = Priority({}), tasks(LATENCY, BATCH, BATCH)
    shares(policy, members, 1.0)
    policy.on_event(Hint(members[0].key, 0.010), 1.0)
    decision = policy.decide(members, 1.0)
    assert decision.again_after_s == pytest.approx(0.0075)
    during = policy.decide(members, 1.0075)
    assert [during.shares[member.key].enabled for member in members] == [True, False, False]
    assert during.shares[members[1].key].until == pytest.approx(1.015)
    assert policy.why(members[1].key) == "kept off by a hint"
    there = [replace(members[0], usage=Usage(0.001, 1)), *members[1:]]
    assert not policy.decide(there, 1.0105).shares[members[1].key].enabled
    assert policy.decide(there, 1.0116).shares[members[1].key] == Share(1)


def test_a_hint_of_a_task_that_is_gone_is_none_of_the_next_one() -> None:
    policy, members = Priority({}), tasks(LATENCY, BATCH)
    policy.on_event(Hint(members[0].key, 0.0), 1.0)
    assert not shares(policy, members, 1.0)[1].enabled
    policy.on_event(Vanish(members[0].key), 1.001)
    policy.on_event(Appear(members[0]), 1.001)
    assert shares(policy, members, 1.001)[1].enabled


def test_a_hint_that_was_announced_costs_no_more_than_the_announcement() -> None:
    """Two offs for one request left a batch job 0.47 of what it could have (H200)."""
    policy, members = Priority({}), tasks(LATENCY, BATCH)
    shares(policy, members, 9.0)
    for event in (Appear(members[0]), Announce(members[0].key, 0.002), Hint(members[0].key, 0.002)):
        policy.on_event(event, 10.0)
    assert not shares(policy, members, 10.0)[1].enabled
    assert policy.why(members[1].key) == "kept off by an announcement"


def test_hints_of_other_classes_change_nothing() -> None:
    policy, members = Priority({}), tasks(LATENCY, BATCH, NORMAL)
    policy.on_event(Hint(members[2].key, 0.0), 1.0)
    assert sum(share.enabled for share in shares(policy, members, 1.0)) == 2


def test_one_background_task_needs_no_timer() -> None:
    assert Priority({}).decide(tasks(LATENCY, BATCH), 0.0).again_after_s is None


def test_background_tasks_take_turns_in_order() -> None:
    policy, members = Priority({}), tasks(LATENCY, BATCH, BATCH, BATCH)
    seen = [turn(policy, members, QUANTUM_S * step + 0.001) for step in range(7)]
    assert seen == [2, 3, 4, 2, 3, 4, 2]


def test_a_turn_lasts_a_tenth_of_a_second_unless_the_user_says_otherwise() -> None:
    assert Priority({}).decide(tasks(LATENCY, BATCH, BATCH), 0.0).again_after_s == pytest.approx(QUANTUM_S)


def test_a_turn_lasts_a_quantum_whatever_happens_in_between() -> None:
    policy, members = Priority({"quantum_ms": "60"}), tasks(LATENCY, BATCH, BATCH)
    assert policy.decide(members, 10.0).again_after_s == pytest.approx(0.06)
    assert turn(policy, members, 10.059) == 2
    assert policy.decide(members, 10.059).again_after_s == pytest.approx(0.001)
    assert turn(policy, members, 10.06) == 3
    assert turn(policy, members, 10.119) == 3
    assert turn(policy, members, 500.0) == 2  # late: the next, and not several at once


def test_the_turn_passes_on_when_its_holder_vanishes() -> None:
    policy, members = Priority({}), tasks(LATENCY, BATCH, BATCH, BATCH)
    assert turn(policy, members, 0.0) == 2
    assert turn(policy, members, QUANTUM_S) == 3
    without = [member for member in members if member.key.pid != 3]
    assert turn(policy, without, QUANTUM_S + 0.01) == 4
    assert turn(policy, members[:1] + members[3:], QUANTUM_S + 0.02) == 4
    assert policy.decide(members[:1], QUANTUM_S + 0.03).again_after_s is None


def test_the_turn_passes_on_when_its_holder_is_suspended() -> None:
    policy, members = Priority({}), tasks(LATENCY, BATCH, BATCH)
    assert turn(policy, members, 0.0) == 2
    stopped = [members[0], replace(members[1], suspended=True), members[2]]
    decision = policy.decide(stopped, 0.01)
    assert decision.shares[members[2].key] == Share(1)
    assert decision.again_after_s is None


def test_suspended_tasks_do_not_count_as_foreground() -> None:
    members = [task(1, LATENCY, suspended=True), task(2, NORMAL), task(3, BATCH)]
    decided = Priority({}).decide(members, 0.0).shares
    assert decided[members[1].key] == Share(20_000)
    assert decided[members[2].key] == Share(1)


def test_a_newcomer_waits_for_its_turn() -> None:
    policy, members = Priority({}), tasks(LATENCY, BATCH, BATCH, BATCH)
    assert turn(policy, members[:3], 0.0) == 2
    assert turn(policy, members, 0.01) == 2
    assert turn(policy, members, QUANTUM_S) in (3, 4)


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
        ({"quantum_ms": "soon"}, "quantum_ms=soon is not a number of ms, nor one with its unit, such as 20ms or 1s"),
        ({"quantum_ms": "4.9"}, "quantum_ms=4.9 is not within 5 to 10000 ms"),
        ({"quantum_ms": "11s"}, "quantum_ms=11s is not within 5 to 10000 ms"),
        ({"quantum_ms": "20m"}, "not a number"),
        ({"quantum_ms": "10001"}, "not within"),
        ({"quantum_ms": "nan"}, "is not a number"),
        ({"quantum_ms": "inf"}, "is not a number"),
        ({"quantum_ms": "-50"}, "not within"),
        ({"quantum_ms": ""}, "not a number"),
    ],
)
def test_bad_options_are_refused(options: dict[str, str], line: str) -> None:
    with pytest.raises(UsageError, match=line):
        load_policy(PolicySpec("priority", options))


# -- gpreempt --------------------------------------------------------------------------------------


def test_gpreempt_sets_the_papers_slices() -> None:
    members = tasks(LATENCY, DEADLINE, BATCH)
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
    assert {"cap", "deadline", "fair", "gpreempt", "priority", "slo"} <= set(found)
    assert list(found) == sorted(found)
    assert all(summary and "\n" not in summary for summary in found.values())


def bottom(policy: Policy) -> Policy:
    """The policy under the layers."""
    layers = []
    while isinstance(policy, Layer):
        layers.append(type(policy))
        policy = policy.below
    assert layers == [SloLayer, CapLayer, DeadlineLayer]
    return policy


@pytest.mark.parametrize(
    ("name", "cls"), [("priority", Priority), ("fair", Fair), ("gpreempt", GPreempt), ("cap", Priority)]
)
def test_what_runs_is_the_layers_over_a_policy(name: str, cls: type[Policy]) -> None:
    assert isinstance(bottom(load_policy(PolicySpec(name))), cls)


def test_the_default_is_priority() -> None:
    assert isinstance(bottom(load_policy(PolicySpec())), Priority)


@pytest.mark.parametrize(
    ("name", "options", "line"),
    [
        ("cap", {"a": "1"}, "policy cap: this policy takes no options, got a"),
        ("fair", {"a": "1"}, "policy fair: this policy takes no options, got a"),
        ("slo", {"steps": "1"}, "no option steps: take step, backoff, headroom"),
        ("slo", {"step": "0"}, "step=0 is not within 0.001 to 0.5"),
        ("slo", {"backoff": "much"}, "backoff=much is not a number"),
        ("slo", {"headroom": "nan"}, "headroom=nan is not a number"),
        ("deadline", {"bound": "1.01"}, "bound=1.01 is not within 0.05 to 1"),
        ("deadline", {"max_segment_ms": "9001"}, "max_segment_ms=9001 is not within 10 to 9000"),
        ("deadline", {"x": "", "y": ""}, "no option x, y: take bound, max_segment_ms"),
    ],
)
def test_bad_options_of_the_others(name: str, options: dict[str, str], line: str) -> None:
    with pytest.raises(UsageError, match=line):
        load_policy(PolicySpec(name, options))


def test_a_layer_passes_on_what_it_does_not_do_itself() -> None:
    seen: list[object] = []

    class Below(Policy):
        summary = "for tests"

        def decide(self, tasks: object, now: float) -> Decision:
            return Decision({})

        def admit(self, task: object, tasks: object) -> str:
            seen.append((task, tasks))
            return "no"

        def on_event(self, event: object, now: float) -> bool:
            seen.append((event, now))
            return True

        def why(self, key: object) -> str:
            seen.append(key)
            return "because"

    class Above(Layer):
        summary = "for tests"

        def decide(self, tasks: object, now: float) -> Decision:
            return self.below.decide(tasks, now)  # type: ignore[arg-type]

    layer, (one, *others) = Above({}, Below({})), tasks(BATCH, BATCH, BATCH)
    assert layer.admit(one, others) == "no"
    assert layer.on_event(Tick(), 3.0) is True
    assert layer.why(one.key) == "because"
    assert seen == [(one, others), (Tick(), 3.0), one.key]


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
        ("import nothing_like_this", "cannot be loaded: line 1: ModuleNotFoundError"),
        ("def f():\n    1/0\nf()", "cannot be loaded: line 2: ZeroDivisionError"),
        ("raise SystemExit(3)", "cannot be loaded: line 1: SystemExit"),
        ("from runlist.policies import Policy as POLICY", "abstract"),
    ],
)
def test_a_file_that_is_no_policy_is_one_line(tmp_path: Path, text: str, line: str) -> None:
    with pytest.raises(UsageError, match=line) as caught:
        load_policy(PolicySpec(write(tmp_path / "bad.py", text)))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_too_large_is_no_policy(tmp_path: Path) -> None:
    most = 1 << 20
    path = write(tmp_path / "large.py", OWN + "#" * (most - len(OWN)))
    assert load_policy(PolicySpec(path))
    with pytest.raises(UsageError, match="larger than 1 MiB"):
        load_policy(PolicySpec(write(tmp_path / "larger.py", OWN + "#" * (most + 1 - len(OWN)))))


def test_what_a_policy_says_is_wrong_with_its_options_is_said_as_it_is(tmp_path: Path) -> None:
    text = "from runlist.errors import UsageError\n" + OWN.replace(
        "    def decide", "    def __init__(self, options):\n        raise UsageError('take a=b')\n    def decide"
    )
    with pytest.raises(UsageError, match=r"^take a=b$"):
        load_policy(PolicySpec(write(tmp_path / "mine.py", text)))


def test_a_policy_that_fails_as_it_is_made_is_one_line(tmp_path: Path) -> None:
    for how, line in (("ValueError('no such')", ": no such$"), ("KeyError(3)", r": line \d+: KeyError\(3\)$")):
        text = OWN.replace("    def decide", f"    def __init__(self, options):\n        raise {how}\n    def decide")
        with pytest.raises(UsageError, match=line):
            load_policy(PolicySpec(write(tmp_path / "bad.py", text)))


def test_a_file_that_is_not_there_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        load_policy(PolicySpec(str(tmp_path / "none.py")))
    (tmp_path / "folder.py").mkdir()
    for load in (lambda name: load_policy(PolicySpec(name)), lambda name: checked_policy(name, None)):
        with pytest.raises(UsageError, match=r"folder.py is no plain file: name one"):
            load(str(tmp_path / "folder.py"))


@pytest.mark.parametrize("name", ["fairest", "", "..", "os", "parts", "interface", "loader", "__init__", "__main__"])
def test_an_unknown_name_lists_the_known(name: str) -> None:
    with pytest.raises(UsageError, match=f"take {', '.join(builtin_policies())} or the path"):
        load_policy(PolicySpec(name))


@pytest.mark.parametrize("name", ["priority", "slo", "deadline"])
def test_options_are_as_their_document_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(f"runlist.policies.{name}")
    taken: list[tuple[object, ...]] = []

    def noted(values: dict[str, str], option: str, default: float, least: float, most: float, **more: bool) -> float:
        taken.append((option, least, most, default))
        return number(values, option, default, least, most, **more)

    monkeypatch.setattr(module, "number", noted)
    load_policy(PolicySpec())
    (row,) = (line for line in (ROOT / "docs/policies.md").read_text().splitlines() if line.startswith(f"| `{name}`"))
    told = re.findall(r"`(\w+)`(?:(?!`\w+`:?).)*?([\d.]+) to ([\d.]+), default ([\d.]*\d)", row)
    assert told
    assert taken == [(option, *map(float, numbers)) for option, *numbers in told]
