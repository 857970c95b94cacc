"""The settings of a container, chosen among the wishes of all dialects, setting by setting."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from runlist.errors import UsageError
from runlist.integrations.node.dialects import DIALECTS, Asked, Wish
from runlist.settings.table import parse_request
from runlist.text import printable

_GROUP_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_GROUP_WORDS = ("pod", "container", "none")
_SHOWN = 200
_MOST_NOTES = 16


@dataclass(frozen=True, slots=True)
class Wanted:
    """The settings of a container as a rule has them, where each comes from, and what could not be taken."""

    settings: dict[str, str]
    sources: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def wanted(asked: Asked) -> Wanted:
    """What to give a container. It always gets something: nonsense is noted, and the next dialect is taken."""
    taken: dict[str, Wish] = {}
    by: dict[str, str] = {}
    notes: dict[str, None] = {}
    for dialect, wishes in DIALECTS.items():
        for wish in wishes(asked):
            first = wish.key not in taken
            wrong = wish.wrong or (_wrong(wish, taken) if first else _contradiction(wish, taken, by, dialect))
            if wrong:
                notes.setdefault(_note(wish, wrong))
            elif first:
                taken[wish.key] = wish
                by[wish.key] = dialect
    if (group := taken.get("group")) is not None and group.value != "container" and "granted" in by.values():
        notes.setdefault(_note(group, "what the container was granted is its own, whatever others weigh"))
        del taken["group"]
    settings = {key: wish.value for key, wish in taken.items() if key != "group"}
    own = any(wish.own for key, wish in taken.items() if key != "group")
    settings["group"] = _group(asked, taken["group"].value if "group" in taken else "container" if own else "pod")
    told = list(notes)
    if len(told) > _MOST_NOTES:
        told[_MOST_NOTES:] = [f"and {len(told) - _MOST_NOTES} more"]
    return Wanted(settings, {key: printable(wish.source)[:_SHOWN] for key, wish in taken.items()}, tuple(told))


def _note(wish: Wish, wrong: str) -> str:
    return f"{printable(wish.source)[:_SHOWN]} is not taken: {printable(wrong)[:_SHOWN]}"


def _wrong(wish: Wish, taken: dict[str, Wish]) -> str:
    """Why a wish cannot be granted, beside those that were taken; empty where it can."""
    if wish.key == "group":
        fits = wish.value in _GROUP_WORDS or _GROUP_NAME.fullmatch(wish.value)
        return "" if fits else "take pod, container, none or a name of up to 63 letters, digits, '.', '_' and '-'"
    before = {key: one.value for key, one in taken.items() if key != "group"}
    try:
        parse_request({wish.key: wish.value})
        parse_request({**before, wish.key: wish.value})
    except UsageError as error:
        return str(error)
    return ""


def _contradiction(wish: Wish, taken: dict[str, Wish], by: dict[str, str], dialect: str) -> str:
    """What to say where two systems ask for different things. Ours is there to say something else than others do."""
    first = taken[wish.key]
    if by[wish.key] in ("runlist", dialect) or dialect == "PriorityClass" or _same(wish, first):
        return ""
    return f"{first.source} says {first.key}={first.value}, and goes first"


def _same(one: Wish, other: Wish) -> bool:
    """Whether two values are one, but for rounding: each system counts in units of its own."""
    if one.value.isdecimal() and other.value.isdecimal():
        return abs(int(one.value) - int(other.value)) <= max(1, int(other.value) // 20)
    return one.value == other.value


def _group(asked: Asked, word: str) -> str:
    """The group's name as the daemon takes it. A name is one within the namespace: nobody joins another's."""
    pod = asked.pod
    if word in ("container", "none"):
        return word
    name = f"pod:{pod.namespace}/{pod.name}/{pod.uid}" if word == "pod" else f"namespace:{pod.namespace}/{word}"
    return printable(name).replace(" ", "_")[:1024]
