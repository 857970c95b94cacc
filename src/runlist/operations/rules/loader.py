"""Finding rules: the built-in ones by name, a user's own by path.

A rule is written `NAME`, `NAME(option=value, …)`, or the same with the path of a .py file in place of the name.
"""

from __future__ import annotations

import re
from pathlib import Path

from runlist.errors import UsageError
from runlist.operations.rules.interface import Rule
from runlist.plugins import Plugins

DEFAULT_RULE = "orion"

_RULES = Plugins(
    what="rule",
    package="runlist.operations.rules",
    base=Rule,  # type: ignore[type-abstract]  # nobody makes one of it
    base_name="runlist.operations.rules.Rule",
    others=frozenset({"bounds", "interface", "loader"}),
)

_WRITTEN = re.compile(r"\s*(?P<name>[^()]+?)\s*(?:\((?P<options>[^()]*)\))?\s*", re.DOTALL)


def builtin_rules() -> dict[str, str]:
    """Names and one-line summaries of the rules that come with Runlist."""
    return {name: _RULES.ours(name).summary for name in _RULES.names()}


def load_rule(text: str | Path) -> Rule:
    """A new rule, as it is written, or of a file without options. Raises UsageError, which says what is wrong, for
    anything that is not a working rule, and NoPermissionError for a file that somebody else can write.
    """
    name, options = _parts(text) if isinstance(text, str) else (str(text), {})
    cls = _RULES.find(name)
    with _RULES.making(name):
        return cls(options)


def _parts(text: str) -> tuple[str, dict[str, str]]:
    match = _WRITTEN.fullmatch(text)
    if match is None:
        raise UsageError(f"no rule {text!r}: write NAME or NAME(option=value, …)")
    options: dict[str, str] = {}
    for word in filter(None, map(str.strip, (match["options"] or "").split(","))):
        key, equals, value = (part.strip() for part in word.partition("="))
        if not (key and equals and value):
            raise UsageError(f"rule {text}: {word!r}: write option=value")
        if key in options:
            raise UsageError(f"rule {text}: {key} is given twice: give it once")
        options[key] = value
    return match["name"], options
