"""The rules file: settings by user, command and the like, and limits of each GPU.

`docs/rules.md` describes it. An error in it is refused when it is read, with its line.
"""

from __future__ import annotations

import fnmatch
import pwd
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from runlist import trusted
from runlist.daemon.placement.facts import Facts, facts_of
from runlist.daemon.placement.toml_lines import TomlPath, line_numbers
from runlist.errors import NoPermissionError, UsageError
from runlist.settings.table import NO_SETTINGS, apply_changes, parse_request, parse_setting, parse_settings
from runlist.settings.values import MAX_GROUP_NAME
from runlist.text import printable
from runlist.units import parse_size

__all__ = ["Facts", "Limits", "Match", "Over", "Rules", "facts_of"]

MAX_FILE = 1 << 20


class Over(StrEnum):
    """What happens to a process that would exceed a limit: it waits, is not started, or runs as batch."""

    QUEUE = "queue"
    REFUSE = "refuse"
    BATCH = "batch"


@dataclass(frozen=True, slots=True)
class Limits:
    """The most tasks and the most bytes of memory on one GPU; None is no limit. `where` is their line."""

    tasks: int | None = None
    memory: int | None = None
    over: Over = Over.QUEUE
    where: str = ""


@dataclass(frozen=True, slots=True)
class Match:
    """The settings that a rule gives, and its line."""

    settings: dict[str, str]
    where: str


Condition = Callable[[Facts], bool]


@dataclass(frozen=True, slots=True)
class _Rule:
    conditions: tuple[Condition, ...]
    settings: Mapping[str, str]
    where: str


class Rules:
    """The rules of one file, in order; true when there are any."""

    def __init__(self, rules: tuple[_Rule, ...], limits: Limits) -> None:
        self._rules = rules
        self.limits = limits

    def __bool__(self) -> bool:
        return bool(self._rules)

    @classmethod
    def none(cls) -> Rules:
        """No rules and no limits."""
        return cls((), Limits())

    @classmethod
    def load(cls, path: Path) -> Rules:
        """Read a file. Raises UsageError for a bad one: `file:line: the line: what is wrong`."""
        return _Reader(path).read()

    def match(self, facts: Facts) -> Match | None:
        """The match of the first rule that matches, or None."""
        for rule in self._rules:
            if all(condition(facts) for condition in rule.conditions):
                return Match(_named(rule.settings, facts), rule.where)
        return None


def _named(settings: Mapping[str, str], facts: Facts) -> dict[str, str]:
    """Settings with the group's name filled in: cgroup, container and user stand for the process' own. A process
    without one is in no group.
    """
    named = dict(settings)
    names = {"cgroup": facts.cgroup, "container": facts.container, "user": str(facts.uid)}
    kind = settings.get("group", "")
    if kind in names:
        del named["group"]
        if name := names[kind]:
            plain = "".join(letter if letter.isprintable() and letter != " " else "_" for letter in name)
            named["group"] = f"{kind}:{plain}"[:MAX_GROUP_NAME]
    return named


class _Wrong(Exception):
    """Something at `path` of the document is wrong; the message says what to do."""

    def __init__(self, path: TomlPath, message: str) -> None:
        super().__init__(message)
        self.path = path


