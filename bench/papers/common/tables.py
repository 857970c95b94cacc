"""Tables of words, as CSV and as Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

NONE = "–"


@dataclass(frozen=True)
class Table:
    """A heading, and rows of as many words."""

    title: str
    heading: Sequence[str]
    rows: Sequence[Sequence[str]]


def as_csv(table: Table) -> str:
    """For other programs."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([table.heading, *table.rows])
    return text.getvalue()


def number(value: float | None) -> str:
    """For people: three digits that say something."""
    if value is None or value != value:
        return NONE
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def markdown(table: Table) -> str:
    """For documents."""
    lines = [table.heading, ["---"] * len(table.heading), *table.rows]
    return "".join("| " + " | ".join(word.replace("|", "\\|") for word in line) + " |\n" for line in lines)
