"""Text as it may be shown."""

from __future__ import annotations


def printable(text: str) -> str:
    """Text of strangers, without what could move a terminal's cursor: processes choose their own command lines."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def short(text: str) -> str:
    """A bad value as an error line can show it: short, and on one line."""
    shown = printable(text)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def counted(number: int, one: str, more: str = "") -> str:
    """A number of things: `1 GPU`, `2 GPUs`."""
    return f"{number:,} {one if number == 1 else more or one + 's'}"