class _Reader:
    """Reads one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: dict[TomlPath, int] = {}
        self._source: list[str] = []

    def read(self) -> Rules:
        text = self._text()
        self._source = text.split("\n")
        try:
            document = tomllib.loads(text)
            self._lines = line_numbers(text)
            return self._rules(document)
        except _Wrong as wrong:
            raise self._error(self._line(wrong.path), str(wrong)) from None
        except RecursionError:
            raise self._error(1, "this is nested too deeply") from None
        except ValueError as error:  # tomllib's, and Python's own for numbers that are too long
            message, _, place = str(error).partition(" (at ")
            if not place:
                raise UsageError(f"{self._path}: {message}") from None
            number = re.match(r"line (\d+)", place)
            raise self._error(int(number[1]) if number else len(self._source), message) from None

    def _text(self) -> str:
        try:
            with open(trusted.open_file(self._path), "rb") as file:
                content = file.read(MAX_FILE + 1)
        except NoPermissionError as error:
            raise NoPermissionError(f"{self._path}: the rules are refused: {error}") from None
        except trusted.NoFile:
            raise UsageError(f"{self._path}: not a file: name a file of rules (docs/rules.md)") from None
        except OSError as error:
            raise UsageError(f"{self._path}: the rules cannot be read: {error.strerror}") from None
        except ValueError:
            raise UsageError(f"{str(self._path)!r}: no file has such a name") from None
        if len(content) > MAX_FILE:
            raise UsageError(f"{self._path}: more than {MAX_FILE >> 20} MiB of rules: shorten it")
        try:
            return content.decode().replace("\r\n", "\n")
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            raise UsageError(f"{self._path}:{line}: not UTF-8 text: save it as such") from None

    def _line(self, path: TomlPath) -> int:
        """The line of a path, or of the next thing above it that has one."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 1)

    def _error(self, line: int, message: str) -> UsageError:
        source = self._source[min(line, len(self._source)) - 1].strip()
        source = printable(source)
        shown = source if len(source) <= 80 else f"{source[:77]}..."
        return UsageError(f"{self._path}:{line}: {shown or '(an empty line)'}: {message}")

    def _where(self, path: TomlPath) -> str:
        return f"{self._path.name}:{self._line(path)}"

    def _rules(self, document: dict[str, Any]) -> Rules:
        _check_keys((), document, ("limits", "rule"))
        limits = Limits()
        if "limits" in document:
            limits = _limits(document["limits"], self._where(("limits",)))
        rules, promised = [], 0.0
        for path, table in _tables(("rule",), document.get("rule", [])):
            rule = _rule(path, table, self._where(path))
            rules.append(rule)
            promised += _deadline_fraction(rule.settings)
            if promised > 1 + 1e-9:
                raise _Wrong(
                    (*path, "set", "deadline"),
                    f"the deadlines up to here ask for {promised:.0%} of a GPU together: lower them to 100 %",
                )
        return Rules(tuple(rules), limits)


def _deadline_fraction(settings: Mapping[str, str]) -> float:
    task = apply_changes(parse_settings(settings), NO_SETTINGS)
    return task.deadline.fraction if task.deadline is not None else 0.0


# -- tables ----------------------------------------------------------------------------------------


