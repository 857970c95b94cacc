"""Shared by the commands: options, tables, JSON, errors."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import msgspec
import typer

from runlist.errors import RunlistError, UsageError
from runlist.planes.registry import PLANES
from runlist.views.columns import CONTROL_TITLES, Column, aligned, chosen, columns_of
from runlist.views.structs import GpuView, TaskView

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Device = Annotated[
    str | None,
    typer.Option("--device", metavar="|".join(PLANES), help="Which device; default $RUNLIST_DEVICE, else nvidia."),
]
Pid = Annotated[int, typer.Argument(min=1, help="Process id.")]
PolicyOption = Annotated[
    str | None, typer.Option("--policy", help="Switch the daemon to this policy: a name, or a .py file.")
]
PolicyOptions = Annotated[
    list[str] | None, typer.Option("--option", metavar="NAME=VALUE", help="An option of the policy.")
]

USUAL_COLUMNS = columns_of(
    "PID", "GPU", "CLASS", "WEIGHT", "CAP", "DEADLINE", "SLICE", *CONTROL_TITLES, "SHARE", "QUOTA", "STATE", "SOURCE",
    "GROUPS", "FIXED", "COMMAND",
)  # fmt: skip
"""Columns of every table of tasks; those that have only the usual text are left out."""
LONG_COLUMNS = columns_of(
    "PID", "USER", "GPU", "CLASS", "WEIGHT", "CAP", "DEADLINE", "P99", "SEGMENT", "GROUP", "SLICE", *CONTROL_TITLES,
    "SHARE", "MINUTE", "TURNS/S", "MEMORY", "QUOTA", "OVERHEAD", "REFUSED", "ENFORCED", "CAP BY", "REACHED BY", "STATE",
    "SOURCE", "GROUPS", "FIXED", "POLICY", "RULE", "WHY", "CONTAINER", "COMMAND",
)  # fmt: skip
REASON_COLUMNS = columns_of(
    "PID", "GPU", "CLASS", "WEIGHT", "CAP", "DEADLINE", "P99", "GROUP", "SLICE", "STATE", "POLICY", "RULE", "WHY",
    "COMMAND",
)  # fmt: skip
"""Columns that show why a task has its share."""


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    print(msgspec.json.format(msgspec.json.encode(value)).decode())


def say(line: str) -> None:
    """Print a note or an error on standard error."""
    print(f"runlist: {line}", file=sys.stderr, flush=True)


def report_error(error: RunlistError, words: Sequence[str]) -> int:
    """One line on standard error, and the error as JSON on standard output where JSON was asked for; returns the exit
    code.
    """
    say(str(error))
    own = words[: words.index("--")] if "--" in words else words
    if "--json" in own:
        print_json({"error": str(error), "exit_code": int(error.exit_code)})
    return int(error.exit_code)


def key_values(words: Iterable[str]) -> dict[str, str]:
    """`key=value` words as a dict. Raises UsageError for anything else."""
    pairs = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not (key and equals and value):
            raise UsageError(f"{word}: write key=value")
        pairs[key] = value
    return pairs


def show_tasks(
    tasks: list[TaskView], notes: Iterable[str], as_json: bool, columns: Sequence[Column] = USUAL_COLUMNS
) -> None:
    """Tasks as a table or as JSON, remarks on standard error."""
    for note in notes:
        say(note)
    show(tasks, as_json, columns, "no tasks")


def show(views: Sequence[TaskView | GpuView], as_json: bool, columns: Sequence[Column], nothing: str) -> None:
    """A table, or JSON."""
    if as_json:
        print_json(views)
    else:
        print("\n".join(table(views, columns, terminal_width()) if views else [nothing]))


def terminal_width() -> int | None:
    """How wide standard output is; None where it is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table(views: Sequence[TaskView | GpuView], columns: Sequence[Column], width: int | None = None) -> list[str]:
    """Lines of a table, by GPU and process id. Cut off at `width`; never, where that is None."""
    ordered = sorted(views, key=lambda view: (view.gpu, view.pid if isinstance(view, TaskView) else 0))
    lines = aligned(chosen(columns, ordered), ordered)
    return [line if width is None or len(line) <= width else line[: max(0, width - 1)] + "…" for line in lines]
