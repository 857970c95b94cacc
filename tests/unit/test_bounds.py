"""Bounds of the main rules file: the most that drop-ins can give."""

from __future__ import annotations

from pathlib import Path

import pytest

from runlist.daemon.placement.book import RuleBook
from runlist.daemon.placement.rule import Match
from runlist.daemon.placement.rules import Facts, Rules
from runlist.errors import UsageError

FACTS = Facts(1000, "python serve.py", "/kubepods/x", "ab" * 32, {"TEAM": "red"})


def within(tmp_path: Path, bounds: str, asked: str, labels: str = 'namespace = "team-a"') -> Match:
    """What a drop-in gets that asks for these settings, beside a main file with these bounds."""
    main = tmp_path / "rules.toml"
    main.write_text(f"{bounds}\n[[rule]]\nset.weight = 9999\n")
    book = RuleBook(Rules.load(main))
    text = f"[[rule]]\nlabels = {{ {labels} }}\nset = {{ {asked} }}\n"
    book.put("a.toml", Rules.of_drop_in(Path("/run/a.toml"), text.encode()))
    match = book.match(FACTS)
    assert match is not None
    return match


@pytest.mark.parametrize(
    ("bound", "asked", "got", "noted"),
    [
        ("weight = 200", "weight = 900", {"weight": "200"}, "weight = 900"),
        ("weight = 200", "weight = 200", {"weight": "200"}, ""),
        ("weight = 200", "", {}, ""),
        ("weight = 50", "", {"weight": "50"}, ""),
        ("cap = 50", "cap = 80, burst = '5ms'", {"cap": "50"}, "cap = 80"),
        ("cap = 50", "cap = '5ms/20ms', burst = '1ms'", {"cap": "5ms/20ms", "burst": "1ms"}, ""),
        ("cap = 50", "cap = 'max'", {"cap": "50"}, "cap = max"),
        ("cap = 50", "", {"cap": "50"}, ""),
        ("cap = 'max'", "cap = 80", {"cap": "80"}, ""),
        ("cap = 50", "deadline = '9ms/10ms'", {"cap": "50", "class": "latency"}, "deadline = 9ms/10ms"),
        ("cap = 50", "deadline = '4ms/10ms'", {"cap": "50", "deadline": "4ms/10ms"}, ""),
        ("cap = 50\nclass = 'batch'", "deadline = '9ms/10ms'", {"cap": "50", "class": "batch"}, "deadline = 9ms/10ms"),
        ("memory = '20G'", "memory = '40G'", {"memory": "20G"}, "memory = 40G"),
        ("memory = '20G'", "memory = 1073741824", {"memory": "1073741824"}, ""),
        ("memory = '20G'", "memory = 'max'", {"memory": "20G"}, "memory = max"),
        ("memory = '20G'", "", {"memory": "20G"}, ""),
        ("p99 = '5ms'", "p99 = '1ms'", {"p99": "5ms"}, "p99 = 1ms"),
        ("p99 = '5ms'", "p99 = '9ms'", {"p99": "9ms"}, ""),
        ("p99 = '5ms'", "p99 = 'none'", {"p99": "none"}, ""),
        ("p99 = '5ms'", "", {}, ""),
        ("class = ['normal', 'batch']", "class = 'latency'", {"class": "normal"}, "class = latency"),
        ("class = ['normal', 'batch']", "class = 'batch'", {"class": "batch"}, ""),
        ("class = 'batch'", "", {"class": "batch"}, ""),
        ("class = 'batch'", "class = 'latency', p99 = '5ms'", {"class": "batch"}, "class = latency"),
        ("class = 'latency'", "class = 'batch'", {"class": "batch"}, ""),
        ("class = ['latency', 'batch']", "class = 'normal'", {"class": "batch"}, "class = normal"),
        ("class = ['latency', 'batch']", "deadline = '5ms/20ms'", {"class": "latency"}, "deadline = 5ms/20ms"),
    ],
)
def test_what_is_beyond_a_bound_is_lowered_to_it(
    tmp_path: Path, bound: str, asked: str, got: dict[str, str], noted: str
) -> None:
    match = within(tmp_path, f"[[bound]]\n{bound}\n", asked)
    assert match.settings == got
    assert match.where == "a.toml:1"
    if noted:
        (note,) = match.notes
        assert note.startswith(f"a.toml:1: {noted} is beyond rules.toml:1: it is ")
    else:
        assert match.notes == ()


