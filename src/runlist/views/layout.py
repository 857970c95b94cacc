"""Tables of tasks and GPUs within the width of a screen: which columns shrink, and which are left out first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from runlist.views.columns import CONTROL_TITLES, GAP, Column
from runlist.views.cutting import cells, padded

SHRINKING = {
    "CONTAINER": 8, "LABELS": 12, "GROUP": 8, "RULE": 12, "ENFORCED": 12, "STATE": 9, "WHY": 16, "COMMAND": 16,
    "ASKS": 16, "SETS": 16, "REFUSES": 16,
}  # fmt: skip
"""Columns whose texts are cut off where there is no room, and down to what width. The first ones get back first what
is left over.
"""

SENTENCES = {"WHY"}
"""Columns whose texts are cut off after a word."""

FIRST_TO_GO = (
    "KERNEL SAW", "GROUPS", "CONTAINER", "LABELS", "ENFORCED", "CAP BY", "TURNS/S", "SOURCE", "RULE", "POLICY",
    "LAST MINUTE", "OVERHEAD", "LOST", "REACHED BY", "FIXED", "REFUSED", "UNOWNED", "SUSPENDED", "SWITCHES",
    "WORKED", "HELD", "USER", "MINUTE", "SEGMENT", "TOGETHER WITH", "GROUP", "P99", *CONTROL_TITLES, "SLICE",
    "MEMORY", "SIZE", "DEADLINE", "WHY", "SMS", "GPU", "SM TIME", "DEFERRED/S", "BESIDE HP", "GIVES WAY", "CAP",
    "WEIGHT", "QUOTA", "SHARE", "CLASS", "ASKS", "REFUSES", "SETS",
)  # fmt: skip
"""Columns that a narrow table does without, in this order. PID, STATE and COMMAND always stay."""


class Layout(msgspec.Struct, frozen=True):
    """The columns of a table with their widths, and the titles of those without room."""

    columns: tuple[Column, ...]
    widths: tuple[int, ...]
    left_out: tuple[str, ...]


def fit(columns: Sequence[Column], views: Sequence[msgspec.Struct], width: int | None = None) -> Layout:
    """The layout for a screen of `width`; None is as wide as it gets. Widths are in cells of a terminal."""
    full = {column.title: max(map(cells, [column.title, *(column.text(view) for view in views)])) for column in columns}
    if width is None:
        return Layout(tuple(columns), tuple(full.values()), ())
    given = {title: min(want, SHRINKING.get(title, want)) for title, want in full.items()}
    for title in FIRST_TO_GO:
        if _width(given.values()) <= width:
            break
        given.pop(title, None)
    spare = max(0, width - _width(given.values()))
    for title in SHRINKING:
        if title in given:
            more = min(spare, full[title] - given[title])
            given[title] += more
            spare -= more
    return Layout(
        tuple(column for column in columns if column.title in given),
        tuple(given.values()),
        tuple(title for title in full if title not in given),
    )


def lines(layout: Layout, views: Sequence[msgspec.Struct]) -> list[str]:
    """Lines of a table: the titles, then the views in the order given."""
    rows = [[column.title for column in layout.columns]]
    rows += [[column.text(view) for column in layout.columns] for view in views]
    return [
        GAP.join(
            padded(text, size, right=column.number, words=column.title in SENTENCES)
            for column, text, size in zip(layout.columns, row, layout.widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def _width(widths: Iterable[int]) -> int:
    sizes = list(widths)
    return sum(sizes) + len(GAP) * (len(sizes) - 1)
