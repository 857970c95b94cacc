"""The table of settings in words: for `--help`, and for the guide."""

from __future__ import annotations

from runlist.settings.table import SETTINGS, Setting

DURATIONS = "A DURATION, and what stands before and behind a slash, is a number with its unit: 500us, 5ms, 1s."


def described(row: Setting) -> str:
    """The effect of a setting, and notes on its values."""
    alone = f" A number alone is {row.unit}." if row.unit else ""
    kept = " For root and the daemon's own user, where the driver lets the daemon set it." if row.privileged else ""
    return f"{row.help}{alone}{kept}"


def command_help() -> str:
    """The text of `runlist set --help`, a line for each setting."""
    rows = [f"{row.key}={row.values}: {described(row)}" for row in SETTINGS.values()]
    return "\n".join(["Change settings of a managed process, all of them or none.", "", *rows, "", DURATIONS])


def guide_table() -> str:
    """The guide's table, in Markdown."""
    head = ["| setting | values | is | changes |", "|---|---|---|---|"]
    return "\n".join([*head, *map(_guide_row, SETTINGS.values())])


def _guide_row(row: Setting) -> str:
    words = ", ".join(f"`{word}`" for word in row.values.split("|"))
    return f"| `{row.key}` | {words} | {described(row)} | {row.changes} |"
