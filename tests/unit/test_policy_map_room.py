"""The entries of the policy map, however many the rules name: it is filled in the daemon's own thread."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runlist.daemon.kernel.policy import PolicyMap
from runlist.daemon.placement.book import RuleBook
from runlist.daemon.placement.rules import Rules
from runlist.proc import cgroup

# As they are to be: taken from the code they would hold whatever it says.
MOST_ENTRIES = 4096

FEW = '[[rule]]\nuser = "7"\nset = { class = "batch" }\n'


def book_of(content: str) -> RuleBook:
    book = RuleBook(Rules.none())
    book.put("a.toml", Rules.of_drop_in(Path("/a.toml"), content.encode()))
    return book


def test_a_rule_of_three_long_lists_leaves_the_map_as_it_was() -> None:
    users, comms, cgroups = (json.dumps([f"{name}{number}" for number in range(1000)]) for name in ("", "c", "/g"))
    book = book_of(FEW)
    policy = PolicyMap(book)
    (entry,) = policy.entries
    book.put(
        "a.toml",
        Rules.of_drop_in(
            Path("/a.toml"),
            f'[[rule]]\nuser = {users}\ncomm = {comms}\ncgroup = {cgroups}\nset = {{ class = "batch" }}\n'.encode(),
        ),
    )
    policy.update()
    assert policy.entries == [entry]
    assert f"there is room for {MOST_ENTRIES}: name fewer" in policy.trouble
    book.put("a.toml", Rules.of_drop_in(Path("/a.toml"), FEW.encode()))
    policy.update()
    assert ([each.who for each in policy.entries], policy.trouble) == ([entry.who], "")


def test_as_many_behind_one_that_names_them_all_leave_the_map_as_it_was() -> None:
    comms, cgroups = (json.dumps([f"{name}{number}" for number in range(1000)]) for name in ("c", "/g"))
    policy = PolicyMap(
        book_of(f'{FEW}[[rule]]\nuser = "7"\ncomm = {comms}\ncgroup = {cgroups}\nset = {{ weight = 50 }}\n')
    )
    assert "name fewer" in policy.trouble


def test_a_look_works_the_entries_out_only_where_a_cgroup_came_or_went(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers: dict[str, int] = {}
    monkeypatch.setattr(cgroup, "unified", lambda: Path("/"))
    monkeypatch.setattr(cgroup, "number_of", lambda path, above: numbers.get(path))
    policy = PolicyMap(book_of('[[rule]]\ncgroup = "/made"\nset = { class = "batch" }\n' + FEW))
    before = policy.entries
    policy.look()
    assert policy.entries is before
    numbers["/made"] = 5
    policy.look()
    assert [each.cgroup_id for each in policy.entries] == [5, None]
    del numbers["/made"]
    policy.look()
    assert [each.waits for each in policy.entries] == [True, False]


def test_a_look_tries_again_what_could_not_be_done() -> None:
    book = book_of(FEW)
    policy = PolicyMap(book)
    policy.trouble = "the policy map cannot be written"
    policy.look()
    assert policy.trouble == ""
