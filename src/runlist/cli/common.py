"""Shared by the commands: options, tables, JSON, errors."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import msgspec
import typer

from runlist.cli.streams import takes_every_letter
from runlist.errors import RunlistError, UsageError
from runlist.planes.registry import PLANES

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


def print_json(value: Any, *, on_a_line: bool = False) -> None:
    """One JSON document on standard output, indented unless it is to be `on_a_line`."""
    try:
        octets = msgspec.json.encode(value)
    except UnicodeEncodeError:  # a file's name need not be text; JSON is
        octets = json.dumps(msgspec.to_builtins(value), ensure_ascii=False).encode(errors="replace")
    if not takes_every_letter():
        octets = json.dumps(json.loads(octets)).encode()
    print((octets if on_a_line else msgspec.json.format(octets)).decode())


def say(line: str) -> None:
    """Print a note or an error on standard error, which may be full or closed."""
    with contextlib.suppress(OSError):
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
