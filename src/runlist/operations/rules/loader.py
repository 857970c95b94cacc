"""Finding rules: the built-in ones by name, a user's own by path.

A rule is written `NAME`, `NAME(option=value, …)`, or the same with the path of a .py file in place of the name.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

from runlist import plugin_file
from runlist.errors import UsageError
from runlist.operations.rules.interface import Rule

DEFAULT_RULE = "orion"

NOT_RULES = frozenset({"interface", "loader"})

_WRITTEN = re.compile(r"\s*(?P<name>[^()]+?)\s*(?:\((?P<options>[^()]*)\))?\s*", re.DOTALL)


def builtin_rules() -> dict[str, str]:
    """Names and one-line summaries of the rules that come with Runlist."""
    package = importlib.import_module("runlist.operations.rules")
    names = {module.name for module in pkgutil.iter_modules(package.__path__)} - NOT_RULES
    return {name: _builtin(name).summary for name in sorted(names)}


def load_rule(text: str) -> Rule:
    """A new rule, as it is written. Raises UsageError, which says what is wrong, for anything that is not a working
    rule, and NoPermissionError for a file that somebody else can write.
    """
    name, options = _parts(text)
    cls = _from_file(Path(name)) if name.endswith(".py") else _builtin(name)
    try:
        return cls(options)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        said = str(error) if isinstance(error, ValueError) else repr(error)
        raise UsageError(f"rule {name}: {said}") from None


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


def _builtin(name: str) -> type[Rule]:
    try:
        if not name.isidentifier() or name in NOT_RULES:
            raise ModuleNotFoundError(name=f"{__package__}.{name}")
        module = importlib.import_module(f"{__package__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{__package__}.{name}":
            raise
        known = ", ".join(builtin_rules())
        raise UsageError(f"no rule {name!r}: take {known} or the path of a .py file") from None
    return _rule_class(module, name)


def _from_file(path: Path) -> type[Rule]:
    return _rule_class(plugin_file.load(path, "rule"), str(path))


def _rule_class(module: object, name: str) -> type[Rule]:
    cls = getattr(module, "RULE", None)
    if not (isinstance(cls, type) and issubclass(cls, Rule)):
        raise UsageError(f"rule {name} does not define RULE, a subclass of runlist.operations.rules.Rule")
    return cls
