"""Policies and rules in files of a user's own, as people write Python."""

from __future__ import annotations

import pickle
import sys
import typing
from pathlib import Path
from typing import Any

import pytest

from runlist.errors import UsageError
from runlist.operations import load_rule
from runlist.plugins import Plugins
from runlist.policies import PolicySpec, load_policy

POLICY = """
from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import msgspec

from runlist.model import Share
from runlist.policies import Decision, Policy


class Mood(Enum):
    CALM = "calm"


@dataclass
class State:
    turns: int = 0
    mood: Mood = Mood.CALM
    seen: list[str] = field(default_factory=list)


class Kept(msgspec.Struct):
    mood: Mood | None = None


class Mine(Policy):
    summary = "keeps a state"

    def __init__(self, options):
        self.state = State(turns=SEED)
        self.kept = msgspec.json.decode(b'{"mood": "calm"}', type=Kept)

    def decide(self, tasks, now):
        return Decision({task.key: Share(3000) for task in tasks})


POLICY = Mine
"""
RULE = """
from __future__ import annotations

from dataclasses import dataclass

from runlist.operations import ALL, Admission, Rule


@dataclass(slots=True)
class State:
    late: int | None = None


class Mine(Rule):
    summary = "keeps a state"

    def admission(self, model):
        return Admission(ALL, sms=State(7).late)


RULE = Mine
"""


def write(path: Path, text: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def loaded(path: Path, seed: int) -> Any:
    """The policy itself, which is below the layers."""
    found: Any = load_policy(PolicySpec(write(path, POLICY.replace("SEED", str(seed)))))
    while hasattr(found, "below"):
        found = found.below
    return found


def test_a_policy_may_have_dataclasses_and_whatever_else_asks_for_its_module(tmp_path: Path) -> None:
    policy = loaded(tmp_path / "my policy.v2.py", 3)
    assert pickle.loads(pickle.dumps(policy.state)) == policy.state
    assert typing.get_type_hints(type(policy.state))["mood"] is type(policy.state.mood)
    assert policy.kept.mood is policy.state.mood


def test_a_rule_may_have_them_too(tmp_path: Path) -> None:
    rule: Any = load_rule(write(tmp_path / "mine.py", RULE))
    assert rule.admission(None).sms == 7


def test_files_of_one_name_are_two_modules_and_a_file_that_changed_is_its_newest(tmp_path: Path) -> None:
    first, second = loaded(tmp_path / "a" / "mine.py", 1), loaded(tmp_path / "b" / "mine.py", 2)
    assert type(first).__module__ != type(second).__module__
    for policy in (first, second):
        assert pickle.loads(pickle.dumps(policy.state)) == policy.state
    again = loaded(tmp_path / "a" / "mine.py", 4)
    assert again.state.turns == 4
    assert pickle.loads(pickle.dumps(again.state)) == again.state


@pytest.mark.parametrize("text", ["1 / 0", "def (", "raise SystemExit"])
def test_a_file_that_fails_leaves_what_was_loaded_before(tmp_path: Path, text: str) -> None:
    policy = loaded(tmp_path / "mine.py", 1)
    before = dict(sys.modules)
    with pytest.raises(UsageError, match="cannot be loaded"):
        load_policy(PolicySpec(write(tmp_path / "mine.py", text)))
    with pytest.raises(UsageError, match="cannot be loaded"):
        load_policy(PolicySpec(write(tmp_path / "other.py", text)))
    assert sys.modules == before
    assert pickle.loads(pickle.dumps(policy.state)) == policy.state


@pytest.mark.parametrize("line", ["from runlist.model import NoSuchThing", "import runlist.no_such_module"])
def test_one_of_another_version_is_refused_in_one_line(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a daemon finds it that went on while another version was installed over its own."""
    folder = tmp_path / "of_another_version"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "newer.py").write_text(f"{line}\n")
    monkeypatch.syspath_prepend(tmp_path)
    kind = Plugins("policy", folder.name, object, "object", frozenset())
    with pytest.raises(UsageError, match=r"policy newer cannot be loaded \(.*\): where another version of Runlist was"):
        kind.ours("newer")
    with pytest.raises(UsageError, match="no policy 'older': take newer or the path"):
        kind.ours("older")


def test_what_is_no_exception_is_a_line_too_whenever_it_is_raised(tmp_path: Path) -> None:
    """Else nobody would answer whoever asked for the policy."""
    made = POLICY.replace("State(turns=SEED)", "next(iter(quit_, 0))").replace("SEED", "1")
    made = made.replace("class Mine", "def quit_():\n    raise GeneratorExit\n\n\nclass Mine")
    for text, said in (("raise GeneratorExit", ": line 1: GeneratorExit"), (made, r": line \d+: GeneratorExit\(\)")):
        with pytest.raises(UsageError, match=said):
            load_policy(PolicySpec(write(tmp_path / "mine.py", text)))
