"""What the commands share: options, tables, JSON, errors."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import msgspec
import typer

from runlist import wire
from runlist.errors import RunlistError, UsageError

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Device = Annotated[
    str | None,
    typer.Option("--device", metavar="nvidia|emulated", help="Which device; default $RUNLIST_DEVICE, else nvidia."),
]
Pid = Annotated[int, typer.Argument(min=1, help="Process id.")]
TaskClassOption = Annotated[str, typer.Option("--class", metavar="latency|normal|batch", help="Scheduling class.")]
PolicyOption = Annotated[
    str | None, typer.Option("--policy", help="Switch the daemon to this policy: a name, or a .py file.")
]
PolicyOptions = Annotated[
    list[str] | None, typer.Option("--option", metavar="NAME=VALUE", help="An option of the policy.")
]

_SIZES = ((1_000_000, "s"), (1_000, "ms"))


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    print(msgspec.json.format(msgspec.json.encode(value)).decode())


def report_error(error: RunlistError, words: Sequence[str]) -> int:
    """One line on standard error, and the error as JSON on standard output where JSON was asked for; returns the exit
    code.
    """
    print(f"runlist: {error}", file=sys.stderr)
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


def show_tasks(tasks: list[wire.TaskView], notes: Iterable[str], as_json: bool) -> None:
    """Tasks as a table or as JSON, remarks on standard error."""
    for note in notes:
        print(f"runlist: {note}", file=sys.stderr)
    if as_json:
        print_json(tasks)
        return
    if not tasks:
        print("no tasks")
        return
    header = ("PID", "GPU", "CLASS", "SLICE", "STATE", "POLICY", "GROUPS", "FIXED", "COMMAND")
    rows = [
        (
            str(task.pid), task.gpu.removeprefix("GPU-")[:8], task.task_class, _slice(task.timeslice_us), _state(task),
            task.policy, str(task.groups), str(task.corrections), task.command,
        )
        for task in sorted(tasks, key=lambda task: (task.gpu, task.pid))
    ]  # fmt: skip
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    for row in (header, *rows):
        print("  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip())


def _slice(microseconds: int | None) -> str:
    if microseconds is None:
        return "default"
    for size, unit in _SIZES:
        if microseconds >= size:
            return f"{microseconds / size:g} {unit}"
    return f"{microseconds} µs"


def _state(task: wire.TaskView) -> str:
    if task.suspended:
        return "suspended"
    return "enabled" if task.enabled else "waiting"