@pytest.mark.parametrize(
    ("asks", "applies"),
    [
        ("", True),
        ('labels = { namespace = "team-*" }', True),
        ('labels = { namespace = ["x", "team-a"] }', True),
        ('labels = { namespace = "team-b" }', False),
        ('labels = { pod = "*" }', False),
        ('cgroup = "/kubepods/*"\nuser = 1000', True),
        ('cgroup = "/kubepods/*"\nuser = 1001', False),
        ('environment = { TEAM = "red" }', True),
        ('environment = { TEAM = "blue" }', False),
    ],
)
def test_for_whom_a_bound_stands(tmp_path: Path, asks: str, applies: bool) -> None:
    match = within(tmp_path, f"[[bound]]\n{asks}\nweight = 200\n", "weight = 900")
    assert match.settings["weight"] == ("200" if applies else "900")


def test_all_bounds_that_match_count(tmp_path: Path) -> None:
    bounds = "[[bound]]\nweight = 200\n[[bound]]\nweight = 100\ncap = 50\n[[bound]]\ncap = 70\n"
    match = within(tmp_path, bounds, "weight = 900")
    assert match.settings == {"weight": "100", "cap": "50"}
    assert [note.partition(" is beyond ")[2] for note in match.notes] == [
        "rules.toml:1: it is 200",
        "rules.toml:3: it is 100",
    ]


def test_processes_of_a_container_do_not_have_as_much_each(tmp_path: Path) -> None:
    match = within(tmp_path, "[[bound]]\nmemory = '20G'\n", "group = 'none'")
    assert match.settings == {"memory": "20G", "group": f"container:{FACTS.container}"}
    assert match.notes == ("a.toml:1: group = none is beyond rules.toml:1: it is the container",)
    assert within(tmp_path, "[[bound]]\nclass = 'batch'\n", "group = 'none'").settings["group"] == "none"
    assert within(tmp_path, "[[bound]]\np99 = '5ms'\n", "group = 'none'").settings["group"] == "none"
    assert within(tmp_path, "[[bound]]\nweight = 200\n", "group = 'mine'").settings == {"group": "mine"}


def test_the_main_files_own_rules_are_not_bound(tmp_path: Path) -> None:
    main = tmp_path / "rules.toml"
    main.write_text("[[bound]]\nweight = 200\n[[rule]]\nset.weight = 9999\n")
    match = RuleBook(Rules.load(main)).match(FACTS)
    assert match is not None
    assert (match.settings, match.notes) == ({"weight": "9999"}, ())


def test_a_bound_asks_for_variables_that_are_kept(tmp_path: Path) -> None:
    main = tmp_path / "rules.toml"
    main.write_text("[[bound]]\nenvironment = { TEAM = 'red' }\nweight = 1\n[[rule]]\nenvironment = { A = 'b' }\n")
    book = RuleBook(Rules.load(main))
    assert book.variables == {"TEAM", "A"}
    book.put("a.toml", Rules.of_drop_in(Path("a.toml"), b"[[rule]]\nenvironment = { C = 'd' }\n"))
    assert book.variables == {"TEAM", "A", "C"}
    book.use(Rules.none())
    assert book.variables == {"C"}


@pytest.mark.parametrize(
    ("bound", "what"),
    [
        ("", "a bound without a limit"),
        ("user = 0", "a bound without a limit"),
        ("weight = 0", "a weight is 1 to 10000"),
        ("class = 'best'", "take deadline, latency, normal, batch"),
        ("class = []", "an empty list"),
        ("class = ['batch', 5]", "take deadline, latency"),
        ("group = 'x'", "no key 'group' here"),
        ("weight = 5\nlabels = 'x'", "take a table of labels"),
        ("cap = [50]", "take a string or a number"),
    ],
)
def test_a_bound_that_is_none_is_refused(tmp_path: Path, bound: str, what: str) -> None:
    main = tmp_path / "rules.toml"
    main.write_text(f"[[bound]]\n{bound}\n")
    with pytest.raises(UsageError, match=what):
        Rules.load(main)


def test_whether_any_rule_makes_processes_latency_critical(tmp_path: Path) -> None:
    main = tmp_path / "rules.toml"
    main.write_text('[[rule]]\nset.class = "batch"\n')
    book = RuleBook(Rules.load(main))
    assert not book.give_critical
    for given in ('class = "latency"', 'class = "deadline", deadline = "4ms/10ms"', 'deadline = "4ms/10ms"'):
        drop_in = Rules.of_drop_in(Path("/run/a.toml"), f"[[rule]]\nset = {{ {given} }}\n".encode())
        book.put("a.toml", drop_in)
        assert book.give_critical
        book.put("a.toml", None)
        assert not book.give_critical
    main.write_text('[[rule]]\nset.class = "latency"\n')
    book.use(Rules.load(main))
    assert book.give_critical
