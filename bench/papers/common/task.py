"""A program that is asked, and how often."""

from __future__ import annotations

from dataclasses import dataclass

from runlist.arrivals import AnyLoad


@dataclass(frozen=True)
class Task:
    """One program of a workload."""

    name: str
    program: str
    urgent: bool
    load: AnyLoad

    @property
    def kind(self) -> str:
        """As the papers say it."""
        return "LC" if self.urgent else "BE"
