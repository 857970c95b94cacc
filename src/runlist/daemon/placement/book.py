"""All rules in force: those of the drop-ins, in the order of their names, before those of the main file.

A rule that names its container or its cgroup is found by that name; only the others are tried one after the other.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge

from runlist.daemon.placement.bounds import lowered
from runlist.daemon.placement.facts import Facts
from runlist.daemon.placement.rule import OF_A_PROCESS, Limits, Match, Rule
from runlist.daemon.placement.rules import Rules
from runlist.model import LATENCY_CRITICAL

_Entry = tuple[str, int, Rule]
"""Of a drop-in: its name, and the rule's place in it."""


def _order(entry: _Entry) -> tuple[str, int]:
    return entry[:2]


class RuleBook:
    """True when there are any rules. `main` has the limits and bounds."""

    def __init__(self, main: Rules) -> None:
        self.main = main
        self.drop_ins: dict[str, Rules] = {}
        self._exact: dict[tuple[str, str], list[_Entry]] = {}
        self._others: list[_Entry] = []
        self._variables: frozenset[str] | None = None
        self._give_critical: bool | None = None

    def __bool__(self) -> bool:
        return bool(self.main or self._others or self._exact)

    @property
    def limits(self) -> Limits:
        """Of each GPU."""
        return self.main.limits

    @property
    def variables(self) -> frozenset[str]:
        """The variables of a process' environment for which any rule asks."""
        if self._variables is None:
            files = [self.main, *self.drop_ins.values()]
            asking = [each.conditions for file in files for each in file.rules]
            asking += [each.conditions for each in self.main.bounds]
            conditions = [condition for each in asking for condition in each.values()]
            self._variables = frozenset().union(*(condition.variables for condition in conditions))
        return self._variables

    @property
    def give_critical(self) -> bool:
        """Whether any rule makes processes latency-critical."""
        if self._give_critical is None:
            settings = (rule.settings for rule, _ in self.in_order())
            self._give_critical = any("deadline" in each or each.get("class") in LATENCY_CRITICAL for each in settings)
        return self._give_critical

    def in_order(self) -> Iterator[tuple[Rule, bool]]:
        """All rules as they are tried, and whether what each gives is within the bounds, whoever the process is."""
        for _, rules in sorted(self.drop_ins.items()):
            yield from ((rule, not self.main.bounds) for rule in rules.rules)
        yield from ((rule, True) for rule in self.main.rules)

    def use(self, main: Rules) -> None:
        """Take another content of the main file."""
        self.main = main
        self._variables = self._give_critical = None

    def put(self, name: str, rules: Rules | None) -> list[Rule]:
        """Take the content of a drop-in, None for one that is gone; returns the rules that came and went."""
        before = self.drop_ins.pop(name, None)
        self._variables = self._give_critical = None
        changed: list[Rule] = []
        if before is not None:
            for entry in _entries(name, before):
                self._remove(entry)
                changed.append(entry[2])
        if rules is not None:
            self.drop_ins[name] = rules
            for entry in _entries(name, rules):
                self._add(entry)
                changed.append(entry[2])
        return changed

    def match(self, facts: Facts) -> Match | None:
        """What the first rule gives that matches, or None. Of a drop-in's that is within the bounds."""
        named = [
            entry for what in OF_A_PROCESS for entry in self._exact.get((what, getattr(facts, what)), ())
        ]  # fmt: skip
        for _, _, rule in merge(sorted(named, key=_order), self._others, key=_order):
            if rule.matches(facts):
                return lowered(rule.match(facts), facts, self.main.bounds)
        return self.main.match(facts)

    def _add(self, entry: _Entry) -> None:
        for entries in self._places(entry, make=True):
            insort(entries, entry, key=_order)

    def _remove(self, entry: _Entry) -> None:
        for entries in self._places(entry):
            entries[:] = [other for other in entries if other[:2] != entry[:2]]
        if (exact := entry[2].exact) is not None:
            for text in exact[1]:
                if not self._exact.get((exact[0], text), True):
                    del self._exact[exact[0], text]

    def _places(self, entry: _Entry, *, make: bool = False) -> list[list[_Entry]]:
        """The lists in which an entry is."""
        exact = entry[2].exact
        if exact is None:
            return [self._others]
        keys = [(exact[0], text) for text in exact[1]]
        return [self._exact.setdefault(key, []) if make else self._exact.get(key, []) for key in keys]


def _entries(name: str, rules: Rules) -> Sequence[_Entry]:
    return [(name, place, rule) for place, rule in enumerate(rules.rules)]


class Concern:
    """The processes for which some rules may count."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._texts: dict[str, set[str]] = {what: set() for what in OF_A_PROCESS}
        self._others: list[Rule] = []
        for rule in rules:
            if rule.exact is None:
                self._others.append(rule)
            else:
                self._texts[rule.exact[0]] |= rule.exact[1]

    def includes(self, cgroup: str, container: str) -> bool:
        """Whether a process in a cgroup is one of them, by that alone."""
        facts = Facts(-1, cgroup=cgroup, container=container)
        if any(getattr(facts, what) in texts for what, texts in self._texts.items()):
            return True
        return any(rule.may_match(facts) for rule in self._others)
