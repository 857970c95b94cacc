"""Bounds of the main rules file: the most that drop-ins can give to the processes for which a bound stands.

All bounds that match a process count. What a drop-in asks beyond one is lowered to it, and noted; what it leaves open
is the bound itself where that is less than what everybody has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from runlist.daemon.placement.conditions import Condition, all_match
from runlist.daemon.placement.facts import Facts
from runlist.daemon.placement.rule import Match
from runlist.model import Task, TaskClass
from runlist.settings.table import apply_changes, memory_change, parse_settings
from runlist.settings.values import is_none

_ORDER = list(TaskClass)
_TOGETHER = {"weight", "cap", "memory"}
"""What the processes of a group have together."""


class Bound(msgspec.Struct, frozen=True):
    """One bound: for which processes, by facts and by the labels that the drop-in gives them, and the most of each key
    as its file has it. `classes` is empty where any is allowed.
    """

    conditions: Mapping[str, Condition]
    where: str
    labels: Mapping[str, list[re.Pattern[str]]] = {}
    classes: tuple[TaskClass, ...] = ()
    most: Mapping[str, str] = {}

    def applies(self, facts: Facts, labels: Mapping[str, str]) -> bool:
        """Whether it stands for a process."""
        return all_match(self.labels, labels) and all(one.matches(facts) for one in self.conditions.values())


def lowered(match: Match, facts: Facts, bounds: Sequence[Bound]) -> Match:
    """What a drop-in's rule gives, within the bounds."""
    settings, notes = dict(match.settings), list(match.notes)
    for bound in bounds:
        if bound.applies(facts, match.labels):
            _lower(settings, notes, match.where, bound)
            alone = is_none(settings.get("group", ""))
            if alone and facts.container and bound.most.keys() & _TOGETHER:
                notes.append(f"{match.where}: group = none is beyond {bound.where}: it is the container")
                settings["group"] = f"container:{facts.container}"  # else each process would have as much
    return Match(settings, match.where, match.labels, tuple(notes))


def _lower(settings: dict[str, str], notes: list[str], where: str, bound: Bound) -> None:
    def note(key: str, now: str) -> None:
        if key in settings:
            notes.append(f"{where}: {key} = {settings[key]} is beyond {bound.where}: it is {now}")

    lower = _lower_class(_task(settings).task_class, bound.classes)
    if lower is not None:
        note("deadline" if "deadline" in settings else "class", lower)
        _set_class(settings, lower)
    for key, word in bound.most.items():
        if _is_beyond(key, settings, word):
            note(key, word)
            settings[key] = word
            if key == "cap":
                settings.pop("burst", None)
    task, cap = _task(settings), _task(dict(bound.most)).cap
    if cap is not None and task.deadline is not None and task.deadline.fraction > cap.fraction:
        lower = _lower_class(TaskClass.LATENCY, bound.classes) or TaskClass.LATENCY
        note("deadline", lower)
        _set_class(settings, lower)


def _lower_class(asked: TaskClass, allowed: Sequence[TaskClass]) -> TaskClass | None:
    """The next class below the one that was asked for that is allowed; None where it may stay as it is, as where all
    that is allowed is more.
    """
    below = _ORDER[_ORDER.index(asked) :]
    return None if asked in allowed else next((one for one in below if one in allowed), None)


def _set_class(settings: dict[str, str], task_class: TaskClass) -> None:
    settings.pop("deadline", None)
    settings["class"] = task_class
    if task_class is TaskClass.BATCH:
        settings.pop("p99", None)  # no class is below it, from which to take


def _task(settings: Mapping[str, str]) -> Task:
    return apply_changes(parse_settings(settings))


def _is_beyond(key: str, settings: Mapping[str, str], word: str) -> bool:
    """Whether a key asks for more than a word, or asks for nothing where everybody has more than that."""
    asked, most = parse_settings({key: settings[key]} if key in settings else {}), parse_settings({key: word})
    if key == "memory":
        limits = [change.limit for change in map(memory_change, (asked, most)) if change is not None]
        limit = limits[-1]
        return limit is not None and (len(limits) == 1 or limits[0] is None or limits[0] > limit)
    mine, bound = apply_changes(asked), apply_changes(most)
    match key:
        case "weight":
            return mine.weight > bound.weight
        case "cap":
            return bound.cap is not None and (mine.cap is None or mine.cap.fraction > bound.cap.fraction)
        case _:  # p99: none is the least that one can ask for
            target, least = mine.target_p99_us, bound.target_p99_us
            return target is not None and (least is None or target < least)
