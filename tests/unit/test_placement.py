"""What a process gets when it appears: the rules' settings, what its user asked for, and the limits."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runlist.daemon.memory.quota import Quota
from runlist.daemon.placement import placement
from runlist.daemon.placement.placement import Placement
from runlist.daemon.placement.rule import Match
from runlist.daemon.placement.rules import Facts
from runlist.daemon.tasks.managed import Asked, Own, Root
from runlist.errors import UsageError
from runlist.model import Cap, Deadline, TaskClass, TaskKey
from runlist.planes.process.region import create
from runlist.proc import owners
from runlist.proc.borrow import OwnRight
from runlist.proc.process import Program
from runlist.settings.table import SETTINGS
from tests.fixtures.daemon import wait_for

GPU, OTHER = "GPU-1", "GPU-2"
TRAIN = Facts(1000, "python train.py")
Make = Callable[..., Placement]


class Machine:
    """Two GPUs without tasks, and what processes hold of their memory."""

    def __init__(self) -> None:
        self.memory: dict[str, dict[int, int]] = {GPU: {}, OTHER: {}}

    def scheduler(self, gpu: str) -> Any:
        return SimpleNamespace(tasks={})

    def mps_clients(self, gpu: str) -> set[int]:
        return set()

    def by_pid(self, gpu: str) -> dict[int, int]:
        return self.memory[gpu]

    def pids(self) -> set[int]:
        return {pid for held in self.memory.values() for pid in held}


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def make(tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A placement by the text of a rules file, for processes that are all the same."""

    def make(text: str | None = None, facts: Facts | None = TRAIN) -> Placement:
        path = None
        if text is not None:
            path = tmp_path / "rules.toml"
            path.write_text(text)
        monkeypatch.setattr(placement, "facts_of", lambda pid, variables: facts)
        return Placement(path, machine, machine)  # type: ignore[arg-type]

    return make


RULES = """\
[[rule]]
command = "*serve.py*"
set = { class = "latency" }

[[rule]]
command = "*train.py*"
set = { class = "batch", weight = 50, cap = 30, burst = "5ms" }
"""


def test_without_rules_it_is_what_was_asked_for(make: Make) -> None:
    assert make().settings_of(1, {}).settings == {}
    place = make().settings_of(1, {"class": "batch"})
    assert (place.settings, len(place.changes), place.rule) == ({"class": "batch"}, 1, "")
    assert not make().rules


