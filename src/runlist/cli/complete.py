"""Words that a shell may complete with. They are looked up when a shell asks, and ask no daemon."""

from __future__ import annotations

from collections.abc import Iterable


def devices(incomplete: str) -> list[str]:
    """Names of devices."""
    from runlist.planes.registry import PLANES

    return _beginning(incomplete, PLANES)


def policies(incomplete: str) -> list[str]:
    """Names of policies."""
    from runlist.policies import builtin_policies

    return _beginning(incomplete, builtin_policies())


def traces(incomplete: str) -> list[str]:
    """Names of ready traces."""
    from runlist.sim import builtin_traces

    return _beginning(incomplete, builtin_traces())


def settings(incomplete: str) -> list[str]:
    """`key=value` of settings: the keys, then the values of one that has words for values."""
    from runlist.settings.table import SETTINGS

    key, equals, _ = incomplete.partition("=")
    if not equals:
        return _beginning(incomplete, (f"{name}=" for name in SETTINGS))
    return _beginning(incomplete, (f"{key}={word}" for word in values_of(key)))


def values_of(key: str) -> list[str]:
    """The words that a setting takes for a value: those in small letters."""
    from runlist.model import TaskClass
    from runlist.settings.table import SETTINGS

    if key == "class":
        return list(TaskClass)
    return [word for word in SETTINGS[key].values.split("|") if word.islower()] if key in SETTINGS else []


def _beginning(incomplete: str, words: Iterable[str]) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]
