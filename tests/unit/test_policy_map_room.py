"""The entries of the policy map, however many the rules name: it is filled in the daemon's own thread."""

from __future__ import annotations

import json
from pathlib import Path

from runlist.daemon.kernel.policy import PolicyMap
from runlist.daemon.placement.book import RuleBook
from runlist.daemon.placement.rules import Rules
from runlist.planes.kernel.maps import MOST_ENTRIES

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