def test_without_rules_nobody_looks_into_the_process(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    placed = make()
    monkeypatch.delattr(placement, "facts_of")
    assert placed.settings_of(1, {}).settings == {}


def test_a_task_knows_where_it_runs_in_printable_words(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["sh", "-c", "read x", "\x1b[2J", "x" * 100_000]
    monkeypatch.setattr(placement, "cgroup_of", lambda pid: ("/a\x9b/b", "9" * 64))
    with subprocess.Popen(words, stdin=subprocess.PIPE) as process:
        try:
            wait_for(lambda: Path(f"/proc/{process.pid}/cmdline").read_bytes().startswith(b"sh\0"))
            task = make().new_task(process.pid, "GPU-1", Root(process.pid, -1, 0, {}))
        finally:
            process.kill()
    assert task.command_line.startswith("sh -c read x ?[2J xxx")
    assert len(task.command_line) == 32 << 10
    assert len(task.task.command) == 80
    assert (task.cgroup, task.container) == ("/a?/b", "9" * 64)


def test_the_first_rule_that_matches_is_taken_and_named(make: Make) -> None:
    place = make(RULES).settings_of(1, {})
    assert place.settings == {"class": "batch", "weight": "50", "cap": "30", "burst": "5ms"}
    assert place.rule == "rules.toml:5"
    other = make(RULES, Facts(0, "python serve.py")).settings_of(1, {})
    assert (other.settings, other.rule) == ({"class": "latency"}, "rules.toml:1")


@pytest.mark.parametrize("rules", [None, RULES, RULES.replace("batch", "latency")])
@pytest.mark.parametrize("tree", [{}, {"class": "latency"}, {"class": "batch"}, {"deadline": "5ms/20ms"}])
@pytest.mark.parametrize("alone", [{}, {"class": "latency"}, {"class": "normal"}])
@pytest.mark.parametrize("own", [{}, {"class": "batch"}, {"class": "latency"}])
def test_the_class_of_a_new_one_is_told_before_it_has_a_task(
    make: Make, rules: str | None, tree: dict[str, str], alone: dict[str, str], own: dict[str, str]
) -> None:
    placed, program = make(rules), Program.of(os.getpid())
    root = Root(os.getppid(), -1, 0, tree)
    root.asked_of[os.getpid()] = Asked(program, alone)
    root.own[os.getpid()] = Own(program, own, alone=False)
    assert placed.class_of_new(os.getpid(), root) is placed.new_task(os.getpid(), GPU, root).task.task_class


def test_it_is_told_by_what_the_kernel_found_in_the_policy_map(make: Make) -> None:
    match = Match({"class": "latency"}, "rules.toml:9")
    assert make(RULES).class_of_new(1, Root(1, -1, 0, {}), match) is TaskClass.LATENCY
    assert make(RULES).class_of_new(1, Root(1, -1, 0, {})) is TaskClass.BATCH
    with pytest.raises(UsageError):
        make().class_of_new(1, Root(1, -1, 0, {"class": "emperor"}))


def test_what_was_asked_for_wins_over_the_rule(make: Make) -> None:
    place = make(RULES).settings_of(1, {"weight": "200", "cap": "60"})
    assert place.settings == {"class": "batch", "weight": "200", "cap": "60"}  # a new cap has a burst of its own
    assert place.rule == "rules.toml:5"
    assert make(RULES).settings_of(1, {"burst": "9ms"}).settings["burst"] == "9ms"


def test_another_class_ends_the_rules_deadline(make: Make) -> None:
    rule = '[[rule]]\nset = { deadline = "5ms/20ms" }\n'
    assert make(rule).settings_of(1, {}).settings == {"deadline": "5ms/20ms"}
    assert make(rule).settings_of(1, {"class": "batch"}).settings == {"class": "batch"}
    assert make(RULES).settings_of(1, {"deadline": "5ms/20ms"}).settings.get("class") is None


def test_one_that_no_rule_matches_or_that_is_gone_has_what_was_asked_for(make: Make) -> None:
    for facts in (Facts(0, "python other.py"), None):
        place = make(RULES, facts).settings_of(1, {"weight": "7"})
        assert (place.settings, place.rule) == ({"weight": "7"}, "")


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ({"weight": "0"}, "weight=0"),
        ({"burst": "5ms", "cap": "max"}, "burst=5ms: a burst goes with a cap"),
        ({"burst": "5s"}, "burst=5s"),  # more than the rule's cap
        ({"interleave": "most"}, "interleave=most: take low, medium, high"),
    ],
)
def test_what_cannot_be_is_refused(make: Make, asked: dict[str, str], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        make(RULES).settings_of(1, asked)


def test_bad_rules_are_refused_before_anything_else(make: Make) -> None:
    with pytest.raises(UsageError, match=r"rules\.toml:2"):
        make("[[rule]]\nset = { weight = 0 }\n")


@pytest.mark.parametrize(("told", "container"), [("9" * 64, "9" * 64), (f"1000:{'9' * 64}", ""), ("", "")])
def test_who_runs_in_a_container_that_root_made_is_no_other_user(
    make: Make, monkeypatch: pytest.MonkeyPatch, told: str, container: str
) -> None:
    monkeypatch.setattr(placement, "cgroup_of", lambda pid: ("/a", told))
    monkeypatch.setattr(owners, "user_behind", lambda uid: {100_007: 7}.get(uid, uid))
    for uid in (7, 100_007):
        task = make().new_task(os.getpid(), GPU, Root(os.getpid(), -1, uid, {})).task
        assert (task.uid, task.owner) == (uid, (7, container))


def test_a_new_task(make: Make) -> None:
    pid = os.getpid()
    root = Root(4711, -1, 1000, {"weight": "70"}, OwnRight())
    managed = make(RULES).new_task(pid, GPU, root)
    task = managed.task
    assert (task.key, task.uid, task.task_class, task.weight) == (TaskKey(pid, GPU), 1000, TaskClass.BATCH, 70)
    assert task.cap == Cap(30_000, 100_000, 5_000)
    assert task.group == "job 4711"  # all processes of a root share as one
    assert "python" in task.command
    assert (managed.rule, managed.queued, managed.share.enabled) == ("rules.toml:5", False, True)
    assert make().new_task(pid, GPU, root).task.task_class == TaskClass.NORMAL


@pytest.mark.parametrize("own", [True, False])
def test_what_was_asked_for_a_process_alone_wins_over_its_trees(make: Make, own: bool) -> None:
    root = Root(1, -1, 1000, {"weight": "70", "cap": "20"}, OwnRight())
    managed = make(RULES).new_task(os.getpid(), GPU, root, own=own, asked={"weight": "5"})
    assert (managed.task.weight, managed.task.cap) == (5, Cap(20_000, 100_000))


@pytest.mark.parametrize(("group", "expected"), [("mine", "mine"), ("none", ""), ("user", "user:1000")])
def test_a_group_of_the_rule(make: Make, group: str, expected: str) -> None:
    placed = make(f'[[rule]]\nset = {{ group = "{group}" }}\n')
    assert placed.new_task(os.getpid(), GPU, Root(1, -1, 1000, {}, OwnRight())).task.group == expected


def test_a_group_is_of_its_user_unless_a_rule_made_it(make: Make) -> None:
    def shares_as(uid: int, rule: str, asked: dict[str, str]) -> str:
        placed = make(f'[[rule]]\nset = {{ group = "{rule}" }}\n' if rule else "")
        return placed.new_task(os.getpid(), GPU, Root(uid, -1, uid, asked)).task.shares_as

    night = {"group": "night"}
    assert shares_as(1, "", night) == shares_as(1, "day", night) == "night of user 1"
    assert shares_as(2, "", night) == "night of user 2"
    assert shares_as(1, "night", {}) == shares_as(2, "night", {}) == "night"  # the administrator's
    assert shares_as(2, "", {"group": "user:1000"}) != shares_as(1, "user", {}) == "user:1000"
    assert shares_as(2, "", {}) == "job 2"


def test_a_deadline_of_the_rule(make: Make) -> None:
    placed = make('[[rule]]\nset = { deadline = "5ms/20ms" }\n')
    task = placed.new_task(os.getpid(), GPU, Root(1, -1, 1000, {}, OwnRight())).task
    assert (task.task_class, task.deadline) == (TaskClass.DEADLINE, Deadline(5_000, 20_000))


@pytest.mark.parametrize(
    ("rule", "asked", "controls"),
    [
        ("", {}, {}),
        ("", {"interleave": "high"}, {"interleave": "high"}),
        ("medium", {}, {"interleave": "medium"}),
        ("medium", {"interleave": "HIGH"}, {"interleave": "high"}),
        ("medium", {"interleave": "low"}, {}),  # the driver's own
    ],
)
def test_a_new_task_has_the_controls_of_the_driver(
    make: Make, rule: str, asked: dict[str, str], controls: dict[str, str]
) -> None:
    placed = make(f'[[rule]]\nset.interleave = "{rule}"\n' if rule else "")
    assert placed.new_task(os.getpid(), GPU, Root(1, -1, 1000, asked)).controls == controls


@pytest.mark.parametrize(
    ("rule", "asked", "limit"),
    [
        ("2G", {}, 2),
        ("2G", {"memory": "3G"}, 3),
        ("4G", {"memory": "3G"}, 3),
        ("", {"memory": "3G"}, 3),
        ("", {}, None),
    ],
)
def test_a_memory_limit_of_a_rule_is_for_trees_that_asked_for_none(
    make: Make, tmp_path: Path, rule: str, asked: dict[str, str], limit: int | None
) -> None:
    root = Root(1, -1, 1000, asked, quota=Quota(create(tmp_path, strict=False)[1]))
    if "memory" in asked:
        root.quota.set_limit(3 << 30)
    placed = make(f'[[rule]]\nset.memory = "{rule}"\n' if rule else "")
    placed.new_task(os.getpid(), GPU, root)
    assert root.quota.limit_on(GPU) == (None if limit is None else limit << 30)
    root.quota.close()


def test_the_smallest_of_the_limits_that_rules_give_to_a_tree_counts(make: Make, tmp_path: Path) -> None:
    root = Root(1, -1, 1000, {}, quota=Quota(create(tmp_path, strict=False)[1]))
    for memory, limit in (("4G", 4), ("2G", 2), ("3G", 2)):
        make(f'[[rule]]\nset.memory = "{memory}"\n').new_task(int(memory[0]), GPU, root)
        assert root.quota.limit_on(GPU) == limit << 30
    root.quota.close()


def test_what_rules_gave_to_processes_that_have_ended_counts_until_there_are_many(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "_MOST_PROCESSES", 3)
    root = Root(1, -1, 1000, {}, quota=Quota(create(tmp_path, strict=False)[1]))
    gone = 1 << 22
    for memory, pid in (("2G", gone), ("4G", gone + 1), ("5G", os.getpid())):
        make(f'[[rule]]\nset.memory = "{memory}"\n').new_task(pid, GPU, root)
        assert root.quota.limit_on(GPU) == 2 << 30
    make('[[rule]]\nset.memory = "6G"\n').new_task(os.getppid(), GPU, root)
    assert root.rule_memory == {os.getpid(): 5 << 30, os.getppid(): 6 << 30}
    assert root.quota.limit_on(GPU) == 5 << 30
    make("[[rule]]\nset.weight = 5\n").new_task(os.getpid(), GPU, root)  # a rule without a limit takes it back
    assert root.quota.limit_on(GPU) == 6 << 30
    root.quota.close()


EXAMPLES = {
    "class": "batch", "weight": "7", "cap": "30", "burst": "5ms", "deadline": "5ms/20ms", "p99": "5ms", "group": "g",
    "memory": "2G", "timeslice": "3ms", "interleave": "high",
}  # fmt: skip


def test_a_variable_that_only_a_newer_rule_asks_for_is_read_then_and_once(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(placement, "environment_of", lambda pid, variables: asked.append(pid) or {"TEAM": "a"})
    root = Root(1, -1, os.getuid(), {})
    managed = make("[[rule]]\n").new_task(os.getpid(), GPU, root)
    placed = make('[[rule]]\nenvironment = { TEAM = "a" }\nset = { weight = 7 }\n[[rule]]\n')
    before = len(asked)
    for _ in range(2):
        found = placed.revised(managed)
        assert found is not None
        assert placed.shaped(managed, found).weight == 7
        assert (len(asked) - before, managed.environment) == (1, {"TEAM": "a"})


@pytest.mark.parametrize("key", list(SETTINGS))
def test_a_setting_that_a_rule_gives_no_longer_is_gone(make: Make, key: str) -> None:
    """Whoever adds a setting adds an example, and its field to those that a revision takes back."""
    given = {"cap": "30", key: EXAMPLES[key]} if key == "burst" else {key: EXAMPLES[key]}
    words = ", ".join(f'{name} = "{value}"' for name, value in given.items())
    root = Root(1, -1, 1000, {})
    plain = make("[[rule]]\n").new_task(os.getpid(), GPU, root)
    placed = make(f"[[rule]]\nset = {{ {words} }}\n")
    managed = placed.new_task(os.getpid(), GPU, root)
    assert root.quota.limit == (2 << 30 if key == "memory" else None)
    if key not in ("memory", "interleave"):
        assert replace(managed.task, since=0.0) != replace(plain.task, since=0.0)
    placed = make("[[rule]]\n")
    found = placed.revised(managed)
    assert found is not None
    assert replace(placed.shaped(managed, found), since=0.0) == replace(plain.task, since=0.0)
    assert found.controls == {}
    placed.limit_memory(root, os.getpid(), found)
    assert root.quota.limit is None


def test_what_the_kernel_foretold_counts_without_asking_the_rules(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody_asks(pid: int) -> None:
        pytest.fail(f"the rules are asked about {pid}")

    placed = make(RULES)
    monkeypatch.setattr(placement, "facts_of", nobody_asks)
    me = os.getpid()
    placed.foretold[me] = Match({"class": "batch", "weight": "50"}, "a.toml:7", {"pod": "one"}, ("lowered",))
    found = placed.settings_of(me, {"weight": "60"})
    assert (found.settings, found.rule) == ({"class": "batch", "weight": "60"}, "a.toml:7")
    root = Root(me, -1, 1000, {"weight": "70"})
    assert placed.class_of_new(me, root) is TaskClass.BATCH
    managed = placed.new_task(me, GPU, root)
    assert (managed.task.task_class, managed.task.weight, managed.rule) == (TaskClass.BATCH, 70, "a.toml:7")
    assert (dict(managed.labels), managed.variables, managed.environment) == ({"pod": "one"}, frozenset(), {})


def test_variables_that_rules_ask_about_are_looked_for_and_no_others(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed = make('[[rule]]\nenvironment = { TEAM = "a", ZONE = "z" }\n')
    has = {"TEAM": "a", "HOME": "/root", "KIND": "x"}

    def facts_of(_pid: int, variables: frozenset[str]) -> Facts:
        return Facts(1000, "python", environment={name: has[name] for name in variables & has.keys()})

    monkeypatch.setattr(placement, "facts_of", facts_of)
    managed = placed.new_task(os.getpid(), GPU, Root(os.getpid(), -1, 1000, {}))
    assert (managed.variables, managed.environment) == ({"TEAM", "ZONE"}, {"TEAM": "a"})
