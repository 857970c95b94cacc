"""Reading a file of rules: what it says, or one line that tells where it is wrong and what to do."""

from __future__ import annotations

import re
import tomllib
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from runlist import trusted
from runlist.daemon.placement.bounds import Bound
from runlist.daemon.placement.conditions import CONDITIONS, Wrong, each_of, patterns_of
from runlist.daemon.placement.rule import OF_THE_KERNEL, USER_DEADLINES, USER_WEIGHT, Limits, Over, Refuse, Rule
from runlist.daemon.placement.toml_lines import TomlPath, deep_key_at, line_numbers
from runlist.errors import NoPermissionError, UsageError
from runlist.model import ROUNDING, TaskClass
from runlist.protocol.kernel_autogen import MOST_GPUS
from runlist.settings.table import apply_changes, parse_request, parse_setting, parse_settings
from runlist.settings.values import LEAST_MEMORY
from runlist.text import printable
from runlist.units import parse_size

MAX_FILE = 1 << 20
MAX_DROP_IN = 1 << 16
"""Bytes. Programs write drop-ins: there may be many, each for a few processes, and reading takes 2 s for a MiB."""
MOST_USER_WEIGHT = 1_000_000
"""A hundred of the largest weights."""
MAX_LABELS = 16
MAX_LABEL = 253
_LABEL = re.compile(r"[a-z_]{1,32}")
_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,20})?) ?%?", re.ASCII)
_LIMITS = ("tasks", "user_tasks", "memory", "over", "user_deadlines", "user_weight", "user_class")
_USER_CLASSES = [TaskClass.DEADLINE, TaskClass.LATENCY, TaskClass.NORMAL]  # who asks for none has the last
_BOUNDED = ("weight", "cap", "memory", "p99")


class Reading(msgspec.Struct, frozen=True):
    """What a file says."""

    rules: tuple[Rule, ...] = ()
    limits: Limits = msgspec.field(default_factory=Limits)
    bounds: tuple[Bound, ...] = ()


def read_file(path: Path) -> Reading:
    """Read a main file. Raises UsageError for a bad one: `file:line: the line: what is wrong`."""
    return _Reader(path).read(content_of(path), ("limits", "bound", "rule"))


def read_drop_in(path: Path, content: bytes) -> Reading:
    """What a drop-in says, which has rules alone. Raises UsageError as `read_file`."""
    if len(content) > MAX_DROP_IN:
        raise UsageError(f"{shown(path)}: more than {MAX_DROP_IN >> 10} KiB of rules: shorten it")
    return _Reader(path).read(content, ("rule",))


def shown(path: Path) -> str:
    """The name of a file, as it may be shown."""
    return printable(str(path))


def content_of(path: Path) -> bytes:
    """The bytes of a file that nobody else can write. Raises UsageError."""
    try:
        with open(trusted.open_file(path), "rb") as file:
            content = file.read(MAX_FILE + 1)
    except NoPermissionError as error:
        raise NoPermissionError(f"{path}: the rules are refused: {error}") from None
    except trusted.NoFile:
        raise UsageError(f"{path}: not a file: name a file of rules (docs/rules.md)") from None
    except OSError as error:
        raise UsageError(f"{path}: the rules cannot be read: {error.strerror}") from None
    except ValueError:
        raise UsageError(f"{str(path)!r}: no file has such a name") from None
    if len(content) > MAX_FILE:
        raise UsageError(f"{path}: more than {MAX_FILE >> 20} MiB of rules: shorten it")
    return content


