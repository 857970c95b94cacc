"""Rations: what the tasks of one owner weigh together beside those of others, however many they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence

from runlist.model import Owner, Task, TaskClass

_Ration = tuple[Owner, TaskClass]


def rations(groups: Mapping[str, Sequence[Task]], working: Container[str]) -> dict[str, float]:
    """What is left of the weight of groups whose owners have more than their ration: a factor below 1 for each, by the
    name that it shares as. Those that are not `working` take nothing from their owner's others.
    """
    beyond: Counter[_Ration] = Counter()
    rationed: dict[str, tuple[Task, _Ration]] = {}
    for name, group in groups.items():
        first = max(group, key=lambda task: task.weight)
        if first.most_weight is None or (len(group) > 1 and any(task.owner != first.owner for task in group)):
            continue  # or rules made it for several
        rationed[name] = first, (first.owner, first.task_class)
        if name in working:
            beyond[rationed[name][1]] += _beyond(first)
    found: dict[str, float] = {}
    for name, (first, ration) in rationed.items():
        claimed, most = max(beyond[ration], _beyond(first)), first.most_weight or 0
        if claimed > most:
            found[name] = 1 - _beyond(first) * (1 - most / claimed) / first.weight
    return found


def _beyond(task: Task) -> int:
    """What a task weighs beyond what rules give it."""
    return max(0, task.weight - task.given_weight)