def _check_keys(path: TomlPath, table: object, allowed: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise _Wrong(path, "this is a table: write it with its keys")
    for key in table:
        if key not in allowed:
            raise _Wrong((*path, key), f"no key {key!r} here: take {', '.join(allowed)}")
    return table


def _tables(path: TomlPath, value: object) -> Iterator[tuple[TomlPath, object]]:
    if not isinstance(value, list):
        raise _Wrong(path, "write [[rule]] with double brackets: there can be several")
    for index, table in enumerate(value):
        yield (*path, index), table


def _limits(value: object, where: str) -> Limits:
    table = _check_keys(("limits",), value, ("tasks", "memory", "over"))
    tasks = table.get("tasks")
    if tasks is not None and (type(tasks) is not int or tasks < 1):
        raise _Wrong(("limits", "tasks"), "take a whole number of 1 or more")
    over = table.get("over", Over.QUEUE)
    if over not in list(Over):
        raise _Wrong(("limits", "over"), f"take {', '.join(Over)}")
    return Limits(tasks, _memory(table["memory"]) if "memory" in table else None, Over(over), where)


def _memory(value: object) -> int:
    size = parse_size(value) if isinstance(value, str) else value if type(value) is int else None
    if size is None or size < 1:
        raise _Wrong(("limits", "memory"), 'take a size with a unit, such as "120 GiB" or "900 MB", or bytes')
    return size


def _rule(path: TomlPath, value: object, where: str) -> _Rule:
    table = _check_keys(path, value, (*_CONDITIONS, "set"))
    conditions = tuple(_CONDITIONS[key]((*path, key), table[key]) for key in _CONDITIONS if key in table)
    return _Rule(conditions, _settings((*path, "set"), table.get("set", {})), where)


def _settings(path: TomlPath, value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise _Wrong(path, 'take a table of settings, such as { class = "batch", weight = 50 }')
    settings = {}
    for key, word in value.items():
        if type(word) not in (str, int, float):
            raise _Wrong((*path, key), "take a string or a number")
        settings[key] = str(word)
        try:
            parse_setting(key, settings[key])
        except UsageError as error:
            raise _Wrong((*path, key), str(error)) from None
    try:
        parse_request(settings)
    except UsageError as error:
        raise _Wrong((*path, str(error).partition("=")[0]), str(error)) from None
    return settings


# -- conditions ------------------------------------------------------------------------------------


def _words(path: TomlPath, value: object) -> Iterator[tuple[TomlPath, object]]:
    """A value, or each of a list of them."""
    if not isinstance(value, list):
        yield path, value
    elif not value:
        raise _Wrong(path, "an empty list matches nothing: name something, or leave the key out")
    else:
        yield from (((*path, index), word) for index, word in enumerate(value))


def _users(path: TomlPath, value: object) -> Condition:
    uids = {_uid(place, word) for place, word in _words(path, value)}
    return lambda facts: facts.uid in uids


def _uid(path: TomlPath, word: object) -> int:
    if type(word) is int and 0 <= word < 1 << 32:
        return word
    if not isinstance(word, str):
        raise _Wrong(path, "take a user's name or number, or a list of them")
    try:
        return pwd.getpwnam(word).pw_uid
    except (KeyError, ValueError):
        if word.isascii() and word.isdecimal() and len(word) < 10:
            return int(word)
        raise _Wrong(path, f"no user {word!r} on this machine: take a name or a number") from None


def _matching(attribute: str, rooted: bool = False) -> Callable[[TomlPath, object], Condition]:
    def condition(path: TomlPath, value: object) -> Condition:
        patterns = [_glob(place, word) for place, word in _words(path, value)]
        if rooted:
            for place, word in _words(path, value):
                if str(word)[0] not in "/*?[":
                    raise _Wrong(place, "a cgroup path begins with /: this matches nothing")

        def matches(facts: Facts) -> bool:
            text: str = getattr(facts, attribute)
            return bool(text) and any(pattern.fullmatch(text) for pattern in patterns)  # "*" is any, not none

        return matches

    return condition


def _environment(path: TomlPath, value: object) -> Condition:
    if not isinstance(value, dict) or not value:
        raise _Wrong(path, 'take a table of variables and patterns, such as { RUNLIST_CLASS = "batch" }')
    wanted = {
        name: [_glob(place, word) for place, word in _words((*path, name), words)] for name, words in value.items()
    }

    def matches(facts: Facts) -> bool:
        return all(
            name in facts.environment and any(pattern.fullmatch(facts.environment[name]) for pattern in patterns)
            for name, patterns in wanted.items()
        )

    return matches


def _glob(path: TomlPath, word: object) -> re.Pattern[str]:
    """A pattern with * ? [seq] and [!seq], for the whole text; * also takes slashes and spaces."""
    if not isinstance(word, str) or not word:
        raise _Wrong(path, 'take a pattern, such as "*train.py*", or a list of them')
    rest = word
    while "[" in rest:
        rest = rest.partition("[")[2]
        end = rest.find("]", 2 if rest.startswith("!") else 1)  # a bracket that comes first is meant itself
        if end < 0:
            raise _Wrong(path, "a [ without its ] in this pattern: close it, or write [[] for the bracket itself")
        rest = rest[end + 1 :]
    return re.compile(fnmatch.translate(word))


_CONDITIONS: dict[str, Callable[[TomlPath, object], Condition]] = {
    "user": _users,
    "command": _matching("command"),
    "cgroup": _matching("cgroup", rooted=True),
    "container": _matching("container"),
    "environment": _environment,
}
