"""Tables of tasks and GPUs, or the same as JSON. Commands import this when they have something to show."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence

from runlist.cli.common import print_json, say
from runlist.views.columns import CONTROL_TITLES, Column, chosen, columns_of
from runlist.views.cutting import cut
from runlist.views.layout import fit, lines
from runlist.views.structs import GpuView, TaskView

USUAL_COLUMNS = columns_of(
    "PID", "GPU", "CLASS", "WEIGHT", "CAP", "DEADLINE", "SLICE", *CONTROL_TITLES, "SHARE", "QUOTA", "STATE", "SOURCE",
    "GROUPS", "SMS", "TOGETHER WITH", "FIXED", "COMMAND",
)  # fmt: skip
"""Columns of every table of tasks; those that have only the usual text are left out."""
LONG_COLUMNS = columns_of(
    "PID", "USER", "GPU", "CLASS", "WEIGHT", "CAP", "DEADLINE", "P99", "SEGMENT", "GROUP", "SLICE", *CONTROL_TITLES,
    "SHARE", "MINUTE", "TURNS/S", "MEMORY", "QUOTA", "OVERHEAD", "REFUSED", "ENFORCED", "CAP BY", "REACHED BY", "STATE",
    "SOURCE", "GROUPS", "KERNEL SAW", "SMS", "TOGETHER WITH", "FIXED", "POLICY", "RULE", "WHY", "LABELS",
    "CONTAINER", "COMMAND",
)  # fmt: skip
REASON_COLUMNS = columns_of(
    "PID", "GPU", "CLASS", "WEIGHT", "CAP", "DEADLINE", "P99", "GROUP", "SLICE", "STATE", "POLICY", "RULE", "WHY",
    "COMMAND",
)  # fmt: skip
"""Columns that show why a task has its share."""


def show(
    views: Sequence[TaskView | GpuView],
    notes: Iterable[str],
    as_json: bool,
    columns: Sequence[Column] = USUAL_COLUMNS,
    nothing: str = "no tasks",
    *,
    on_a_line: bool = False,
) -> None:
    """Tasks or GPUs as a table or as JSON (a document, `on_a_line` where that is asked), notes on standard error."""
    for note in notes:
        say(note)
    if as_json:
        print_json(views, on_a_line=on_a_line)
    else:
        print("\n".join(table(views, columns, terminal_width()) if views else [nothing]))


def terminal_width() -> int | None:
    """How wide standard output is; None where it is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table(views: Sequence[TaskView | GpuView], columns: Sequence[Column], width: int | None = None) -> list[str]:
    """Lines of a table, by GPU and process id. What has no room in `width` is left out, and that is said."""
    ordered = sorted(views, key=lambda view: (view.gpu, view.pid if isinstance(view, TaskView) else 0))
    layout = fit(chosen(columns, ordered), ordered, width)
    made = lines(layout, ordered)
    if layout.left_out:
        made += textwrap.wrap(f"no room for {', '.join(layout.left_out)}", max(8, width or 0))
    return made if width is None else [cut(line, width) for line in made]
