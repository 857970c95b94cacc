"""The rules of one file: settings by user, command and the like, and limits of each GPU.

`docs/rules.md` describes it. An error in it is refused when it is read, with its line.
"""

from __future__ import annotations

from pathlib import Path

from runlist.daemon.placement.facts import Facts, facts_of
from runlist.daemon.placement.reading import Reading, content_of, read_drop_in, read_file
from runlist.daemon.placement.rule import Limits, Match, Over

__all__ = ["Facts", "Limits", "Match", "Over", "Rules", "facts_of"]


class Rules:
    """The rules of one file, in order; true when there are any."""

    def __init__(self, reading: Reading) -> None:
        self.rules = reading.rules
        self.limits = reading.limits
        self.bounds = reading.bounds

    def __bool__(self) -> bool:
        return bool(self.rules)

    @classmethod
    def none(cls) -> Rules:
        """No rules and no limits."""
        return cls(Reading())

    @classmethod
    def load(cls, path: Path) -> Rules:
        """Read a file. Raises UsageError for a bad one: `file:line: the line: what is wrong`."""
        return cls(read_file(path))

    @classmethod
    def of_drop_in(cls, path: Path, content: bytes) -> Rules:
        """The rules of a drop-in. Raises UsageError as `load`."""
        return cls(read_drop_in(path, content))

    @classmethod
    def load_drop_in(cls, path: Path) -> Rules:
        """Read a drop-in wherever it is. Raises UsageError as `load`."""
        return cls(read_drop_in(path, content_of(path)))

    def match(self, facts: Facts) -> Match | None:
        """The match of the first rule that matches, or None."""
        for rule in self.rules:
            if rule.matches(facts):
                return rule.match(facts)
        return None
