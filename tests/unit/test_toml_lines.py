"""Where things are in a TOML document."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runlist.daemon.placement.toml_lines import TomlPath, deep_key_at, line_numbers

ODD = '''\
# a comment with [brackets] and "quotes"
top = 1 # another

[ limits ]
  "tasks"   =   3
'memory' = """
[not.a.table]
key = "\\""
"""
over.deep."er # x" = [ # open
  "a]", 'b"',   # comment ]
  [ 1, 2 ],
  { x = 1, y.z = [ 5,
    6 ] },
]
text = \'\'\'one "" \'\' two\'\'\'
quotes = """two"""""

[[rule]]
user = "alice"
[rule.set]
class = "batch"

[[ rule ]]
set = { class = "batch", "weight" = 5 }
when = 1979-05-27 07:32:00
[[rule.inner]]
a = -1.5e3
[[rule.inner]]
a = 2
[rule.inner.deep]
b = true'''

EXPECTED: dict[TomlPath, int] = {
    ("top",): 2,
    ("limits",): 4,
    ("limits", "tasks"): 5,
    ("limits", "memory"): 6,
    ("limits", "over", "deep", "er # x"): 10,
    ("limits", "over", "deep", "er # x", 0): 11,
    ("limits", "over", "deep", "er # x", 2, 1): 12,
    ("limits", "over", "deep", "er # x", 3, "x"): 13,
    ("limits", "over", "deep", "er # x", 3, "y", "z", 1): 14,
    ("limits", "text"): 16,
    ("limits", "quotes"): 17,
    ("rule",): 19,
    ("rule", 0): 19,
    ("rule", 0, "user"): 20,
    ("rule", 0, "set"): 21,
    ("rule", 0, "set", "class"): 22,
    ("rule", 1): 24,
    ("rule", 1, "set", "weight"): 25,
    ("rule", 1, "when"): 26,
    ("rule", 1, "inner", 0, "a"): 28,
    ("rule", 1, "inner", 1): 29,
    ("rule", 1, "inner", 1, "deep", "b"): 32,
}


def named(value: Any, path: TomlPath = ()) -> Iterator[TomlPath]:
    """Paths of all that a document has."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key)
            yield from named(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield (*path, index)
            yield from named(inner, (*path, index))


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_odd_formatting(newline: str) -> None:
    lines = line_numbers(ODD.replace("\n", newline))
    for path, line in EXPECTED.items():
        assert lines[path] == line, path
    assert set(lines) == set(named(tomllib.loads(ODD)))


@pytest.mark.parametrize("document", ["", "\n\n", "# only this", "a=1", " \t[a]", "\n[[a]]\n\n[[a]]"])
def test_small_documents(document: str) -> None:
    assert set(line_numbers(document)) == set(named(tomllib.loads(document)))


KEYS = st.sampled_from(["a", "b", "'c d'", '"e.f"', "x.y", "1", "a . b", '"\\u0041"'])
SCALARS = st.sampled_from(
    ["1", "true", '"x # ]"', "'}'", "1.5", "2001-01-01 10:00:00", '"""\n]\n"""', "'''\n\"\n'''", '""', '"""a\\"""""']
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda values: "[\n" + ", # ]\n".join(values) + "\n]")
        | st.lists(inner, max_size=2).map(
            lambda values: "{ " + ", ".join(f"k{number}={value}" for number, value in enumerate(values)) + " }"
        )
    ),
    max_leaves=6,
)
LINES = st.one_of(
    st.tuples(KEYS, VALUES).map(" = ".join),
    KEYS.map("[{}]".format),
    KEYS.map("[[ {} ]] # x".format),
    st.just("# [comment]"),
    st.just(""),
)


@given(st.lists(LINES, max_size=8).map("\n".join), st.sampled_from(["\n", "\r\n"]))
def test_every_name_of_a_valid_document_has_a_line(document: str, newline: str) -> None:
    try:
        tree = tomllib.loads(document)
    except tomllib.TOMLDecodeError:
        return
    lines = line_numbers(document.replace("\n", newline))
    assert set(lines) == set(named(tree))
    assert all(1 <= line <= document.count("\n") + 1 for line in lines.values())


@pytest.mark.parametrize(("parts", "line"), [(16, None), (17, 4), (40, 4)])
def test_a_key_with_too_many_parts_is_found_before_anybody_reads_it(parts: int, line: int | None) -> None:
    deep = ".".join('"a.b"' if number % 2 else "k" for number in range(parts))
    assert deep_key_at(f"\n# x\ntop = '{'.'.join('k' * 40)}'\n{deep} = 1\nlast = 2\n") == line