class _Reader:
    """Reads one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: dict[TomlPath, int] = {}
        self._source: list[str] = []

    def read(self, content: bytes, keys: tuple[str, ...]) -> Reading:
        """What the content says, which may have tables of these names."""
        text = self._text(content)
        self._source = text.split("\n")
        if (line := deep_key_at(text)) is not None:
            raise self._error(line, "this key has too many parts")
        try:
            document = tomllib.loads(text)
            self._lines = line_numbers(text)
            return self._reading(document, keys)
        except Wrong as wrong:
            raise self._error(self._line(wrong.path), str(wrong)) from None
        except RecursionError:
            raise self._error(1, "this is nested too deeply") from None
        except ValueError as error:  # tomllib's, and Python's own for numbers that are too long
            message, _, place = str(error).partition(" (at ")
            if not place:
                raise UsageError(f"{shown(self._path)}: a number in it is too long: shorten it") from None
            number = re.match(r"line (\d+)", place)
            raise self._error(int(number[1]) if number else len(self._source), message) from None

    def _text(self, content: bytes) -> str:
        try:
            return content.removeprefix(BOM_UTF8).decode().replace("\r\n", "\n")
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            raise UsageError(f"{shown(self._path)}:{line}: not UTF-8 text: save it as such") from None

    def _line(self, path: TomlPath) -> int:
        """The line of a path, or of the next thing above it that has one."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 1)

    def _error(self, line: int, message: str) -> UsageError:
        source = self._source[min(line, len(self._source)) - 1].strip()
        source = printable(source)
        said = source if len(source) <= 80 else f"{source[:77]}..."
        return UsageError(f"{shown(self._path)}:{line}: {said or '(an empty line)'}: {message}")

    def _where(self, path: TomlPath) -> str:
        return f"{printable(self._path.name)}:{self._line(path)}"

    def _reading(self, document: dict[str, Any], keys: tuple[str, ...]) -> Reading:
        if "rule" in keys and "limits" not in keys and (wrong := {"limits", "bound"} & document.keys()):
            raise Wrong((min(wrong),), "a drop-in has rules alone: write this into the main rules file")
        _check_keys((), document, keys)
        limits = Limits()
        if "limits" in document:
            limits = _limits(document["limits"], self._where(("limits",)))
        bounds = [_bound(path, table, self._where(path)) for path, table in _tables("bound", document)]
        rules, promised = [], 0.0
        for path, table in _tables("rule", document):
            rule = _rule(path, table, self._where(path))
            rules.append(rule)
            promised += _deadline_fraction(rule.settings)
            if promised > 1 + ROUNDING:
                raise Wrong(
                    (*path, "set", "deadline"),
                    f"the deadlines up to here ask for {promised:.0%} of a GPU together: lower them to 100 %",
                )
        return Reading(tuple(rules), limits, tuple(bounds))


def _deadline_fraction(settings: Mapping[str, str]) -> float:
    task = apply_changes(parse_settings(_with_numbers(settings)))
    return task.deadline.fraction if task.deadline is not None else 0.0


# -- tables ----------------------------------------------------------------------------------------


