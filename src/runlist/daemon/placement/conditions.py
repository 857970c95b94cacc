"""What rules and bounds ask of a process: a function for each key, which reads its value in a file of rules."""

from __future__ import annotations

import fnmatch
import pwd
import re
from collections.abc import Callable, Iterator, Mapping

import msgspec

from runlist.daemon.placement.facts import MAX_COMM, Facts
from runlist.daemon.placement.toml_lines import TomlPath
from runlist.proc.cgroup import UNITS, units_of


class Wrong(Exception):
    """Something at `path` of the document is wrong; the message says what to do."""

    def __init__(self, path: TomlPath, message: str) -> None:
        super().__init__(message)
        self.path = path


class Condition(msgspec.Struct, frozen=True):
    """What one key asks for. `exact` has the texts of which the fact has to be one; it is empty where any is a pattern:
    then only `matches` tells. `variables` are those of the environment that it asks about.
    """

    matches: Callable[[Facts], bool]
    exact: frozenset[str] = frozenset()
    variables: frozenset[str] = frozenset()


Reader = Callable[[TomlPath, object], Condition]


def each_of(path: TomlPath, value: object) -> Iterator[tuple[TomlPath, object]]:
    """A value, or each of a list of them."""
    if not isinstance(value, list):
        yield path, value
    elif not value:
        raise Wrong(path, "an empty list matches nothing: name something, or leave the key out")
    else:
        yield from (((*path, index), word) for index, word in enumerate(value))


def _users(path: TomlPath, value: object) -> Condition:
    uids = {_uid(place, word) for place, word in each_of(path, value)}
    return Condition(lambda facts: facts.uid in uids, frozenset(map(str, uids)))


def _comm(path: TomlPath, value: object) -> Condition:
    names = set()
    for place, word in each_of(path, value):
        if not isinstance(word, str) or not 0 < len(word.encode()) <= MAX_COMM:
            raise Wrong(place, f"take a name as /proc/PID/comm has it, of up to {MAX_COMM} bytes, or a list of them")
        names.add(word)
    return Condition(lambda facts: facts.comm in names, frozenset(names))


def _uid(path: TomlPath, word: object) -> int:
    if type(word) is int and 0 <= word < 1 << 32:
        return word
    if not isinstance(word, str):
        raise Wrong(path, "take a user's name or number, or a list of them")
    try:
        return pwd.getpwnam(word).pw_uid
    except (KeyError, ValueError):
        if word.isascii() and word.isdecimal() and len(word) <= 10 and int(word) < 1 << 32:
            return int(word)
        raise Wrong(path, f"no user {word!r} on this machine: take a name or a number") from None


def _matching(attribute: str, rooted: bool = False) -> Reader:
    def condition(path: TomlPath, value: object) -> Condition:
        words = list(each_of(path, value))
        patterns = [glob(place, word) for place, word in words]
        if rooted:
            for place, word in words:
                if str(word)[0] not in "/*?[":
                    raise Wrong(place, "a cgroup path begins with /: this matches nothing")
                if str(word).endswith("/") and word != "/":
                    raise Wrong(place, "a cgroup path ends without /: this matches nothing; write /* for those below")
        texts = frozenset(str(word) for _, word in words)

        def matches(facts: Facts) -> bool:
            text: str = getattr(facts, attribute)
            return bool(text) and any(pattern.fullmatch(text) for pattern in patterns)  # "*" is any, not none

        return Condition(matches, texts if not any(set(text) & set("*?[") for text in texts) else frozenset())

    return condition


def patterns_of(path: TomlPath, value: object, what: str, example: str) -> dict[str, list[re.Pattern[str]]]:
    """A table of names, each with a pattern or a list of them."""
    if not isinstance(value, dict) or not value:
        raise Wrong(path, f"take a table of {what} and patterns, such as {example}")
    return {name: [glob(place, word) for place, word in each_of((*path, name), words)] for name, words in value.items()}


def all_match(wanted: Mapping[str, list[re.Pattern[str]]], texts: Mapping[str, str]) -> bool:
    """Whether every name that is wanted is there, with a text that one of its patterns matches."""
    return all(
        name in texts and any(pattern.fullmatch(texts[name]) for pattern in patterns)
        for name, patterns in wanted.items()
    )


def _environment(path: TomlPath, value: object) -> Condition:
    wanted = patterns_of(path, value, "variables", '{ RUNLIST_CLASS = "batch" }')
    for name in wanted:
        if not name or "=" in name:
            raise Wrong((*path, name), "the name of a variable has no =, and is not empty: its value stands behind it")
    return Condition(lambda facts: all_match(wanted, facts.environment), variables=frozenset(wanted))


def glob(path: TomlPath, word: object) -> re.Pattern[str]:
    """A pattern with * ? [seq] and [!seq], for the whole text; * also takes slashes and spaces."""
    if not isinstance(word, str) or not word:
        raise Wrong(path, 'take a pattern, such as "*train.py*", or a list of them')
    rest = word
    while "[" in rest:
        rest = rest.partition("[")[2]
        end = rest.find("]", 2 if rest.startswith("!") else 1)  # a bracket that comes first is meant itself
        if end < 0:
            raise Wrong(path, "a [ without its ] in this pattern: close it, or write [[] for the bracket itself")
        rest = rest[end + 1 :]
    return re.compile(fnmatch.translate(word))


def _units(path: TomlPath, value: object) -> Condition:
    patterns = []
    for place, word in each_of(path, value):
        patterns.append(glob(place, word))
        if not str(word).endswith((*UNITS, "*", "?", "]")):
            raise Wrong(place, f"a unit ends with {', '.join(UNITS[:-1])} or {UNITS[-1]}: this matches nothing")
    return Condition(
        lambda facts: any(pattern.fullmatch(unit) for unit in units_of(facts.cgroup) for pattern in patterns)
    )


CONDITIONS: dict[str, Reader] = {
    "user": _users,
    "command": _matching("command"),
    "comm": _comm,
    "cgroup": _matching("cgroup", rooted=True),
    "container": _matching("container"),
    "unit": _units,
    "environment": _environment,
}