def _check_keys(path: TomlPath, table: object, allowed: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise Wrong(path, "this is a table: write it with its keys")
    for key in table:
        if key not in allowed:
            raise Wrong((*path, key), f"no key {key!r} here: take {', '.join(allowed)}")
    return table


def _tables(name: str, document: dict[str, Any]) -> Iterator[tuple[TomlPath, object]]:
    value = document.get(name, [])
    if not isinstance(value, list):
        raise Wrong((name,), f"write [[{name}]] with double brackets: there can be several")
    for index, table in enumerate(value):
        yield (name, index), table


def _limits(value: object, where: str) -> Limits:
    table = _check_keys(("limits",), value, _LIMITS)
    for key in ("tasks", "user_tasks"):
        if key in table and (type(table[key]) is not int or table[key] < 1):
            raise Wrong(("limits", key), "take a whole number of 1 or more")
    over = table.get("over", Over.QUEUE)
    if over not in list(Over):
        raise Wrong(("limits", "over"), f"take {', '.join(Over)}")
    if "over" in table and not table.keys() & {"tasks", "user_tasks", "memory"}:
        raise Wrong(("limits", "over"), "nothing can be over: name tasks, user_tasks or memory, too")
    memory = _memory(table["memory"]) if "memory" in table else None
    deadlines = _part_of_a_gpu(("limits", "user_deadlines"), table.get("user_deadlines", 100 * USER_DEADLINES))
    weight = table.get("user_weight", USER_WEIGHT)
    if type(weight) is not int or not 1 <= weight <= MOST_USER_WEIGHT:
        raise Wrong(("limits", "user_weight"), f"take a whole number of 1 to {MOST_USER_WEIGHT}")
    highest = table.get("user_class", TaskClass.DEADLINE)
    if highest not in _USER_CLASSES:
        raise Wrong(("limits", "user_class"), f"take {', '.join(_USER_CLASSES)}")
    tasks, user_tasks = table.get("tasks"), table.get("user_tasks")
    return Limits(tasks, memory, Over(over), where, user_tasks, deadlines, weight, TaskClass(highest))


def _part_of_a_gpu(path: TomlPath, value: object) -> float:
    percent = _PERCENT.fullmatch(str(value)) if type(value) in (str, int, float) else None
    if percent is None or float(percent[1]) > 100:
        raise Wrong(path, 'take a percentage, 0 to 100, such as 30 or "30%"')
    return float(percent[1]) / 100


def _memory(value: object) -> int:
    size = parse_size(value) if isinstance(value, str) else value if type(value) is int else None
    if size is None or size < 1:
        raise Wrong(("limits", "memory"), 'take a size with a unit, such as "120 GiB" or "900 MB", or bytes')
    if size < LEAST_MEMORY:
        raise Wrong(("limits", "memory"), f'{size} bytes let nobody in: give the unit, as in "120 GiB"')
    return size


def _rule(path: TomlPath, value: object, where: str) -> Rule:
    table = _check_keys(path, value, (*CONDITIONS, "set", "labels", "refuse"))
    conditions = {key: read((*path, key), table[key]) for key, read in CONDITIONS.items() if key in table}
    settings = _settings((*path, "set"), table.get("set", {}))
    labels = _labels((*path, "labels"), table.get("labels", {}))
    words = {key: _in_words(table[key]) for key in conditions}
    rule = Rule(conditions, settings, where, labels, words, _refuse((*path, "refuse"), table.get("refuse", {})))
    if rule.refuse and not rule.of_the_kernel:
        raise Wrong(
            (*path, "refuse"),
            f"what is refused goes by {', '.join(OF_THE_KERNEL)} alone, each in full: ask for nothing else here",
        )
    return rule


def _refuse(path: TomlPath, value: object) -> Refuse:
    table = _check_keys(path, value, ("slices", "groups", "gpus"))
    slices, groups, gpus = table.get("slices", False), table.get("groups"), table.get("gpus")
    if type(slices) is not bool:
        raise Wrong((*path, "slices"), "take true or false")
    if groups is not None and (type(groups) is not int or not 0 <= groups < 1 << 32):
        raise Wrong((*path, "groups"), "take the most channel groups of a process, a whole number")
    if gpus is not None and not isinstance(gpus, list):
        raise Wrong((*path, "gpus"), "take a list of the numbers of GPUs that may be used, as in /dev/nvidia0")
    for place, number in enumerate(gpus or ()):
        if type(number) is not int or not 0 <= number < MOST_GPUS:
            raise Wrong((*path, "gpus", place), f"take the number of a GPU, 0 to {MOST_GPUS - 1}")
    return Refuse(slices, groups, None if gpus is None else frozenset(gpus))


def _in_words(value: object) -> str:
    """The value of a condition, as people read it."""
    if isinstance(value, list):
        return " or ".join(map(_in_words, value))
    if isinstance(value, dict):
        return ", ".join(f"{printable(name)}={_in_words(each)}" for name, each in value.items())
    return printable(str(value))


def _labels(path: TomlPath, value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise Wrong(path, 'take a table of names, such as { pod = "web-0", namespace = "shop" }')
    if len(value) > MAX_LABELS:
        raise Wrong(path, f"take {MAX_LABELS} labels at most")
    for name, text in value.items():
        if not _LABEL.fullmatch(name):
            raise Wrong((*path, name), "the name of a label has up to 32 letters a to z, and _")
        if not isinstance(text, str) or len(text) > MAX_LABEL or not text.isprintable():
            raise Wrong((*path, name), f"a label is a string of up to {MAX_LABEL} printable characters")
    return value


def _bound(path: TomlPath, value: object, where: str) -> Bound:
    table = _check_keys(path, value, (*CONDITIONS, "labels", "class", *_BOUNDED))
    conditions = {key: read((*path, key), table[key]) for key, read in CONDITIONS.items() if key in table}
    labels = {}
    if "labels" in table:
        labels = patterns_of((*path, "labels"), table["labels"], "labels", '{ namespace = "team-*" }')
    classes = []
    for place, word in each_of((*path, "class"), table["class"]) if "class" in table else ():
        if not isinstance(word, str) or word not in list(TaskClass):
            raise Wrong(place, f"take {', '.join(TaskClass)}, or a list of them")
        classes.append(TaskClass(word))
    most = {key: _setting((*path, key), key, table[key]) for key in _BOUNDED if key in table}
    if not classes and not most:
        raise Wrong(path, f"a bound without a limit: name class, {', '.join(_BOUNDED[:-1])} or {_BOUNDED[-1]}")
    return Bound(conditions, where, labels, tuple(classes), most)


def _settings(path: TomlPath, value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise Wrong(path, 'take a table of settings, such as { class = "batch", weight = 50 }')
    settings: dict[str, str] = {}
    for key, word in value.items():
        follows = (key, word) == ("weight", "cgroup")
        settings[key] = "cgroup" if follows else _setting((*path, key), key, word)
    try:
        parse_request(_with_numbers(settings))
    except UsageError as error:
        raise Wrong((*path, str(error).partition("=")[0]), str(error)) from None
    return settings


def _with_numbers(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings as those of some process: a weight that follows its cgroup is any."""
    return {key: "100" if (key, word) == ("weight", "cgroup") else word for key, word in settings.items()}


def _setting(path: TomlPath, key: str, word: object) -> str:
    """The value of a setting as people write it."""
    if type(word) not in (str, int, float):
        raise Wrong(path, "take a string or a number")
    try:
        parse_setting(key, str(word))
    except UsageError as error:
        raise Wrong(path, str(error)) from None
    return str(word)
